"""Every number of the lab page "Prefix cache hit rate", computed again.

The page is the specification of `predict`; this table is how a reader sees that the two agree.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from hitlab.experiment.closed_form import matchable_tokens, phase_tally, predict_unbroken
from hitlab.experiment.shape import ColdRequests, Phase, Role, SharedPrefix
from hitlab.tokens import Tally

_WORKED = SharedPrefix(requests=64, prefix_tokens=1000, suffix_tokens=200)
_ALIGNED = SharedPrefix(requests=100, prefix_tokens=4096, suffix_tokens=32)
_SHORT = SharedPrefix(requests=64, prefix_tokens=12, suffix_tokens=500)


@dataclass(frozen=True, slots=True)
class PageValue:
    """A number as the page prints it, and the same number computed to full precision."""

    section: str
    what: str
    page: float
    decimals: int  # how many the page prints
    computed: float
    unit: str = ""

    @property
    def agrees(self) -> bool:
        """Whether the computed value, cut to the page's decimals, is the page's."""
        return round(self.computed, self.decimals) == self.page


def page_values() -> Iterator[PageValue]:
    """The worked case of section 1, the runs of section 3, the table of section 5, exercises 1 to 3."""
    vllm, sglang = predict_unbroken(_WORKED, block_tokens=16), predict_unbroken(_WORKED, block_tokens=1)
    gap = vllm.cold_start_points + vllm.granularity_points

    yield PageValue("1", "full blocks in the prefix, B=16", 62, 0, vllm.matchable_prefix_tokens / 16)
    yield PageValue("1", "matchable prefix tokens, B=16", 992, 0, vllm.matchable_prefix_tokens)
    yield PageValue("1", "stranded prefix tokens, B=16", 8, 0, vllm.stranded_tokens)
    yield PageValue("1", "hit tokens, N=64 P=1000 S=200 B=16", 62_496, 0, vllm.tally.hit_tokens)
    yield PageValue("1", "prompt tokens, N=64 P=1000 S=200", 76_800, 0, vllm.tally.queried_tokens)
    yield PageValue("1", "hit rate, B=16", 81.4, 1, _percent(vllm.tally), "%")
    yield PageValue("1", "P/(P+S)", 83.3, 1, 100 * 1000 / 1200, "%")
    yield PageValue("1", "cold start penalty", 1.302, 3, vllm.cold_start_points, "pts")
    yield PageValue("1", "granularity penalty", 0.656, 3, vllm.granularity_points, "pts")
    yield PageValue("1", "both penalties", 1.96, 2, gap, "pts")
    yield PageValue("3", "hit rate, B=1", 82.0, 1, _percent(sglang.tally), "%")

    cold = phase_tally(Phase("cold", Role.UNBROKEN, 1, 1000, ColdRequests.ONE), _WORKED, 16)
    yield PageValue("5", "cold start, B=16", 0, 0, _percent(cold), "%")
    yield PageValue("5", "warm, B=16", 81.4, 1, _percent(vllm.tally), "%")
    yield PageValue("5", "warm, page 1", 82.0, 1, _percent(sglang.tally), "%")
    yield PageValue("5", "what page 1 gains", 0.7, 1, _percent(sglang.tally) - _percent(vllm.tally), "pts")
    for index, percent in ((0, 0.0), (400, 32.8)):
        for name, block_tokens in (("B=16", 16), ("page 1", 1)):
            broken = phase_tally(Phase("break", Role.BROKEN, 64, index, ColdRequests.ALL), _WORKED, block_tokens)
            yield PageValue("5", f"break at token {index}, {name}", percent, 1, _percent(broken), "%")
    each = matchable_tokens(400, 1200, 16)
    yield PageValue("4", "blocks below token 400, B=16", 25, 0, each / 16)
    yield PageValue("4", "one request broken at 400, B=16", 33.3, 1, 100 * each / 1200, "%")
    salted = phase_tally(Phase("break", Role.BROKEN, 64, 0, ColdRequests.ALL), _WORKED, 16)
    yield PageValue("5", "salt of its own a request, B=16", 0, 0, _percent(salted), "%")
    # "~0 %" holds for the first request after the flood, not for the pass: decision 0001.
    evicted = phase_tally(Phase("evicted", Role.PROBE, 1, 1000, ColdRequests.ONE), _WORKED, 16)
    yield PageValue("5", "evicted, first request, B=16", 0, 0, _percent(evicted), "%")

    for name, block_tokens in (("B=16", 16), ("B=1", 1)):
        aligned = predict_unbroken(_ALIGNED, block_tokens)
        yield PageValue("6.1", f"matchable prefix tokens, {name}", 4096, 0, aligned.matchable_prefix_tokens)
        yield PageValue("6.1", f"hit rate, N=100 P=4096 S=32 {name}", 98.2, 1, _percent(aligned.tally), "%")
    yield PageValue("6.2", "hit rate, P=12 S=500 B=16", 0, 0, _percent(predict_unbroken(_SHORT, 16).tally), "%")
    # Exercise 3: flat between block boundaries at B=16; at page 1 every index is a step of its own.
    lost_17, lost_31 = (matchable_tokens(index, 1200, 16) for index in (17, 31))
    yield PageValue("6.3", "hit tokens a request, break at 17, B=16", 16, 0, lost_17)
    yield PageValue("6.3", "hit tokens a request, break at 31, B=16", 16, 0, lost_31)
    yield PageValue("6.3", "hit tokens a request, break at 31, page 1", 31, 0, matchable_tokens(31, 1200, 1))


def _percent(tally: Tally) -> float:
    rate = tally.hit_rate
    assert rate is not None
    return 100 * rate
