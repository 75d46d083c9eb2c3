"""The shape of a workload and its phases, as the closed form needs to know them."""

from dataclasses import dataclass
from enum import Enum


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


@dataclass(frozen=True, slots=True)
class Phase:
    """Requests measured together, and what the closed form needs to know of them.

    `shared_tokens` is the length of the prefix that a request that is not cold finds stored; `prompt_tokens`
    the length of each prompt, where it is not the shape's.
    """

    name: str
    requests: int
    shared_tokens: int
    cold_requests: ColdRequests
    prompt_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class BreakOptions:
    """Which token index of the prefix a break changes, and whether every request is broken the same way."""

    at: int = 0
    fixed: bool = False


NO_OPTIONS = BreakOptions()
