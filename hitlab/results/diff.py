"""Two results side by side: what differs in what was asked, and in the tokens of each phase."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from hitlab.results.run_result import PhaseResult, Result

# Of the engine, what a run asks for or finds; where it happened to be is no difference.
_NOT_ASKED = {"title", "base_url"}


class Setting(msgspec.Struct, frozen=True):
    """A setting that differs between two results; None where a result does not have it."""

    name: str
    a: Any
    b: Any


class Side(msgspec.Struct, frozen=True):
    """What one of the two results measured in a phase."""

    requests: int
    queried_tokens: int
    hit_tokens: int
    hit_rate: float | None


class PhasePair(msgspec.Struct, frozen=True):
    """A phase as both results measured it; None for a result that does not have it."""

    name: str
    a: Side | None
    b: Side | None
    same_prompts: bool

    @property
    def same_tokens(self) -> bool:
        """Whether both have it and their counters moved by the same tokens."""
        return self.a is not None and self.a == self.b


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """`asked` holds only what differs, `phases` every phase of either result, in order."""

    asked: list[Setting]
    phases: list[PhasePair]
    a_verdict: str
    b_verdict: str
    a_valid: bool
    b_valid: bool

    @property
    def same_tokens(self) -> bool:
        """Whether every phase is in both and moved the counters alike."""
        return all(phase.same_tokens for phase in self.phases)


def difference(a: Result, b: Result) -> Difference:
    """Compare two results."""
    left, right = dict(_settings(a)), dict(_settings(b))
    phases_a = {phase.name: phase for phase in a.phases}
    phases_b = {phase.name: phase for phase in b.phases}
    return Difference(
        asked=[
            Setting(name, left.get(name), right.get(name))
            for name in {**left, **right}
            if left.get(name) != right.get(name)
        ],
        phases=[_pair(name, phases_a.get(name), phases_b.get(name)) for name in {**phases_a, **phases_b}],
        a_verdict=a.verdict,
        b_verdict=b.verdict,
        a_valid=a.valid,
        b_valid=b.valid,
    )


def _settings(result: Result) -> Iterator[tuple[str, Any]]:
    engine = msgspec.structs.asdict(result.engine)
    yield from ((f"engine.{name}", value) for name, value in engine.items() if name not in _NOT_ASKED)
    yield from _flat(msgspec.to_builtins(result.experiment), "")


def _flat(document: Mapping[str, object], prefix: str) -> Iterator[tuple[str, Any]]:
    """Nested settings under dotted names, such as shape.groups; a list counts as one value."""
    for name, value in document.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", list(value) if isinstance(value, tuple) else value


def _pair(name: str, a: PhaseResult | None, b: PhaseResult | None) -> PhasePair:
    same_prompts = a is not None and b is not None and a.prompts_sha256 == b.prompts_sha256
    return PhasePair(name, _side(a), _side(b), same_prompts)


def _side(phase: PhaseResult | None) -> Side | None:
    if phase is None:
        return None
    return Side(phase.requests, phase.queried_tokens, phase.hit_tokens, phase.hit_rate)
