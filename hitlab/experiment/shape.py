"""The shape of a workload and its phases, as the closed form needs to know them."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Protocol, TypeVar


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """The shape of a shared-prefix workload: in each group every prompt is prefix + a suffix of its own."""

    requests: int
    prefix_tokens: int
    suffix_tokens: int
    groups: int = 1

    @property
    def prompt_tokens(self) -> int:
        """Tokens of one prompt."""
        return self.prefix_tokens + self.suffix_tokens


class ColdRequests(Enum):
    """How many requests of a phase are the first of their group on their data-parallel rank, and so miss."""

    NONE = "none"
    ONE = "one"
    REST = "all but one"
    ALL = "all"

    def count(self, groups: int, ranks: int) -> int:
        """The number, for so many groups and ranks.

        >>> [cold_requests.count(groups=3, ranks=2) for cold_requests in ColdRequests]
        [0, 1, 5, 6]
        """
        every = groups * ranks
        return {ColdRequests.NONE: 0, ColdRequests.ONE: 1, ColdRequests.REST: every - 1, ColdRequests.ALL: every}[self]


class Role(StrEnum):
    """What a phase is there to show. A verdict goes by roles and never by names, so a break may name its phases freely.

    Every phase of a run has exactly one role; those of one role are added up.
    """

    UNBROKEN = "unbroken"  # the workload as it is
    BROKEN = "broken"  # the first pass with the break
    REPEAT = "repeat"  # the same break once more, without a reset in between
    PROBE = "probe"  # one request that shows what a flood has left
    RECOVERY = "recovery"  # the rest of the pass after a probe, which brings back what was lost


@dataclass(frozen=True, slots=True)
class Phase:
    """Requests measured together, and what the closed form needs to know of them.

    `shared_tokens` is the length of the stored prefix that every request finds, except the cold ones; `prompt_tokens`
    is the length of each prompt where it is not the shape's.
    """

    name: str
    role: Role
    requests: int
    shared_tokens: int
    cold_requests: ColdRequests
    prompt_tokens: int | None = None


def cold_and_warm(shape: SharedPrefix) -> list[Phase]:
    """A workload as it is: its first request alone, then the rest."""
    return [
        Phase("cold", Role.UNBROKEN, 1, shape.prefix_tokens, ColdRequests.ONE),
        Phase("warm", Role.UNBROKEN, shape.requests - 1, shape.prefix_tokens, ColdRequests.REST),
    ]


class HasRole(Protocol):
    """A phase, planned or measured."""

    @property
    def role(self) -> Role | None:
        """What the phase is there to show."""


AnyPhase = TypeVar("AnyPhase", bound=HasRole)


def scored(phases: Iterable[AnyPhase]) -> list[AnyPhase]:
    """The phases that together are one pass of N requests and make the headline number.

    These are the broken pass, or the probe and the recovery after it; the unbroken phases where nothing is broken.

    >>> shape = SharedPrefix(requests=64, prefix_tokens=1000, suffix_tokens=200)
    >>> broken = Phase("break", Role.BROKEN, 64, 400, ColdRequests.ALL)
    >>> [phase.name for phase in scored([*cold_and_warm(shape), broken])]
    ['break']
    """
    phases = list(phases)
    for roles in ({Role.BROKEN}, {Role.PROBE, Role.RECOVERY}):
        if found := [phase for phase in phases if phase.role in roles]:
            return found
    return [phase for phase in phases if phase.role is Role.UNBROKEN]


@dataclass(frozen=True, slots=True)
class BreakOptions:
    """Which token index of the prefix a break changes, and whether every request is broken the same way."""

    at: int = 0
    fixed: bool = False


NO_OPTIONS = BreakOptions()
