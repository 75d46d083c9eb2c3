"""Measured beside predicted: what the difference says, in one word and one sentence."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hitlab.experiment.closed_form import matchable_tokens, phase_tally, total
from hitlab.experiment.shape import ColdRequests, Phase, Role, SharedPrefix
from hitlab.results.run_result import Check, PhaseResult
from hitlab.tokens import Tally

_SIZES = [2**power for power in range(11)]  # block and page sizes in use


@dataclass(frozen=True, slots=True)
class Verdict:
    """`word` is one of healthy, key broken, evicted, below one block, caching off, cannot tell."""

    word: str
    sentence: str


def judge(
    shape: SharedPrefix,
    block_tokens: int,
    caching: bool | None,
    phases: Sequence[PhaseResult],
    checks: Sequence[Check],
) -> Verdict:
    """Name what happened from the measured numbers; whether they were predicted is a second question.

    A broken key and an evicted prefix look the same in one pass. The discriminator is the second one: it
    recovers what was evicted, and never what is broken (lab page, section 7).
    """
    if caching is False:
        return Verdict("caching off", "The engine says prefix caching is disabled: no prompt can hit.")
    failed = [check for check in checks if not check.ok]
    if failed:
        return Verdict("cannot tell", f"The run can't be trusted, {failed[0].name}: {failed[0].detail.rstrip('.')}.")
    wrong = [phase for phase in phases if not phase.agrees]
    if any(phase.role is Role.UNBROKEN for phase in wrong):
        return Verdict("cannot tell", _difference(wrong[0], shape, block_tokens))
    whole = matchable_tokens(shape.prefix_tokens, shape.prompt_tokens, block_tokens)
    if not whole and not any(phase.closed_form_hit_tokens or phase.hit_tokens for phase in phases):
        return Verdict("below one block", _never_hits(shape, block_tokens))
    by_role = {role: _Passed.of(phases, role) for role in Role}
    verdict = _after_flood(by_role, whole) or _after_break(by_role, whole) or _healthy(by_role[Role.UNBROKEN])
    if wrong:
        return Verdict(verdict.word, f"{verdict.sentence} But {_difference(wrong[0], shape, block_tokens)}")
    return verdict


def alike_block_sizes(shape: SharedPrefix, block_tokens: int, phases: Sequence[Phase] = ()) -> list[int]:
    """Powers of two that the workload cannot tell from this block size, because they match as many tokens.

    They match as many in each of `phases` or, where none are given, in a warm request.

    >>> alike_block_sizes(SharedPrefix(64, 1000, 200), 16)
    [32]
    """

    def tallies(size: int) -> list[Tally]:
        return [phase_tally(phase, shape, size) for phase in phases or [warm]]

    warm = Phase("warm", Role.UNBROKEN, 1, shape.prefix_tokens, ColdRequests.NONE)
    return [size for size in _SIZES if size != block_tokens and tallies(size) == tallies(block_tokens)]


@dataclass(frozen=True, slots=True)
class _Passed:
    """All phases of one role, added up; without requests where a run has none."""

    requests: int
    tally: Tally
    predicted_tokens: int  # hits, by the cache model

    @classmethod
    def of(cls, phases: Sequence[PhaseResult], role: Role) -> "_Passed":
        own = [phase for phase in phases if phase.role is role]
        return cls(
            sum(phase.requests for phase in own),
            total(Tally(phase.queried_tokens, phase.hit_tokens) for phase in own),
            sum(phase.model_hit_tokens for phase in own),
        )

    @property
    def hit_tokens(self) -> int:
        return self.tally.hit_tokens


def _after_flood(by_role: Mapping[Role, _Passed], whole: int) -> Verdict | None:
    """What a probe and the recovery after it say; None without a probe. `whole` is a request's matchable prefix."""
    probe, recovery = by_role[Role.PROBE], by_role[Role.RECOVERY]
    if not probe.requests:
        return None
    if probe.hit_tokens >= probe.requests * whole:
        return Verdict("healthy", "The flood evicted nothing: the first request after it hit in full.")
    if recovery.hit_tokens:
        return Verdict(
            "evicted",
            f"After the flood {_requests(probe.requests)} hit {probe.hit_tokens:,} tokens instead of "
            f"{probe.requests * whole:,}; the ones "
            "after it hit again with nothing changed: the prefix was right, its blocks were gone.",
        )
    if not recovery.predicted_tokens:
        return Verdict("cannot tell", "Too few requests to see a prefix come back after the flood: send more.")
    return Verdict("cannot tell", "After the flood nothing hits any more, not even a request's repeat.")


def _requests(number: int) -> str:
    return "one request" if number == 1 else f"{number:,} requests"


def _after_break(by_role: Mapping[Role, _Passed], whole: int) -> Verdict | None:
    """What a broken pass and its repeat say; None without both. `whole` is a request's matchable prefix."""
    broken, repeat = by_role[Role.BROKEN], by_role[Role.REPEAT]
    if not (broken.requests and repeat.requests):
        return None
    if repeat.hit_tokens < repeat.requests * whole:
        each = repeat.hit_tokens / repeat.requests
        share = "the rest" if repeat.hit_tokens else "any"
        return Verdict(
            "key broken",
            f"The second pass hits {each:,.0f} of {whole:,} matchable prefix tokens a request, as the first "
            f"did: requests do not share {share} of their key, and no warming brings it back.",
        )
    if broken.hit_tokens < (broken.requests - 1) * whole:
        return Verdict("healthy", "The broken key warmed like a new one: its second pass hits in full.")
    return Verdict("healthy", "The break cost nothing that could have hit, or made a key that warms like any other.")


def _never_hits(shape: SharedPrefix, block_tokens: int) -> str:
    if shape.prefix_tokens < block_tokens:
        why = f"is shorter than one block of {block_tokens:,}"
    else:
        why = (
            f"is a whole prompt whose last token is always computed, which leaves less than a block of {block_tokens:,}"
        )
    return f"A prefix of {shape.prefix_tokens:,} tokens {why}: it can never hit, and nothing is wrong."


def _healthy(unbroken: _Passed) -> Verdict:
    tally = unbroken.tally
    rate = 100 * (tally.hit_rate or 0.0)
    hit = f"{tally.hit_tokens:,} of {tally.queried_tokens:,} prompt tokens hit ({rate:.4f} %)"
    return Verdict("healthy", f"{hit}, as predicted.")


def _difference(phase: PhaseResult, shape: SharedPrefix, block_tokens: int) -> str:
    more = "more" if phase.error_tokens > 0 else "fewer"
    sentence = (
        f"{phase.name} hit {abs(phase.error_tokens):,} tokens {more} than predicted "
        f"({phase.hit_tokens:,}, not {phase.model_hit_tokens:,})"
    )
    if not phase.hit_tokens:
        return f"{sentence}: nothing hits at all. Is every request salted, or routed to another replica?"
    return f"{sentence}{_likely_cause(phase, shape, block_tokens)}."


def _likely_cause(phase: PhaseResult, shape: SharedPrefix, block_tokens: int) -> str:
    """What would make every request that should hit the whole prefix hit as much as was measured."""

    def whole(size: int, withheld_tokens: int = 0, withheld_blocks: int = 0) -> int:
        return matchable_tokens(shape.prefix_tokens, shape.prompt_tokens, size, withheld_tokens, withheld_blocks)

    hitting = phase.closed_form_hit_tokens // (whole(block_tokens) or 1)  # requests that hit the whole prefix
    if not hitting:
        return ""
    fits = [size for size in _SIZES if size != block_tokens and whole(size) * hitting == phase.hit_tokens]
    if fits:
        return f"; that is what a block size of {' or '.join(map(str, fits))} gives, not {block_tokens}"
    if phase.hit_tokens in (whole(block_tokens, 1) * hitting, whole(block_tokens, 0, 1) * hitting):
        return "; that is what speculative decoding with a drafter like EAGLE holds back"
    return ""
