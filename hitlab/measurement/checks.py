"""The checks that make a run valid: their names, what each says when it holds, and the ledger of one run."""

from collections.abc import Iterable
from enum import StrEnum

from hitlab.client.dialect import ServerFacts
from hitlab.flags import in_flags
from hitlab.measurement.asked import Asked
from hitlab.results.run_result import Check


class CheckName(StrEnum):
    """Every check, in the order in which they are listed."""

    BLOCK_SIZE = "block size"
    POOL_SIZE = "pool size in blocks"
    RANKS = "data-parallel ranks"
    CACHING_ON = "prefix caching on"
    RESET_CONFIRMED = "reset confirmed"
    COLD_START = "cold start"
    EVERY_REQUEST_ANSWERED = "every request answered"
    PROMPT_LENGTHS_KEPT = "prompt lengths kept"
    COUNTERS_READABLE = "counters readable"
    COUNTERS_NEVER_FELL = "counters never fell"
    NO_PREEMPTION = "no preemption"
    QUERIES_ADD_UP = "queries add up"
    RESPONSES_AGREE = "responses agree with counters"
    RUN_COMPLETE = "run complete"


# What a check says when it holds; those about the server's own words say what the server says.
_HOLDS = {
    CheckName.RESET_CONFIRMED: "the server's answer, and a prompt that hit nothing after it",
    CheckName.COLD_START: "the first request after each reset hit nothing",
    CheckName.EVERY_REQUEST_ANSWERED: "no request failed",
    CheckName.PROMPT_LENGTHS_KEPT: "every response counted as many prompt tokens as were sent",
    CheckName.COUNTERS_READABLE: "every reading of the counters succeeded",
    CheckName.COUNTERS_NEVER_FELL: "no restart, no other server",
    CheckName.NO_PREEMPTION: "no request was computed twice",
    CheckName.QUERIES_ADD_UP: "the counters moved by exactly the tokens sent",
    CheckName.RESPONSES_AGREE: "the cached tokens that responses report sum to the counters' hits",
}


class Checks:
    """The checks of one run: which were made, and which failed and why."""

    def __init__(self, given: Iterable[Check] = ()) -> None:
        """`given` are checks made before the run, of what the server says of itself."""
        self._given = list(given)
        self._made: set[CheckName] = set()
        self._failed: dict[CheckName, str] = {}

    def made(self, *names: CheckName) -> None:
        """These checks were made; they hold unless they fail."""
        self._made.update(names)

    def fail(self, name: CheckName, detail: str) -> None:
        """A check failed. The first reason is kept, because later ones often follow from it."""
        self._failed.setdefault(name, in_flags(detail))

    def forgive(self, *names: CheckName) -> None:
        """Forget failures that the run does not count, such as those before its baseline."""
        for name in names:
            self._failed.pop(name, None)

    def __contains__(self, name: CheckName) -> bool:
        return name in self._made

    def listed(self, complete: bool) -> list[Check]:
        """All checks in order; those that nothing put to the test are left out."""
        own = [
            Check(name=name, ok=name not in self._failed, detail=self._failed.get(name, _HOLDS[name]))
            for name in _HOLDS
            if name in self._made or name in self._failed
        ]
        if not complete:
            own.append(Check(name=CheckName.RUN_COMPLETE, ok=False, detail="the run was cut short"))
        return self._given + own


def fact_checks(facts: ServerFacts, asked: Asked) -> list[Check]:
    """What the server says of itself, against what the user believes."""
    caching = {True: "the engine says it is", False: "the engine says it is off", None: "the engine does not say"}
    return [
        _agreement(CheckName.BLOCK_SIZE, asked.block_tokens, facts.block_tokens, required=True),
        _agreement(CheckName.POOL_SIZE, asked.capacity_blocks, facts.capacity_blocks),
        _agreement(CheckName.RANKS, asked.ranks, facts.ranks),
        Check(name=CheckName.CACHING_ON, ok=facts.caching is not False, detail=caching[facts.caching]),
    ]


def _agreement(name: CheckName, believed: int | None, said: int | None, required: bool = False) -> Check:
    if said is None:
        trust = "" if believed is None else f", {believed:,} taken on trust"
        return Check(name=name, ok=not required, detail=f"the engine does not say{trust}")
    if believed is not None and believed != said:
        return Check(name=name, ok=False, detail=f"you said {believed:,}, the engine says {said:,}, and that was used")
    return Check(name=name, ok=True, detail=f"{said:,}, by the engine's own word")
