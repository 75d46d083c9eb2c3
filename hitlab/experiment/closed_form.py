"""The closed form: prefix-cache hits by arithmetic, before anything runs.

Source: the lab page "Prefix cache hit rate", sections 1 and 5, with the three corrections that measurement
made to it (docs/decisions/0001-measurement-corrects-the-page.md).
"""

from collections.abc import Iterable
from dataclasses import dataclass

from hitlab.errors import UsageError
from hitlab.experiment.shape import ColdRequests, Phase, SharedPrefix, cold_and_warm
from hitlab.tokens import NOTHING, Tally


def matchable_tokens(
    shared_tokens: int, prompt_tokens: int, block_tokens: int, withheld_tokens: int = 0, withheld_blocks: int = 0
) -> int:
    """Hit tokens of one request whose first `shared_tokens` are stored: B*floor(min(shared, L-1)/B).

    Only whole blocks match, and the last token of a prompt is always computed, for its logits.

    >>> matchable_tokens(1000, 1200, 16), matchable_tokens(96, 96, 16), matchable_tokens(97, 97, 16)
    (992, 80, 96)

    Speculative decoding with a drafter that needs hidden states (EAGLE, MTP) holds back a block more on vLLM, a
    token more on SGLang (field reports; neither was measured).

    >>> matchable_tokens(100, 100, 16, withheld_blocks=1), matchable_tokens(2900, 2900, 1600, withheld_blocks=1)
    (80, 0)
    """
    whole_blocks = max(0, min(shared_tokens, prompt_tokens - 1) - withheld_tokens) // block_tokens
    return max(0, whole_blocks - withheld_blocks) * block_tokens


def phase_tally(phase: Phase, shape: SharedPrefix, block_tokens: int, ranks: int = 1) -> Tally:
    """Queried and hit tokens of one phase: every request but the cold ones finds the shared tokens."""
    cold = min(phase.requests, phase.cold_requests.count(shape.groups, ranks))
    prompt_tokens = shape.prompt_tokens if phase.prompt_tokens is None else phase.prompt_tokens
    hit_tokens = matchable_tokens(phase.shared_tokens, prompt_tokens, block_tokens)
    return Tally(phase.requests * prompt_tokens, (phase.requests - cold) * hit_tokens)


@dataclass(frozen=True, slots=True)
class UnbrokenPrediction:
    """What a shared-prefix workload should score, and where the rest of the prefix goes.

    P/(P+S) minus the hit rate is cold_start_points + granularity_points + last_token_points, in percentage points.
    """

    tally: Tally
    cold_requests: int  # the first of each group on each rank
    matchable_prefix_tokens: int  # of each other request
    stranded_tokens: int  # P mod B: the tail of the prefix in a partial block
    last_token_tokens: int  # lost because a prompt's last token is always computed (only where S is 0)
    cold_start_points: float
    granularity_points: float
    last_token_points: float
    below_one_block: bool


def predict_unbroken(shape: SharedPrefix, block_tokens: int, ranks: int = 1) -> UnbrokenPrediction:
    """The unbroken workload, sent one request after another into an empty cache.

    >>> worked_case = predict_unbroken(SharedPrefix(64, 1000, 200), block_tokens=16)
    >>> worked_case.tally, worked_case.stranded_tokens
    (Tally(queried_tokens=76800, hit_tokens=62496), 8)
    >>> round(worked_case.cold_start_points, 3), round(worked_case.granularity_points, 3)
    (1.302, 0.656)

    Raises UsageError where the numbers describe no workload.
    """
    check_shape(shape, block_tokens, ranks)
    tally = total(phase_tally(phase, shape, block_tokens, ranks) for phase in cold_and_warm(shape))
    cold = min(shape.requests, ColdRequests.ALL.count(shape.groups, ranks))
    warm = shape.requests - cold
    matchable = matchable_tokens(shape.prefix_tokens, shape.prompt_tokens, block_tokens)
    stranded = shape.prefix_tokens % block_tokens
    last = shape.prefix_tokens - stranded - matchable

    def points(tokens: int) -> float:
        return 100 * tokens / tally.queried_tokens

    return UnbrokenPrediction(
        tally=tally,
        cold_requests=cold,
        matchable_prefix_tokens=matchable,
        stranded_tokens=stranded,
        last_token_tokens=last,
        cold_start_points=points(cold * shape.prefix_tokens),
        granularity_points=points(warm * stranded),
        last_token_points=points(warm * last),
        below_one_block=shape.prefix_tokens < block_tokens,
    )


def total(tallies: Iterable[Tally]) -> Tally:
    """All of them together: tokens are added, rates are never averaged."""
    return sum(tallies, NOTHING)


def shape_of(requests: int, prefix_tokens: int, suffix_tokens: int, groups: int, per_group: int | None) -> SharedPrefix:
    """The shape of N requests or, where `per_group` is given, of that many in each group.

    Raises UsageError for a `per_group` below 1.
    """
    if per_group is not None and per_group < 1:
        raise UsageError(f"`requests_per_group` is {per_group}", todo="give 1 or more")
    return SharedPrefix(requests if per_group is None else per_group * groups, prefix_tokens, suffix_tokens, groups)


def check_shape(shape: SharedPrefix, block_tokens: int, ranks: int) -> None:
    """Raise UsageError where the numbers describe no workload."""
    least = [
        ("`groups`", shape.groups, 1),
        ("`requests`", shape.requests, 1),
        ("`prefix_tokens`", shape.prefix_tokens, 0),
        ("`suffix_tokens`", shape.suffix_tokens, 0),
        ("`block_tokens`", block_tokens, 1),
        ("`ranks`", ranks, 1),
    ]
    for option, value, minimum in least:
        if value < minimum:
            raise UsageError(f"{option} is {value}", todo=f"give {minimum} or more")
    if shape.prompt_tokens == 0:
        raise UsageError("a prompt of no tokens", todo="give `prefix_tokens` or `suffix_tokens` more than 0")
