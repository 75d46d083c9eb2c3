"""Measured beside predicted: what the difference says, in one word and one sentence."""

from collections.abc import Sequence
from dataclasses import dataclass

from hitlab.experiment.closed_form import matchable_tokens, phase_tally
from hitlab.experiment.shape import ColdRequests, Phase, SharedPrefix
from hitlab.results.run_result import Check, PhaseResult
from hitlab.tokens import Tally

# The phases after a break; all others are of the workload as it is.
_BROKEN = {"break", "repeat", "evicted", "recovery", "burst"}
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
    by_name = {phase.name: phase for phase in phases}
    wrong = [phase for phase in phases if not phase.agrees]
    if any(phase.name not in _BROKEN for phase in wrong):
        return Verdict("cannot tell", _difference(wrong[0], shape, block_tokens))
    whole = matchable_tokens(shape.prefix_tokens, shape.prompt_tokens, block_tokens)
    if not whole and not any(phase.closed_form_hit_tokens or phase.hit_tokens for phase in phases):
        return Verdict("below one block", _never_hits(shape, block_tokens))
    verdict = _after_break(by_name, whole) or _healthy(by_name)
    if wrong:
        return Verdict(verdict.word, f"{verdict.sentence} But {_difference(wrong[0], shape, block_tokens)}")
    return verdict


def alike_block_sizes(shape: SharedPrefix, block_tokens: int, phases: Sequence[Phase] = ()) -> list[int]:
    """Powers of two that the workload cannot tell from this block size, because they match as many tokens.

    Of all its phases; without any, of a warm request.

    >>> alike_block_sizes(SharedPrefix(64, 1000, 200), 16)
    [32]
    """

    def tallies(size: int) -> list[Tally]:
        return [phase_tally(phase, shape, size) for phase in phases or [warm]]

    warm = Phase("warm", 1, shape.prefix_tokens, ColdRequests.NONE)
    return [size for size in _SIZES if size != block_tokens and tallies(size) == tallies(block_tokens)]


def _after_break(by_name: dict[str, PhaseResult], whole: int) -> Verdict | None:
    evicted, recovery = by_name.get("evicted"), by_name.get("recovery")
    if evicted:
        if evicted.hit_tokens >= whole:
            return Verdict("healthy", "The flood evicted nothing: the first request after it hit in full.")
        if recovery and recovery.hit_tokens:
            return Verdict(
                "evicted",
                f"After the flood one request hit {evicted.hit_tokens:,} tokens instead of {whole:,}; the ones "
                "after it hit again with nothing changed: the prefix was right, its blocks were gone.",
            )
        if not recovery or not recovery.model_hit_tokens:
            return Verdict("cannot tell", "Too few requests to see a prefix come back after the flood: send more.")
        return Verdict("cannot tell", "After the flood nothing hits any more, not even a request's repeat.")
    broken, repeat = by_name.get("break"), by_name.get("repeat")
    if broken and repeat:
        each = repeat.hit_tokens / repeat.requests
        if repeat.hit_tokens < repeat.requests * whole:
            share = "the rest" if repeat.hit_tokens else "any"
            return Verdict(
                "key broken",
                f"The second pass hits {each:,.0f} of {whole:,} matchable prefix tokens a request, as the first "
                f"did: requests do not share {share} of their key, and no warming brings it back.",
            )
        if broken.hit_tokens < (broken.requests - 1) * whole:
            return Verdict("healthy", "The broken key warmed like a new one: its second pass hits in full.")
        return Verdict(
            "healthy", "The break cost nothing that could have hit, or made a key that warms like any other."
        )
    return None


def _never_hits(shape: SharedPrefix, block_tokens: int) -> str:
    if shape.prefix_tokens < block_tokens:
        why = f"is shorter than one block of {block_tokens:,}"
    else:
        why = (
            f"is a whole prompt whose last token is always computed, which leaves less than a block of {block_tokens:,}"
        )
    return f"A prefix of {shape.prefix_tokens:,} tokens {why}: it can never hit, and nothing is wrong."


def _healthy(by_name: dict[str, PhaseResult]) -> Verdict:
    parts = [phase for name, phase in by_name.items() if name not in _BROKEN]
    hit, queried = sum(part.hit_tokens for part in parts), sum(part.queried_tokens for part in parts)
    rate = 100 * hit / queried if queried else 0.0
    return Verdict("healthy", f"{hit:,} of {queried:,} prompt tokens hit ({rate:.4f} %), as predicted.")


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
