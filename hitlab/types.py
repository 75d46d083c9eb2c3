"""The nouns every other module speaks in. No behaviour beyond their own arithmetic."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Tally:
    """Prompt tokens looked up and found; the same type for a prediction and a measurement.

    >>> measured, predicted = Tally(76_800, 62_496), Tally(76_800, 63_000)
    >>> measured - predicted
    Tally(queried_tokens=0, hit_tokens=-504)
    >>> measured.hit_rate
    0.81375
    >>> Tally(0, 0).hit_rate is None
    True
    """

    queried_tokens: int
    hit_tokens: int

    @property
    def hit_rate(self) -> float | None:
        """Hit tokens over queried tokens, 0 to 1; None when nothing was queried."""
        return self.hit_tokens / self.queried_tokens if self.queried_tokens else None

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(self.queried_tokens + other.queried_tokens, self.hit_tokens + other.hit_tokens)

    def __sub__(self, other: "Tally") -> "Tally":
        return Tally(self.queried_tokens - other.queried_tokens, self.hit_tokens - other.hit_tokens)


NOTHING = Tally(0, 0)


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request's token ids and its cache salt; None is the unsalted namespace."""

    tokens: tuple[int, ...]
    salt: str | None = None


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


class Firsts(Enum):
    """How many requests of a phase are the first of their group on their data-parallel rank, and so miss."""

    NONE = "none"
    ONE = "one"
    REST = "all but one"
    ALL = "all"

    def count(self, groups: int, ranks: int) -> int:
        """The number, for so many groups and ranks.

        >>> [firsts.count(groups=3, ranks=2) for firsts in Firsts]
        [0, 1, 5, 6]
        """
        every = groups * ranks
        return {Firsts.NONE: 0, Firsts.ONE: 1, Firsts.REST: every - 1, Firsts.ALL: every}[self]


@dataclass(frozen=True, slots=True)
class Phase:
    """Requests measured together, and what the closed form needs to know of them.

    `shared_tokens` is the length of the prefix that a request which is not a first finds stored; `prompt_tokens`
    the length of each prompt, where it is not the shape's.
    """

    name: str
    requests: int
    shared_tokens: int
    firsts: Firsts
    prompt_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class BreakOptions:
    """Which token index of the prefix a break changes, and whether every request is broken the same way."""

    at: int = 0
    fixed: bool = False


NO_OPTIONS = BreakOptions()


class Draw(Protocol):
    """Where a break gets what no other request has; one per request, or one per group when fixed."""

    def token(self, unlike: int) -> int:
        """A token id that no other prompt starts with and no other draw gives, different from `unlike`."""
        ...

    def salt(self) -> str:
        """A salt that no other draw gives."""
        ...


class Workload(Protocol):
    """The prompts of a run, made in the order they are sent."""

    def prompts(self, requests: int) -> Iterable[Prompt]:
        """The next requests; one that depends on answers is made when it is its turn."""
        ...

    def learn(self, prompt: Prompt, output: Sequence[int] | None) -> None:
        """What was generated after a prompt of several output tokens; None where the server does not say."""
        ...

    def unrelated(self, requests: int, tokens: int) -> Iterator[Prompt]:
        """Prompts of so many tokens that share nothing with any other."""
        ...

    def draws(self, requests: int, fixed: bool) -> list[Draw]:
        """What a break draws from, for each request."""
        ...

    def fresh_prefixes(self) -> None:
        """From now on other prefixes than before."""
        ...


class WorkloadFile(Protocol):
    """What a file of workloads/ offers: a builder of prompts, and the closed form of its phases."""

    SUMMARY: str
    BREAKABLE: bool  # whether a file of breaks/ can break it

    def fit(self, shape: SharedPrefix) -> SharedPrefix:
        """The shape as it is sent. Raises UsageError for one that can't be."""
        ...

    def phases(self, shape: SharedPrefix, output_tokens: int, ranks: int) -> list[Phase]:
        """What an unbroken run measures, in order, from an empty cache."""
        ...

    def build(self, shape: SharedPrefix, seed: int, vocab_range: tuple[int, int], output_tokens: int) -> Workload:
        """The prompts, the same ones for the same arguments; `vocab_range` is the first and last id to send."""
        ...


Alter = Callable[[Prompt, Draw], Prompt]


def unaltered(prompt: Prompt, draw: Draw) -> Prompt:
    """The prompt as it is."""
    return prompt


class Act(Enum):
    """What a plan does besides sending a phase."""

    RESET = "reset"
    FLOOD = "flood"


@dataclass(frozen=True, slots=True)
class Send:
    """Send a phase's requests, each altered; the first alone, so that it has been stored for the rest."""

    phase: Phase
    alter: Alter = unaltered
    first_alone: bool = True


class Break(Protocol):
    """What a file of workloads/breaks/ offers."""

    SUMMARY: str
    SCORED: tuple[str, ...]  # the phases that together are one pass of N requests, its headline number
    TAKES: tuple[str, ...]  # the fields of BreakOptions that it reads

    def steps(self, shape: SharedPrefix, options: BreakOptions) -> list[Act | Send]:
        """What follows the reset, cold and warm steps every run starts with."""
        ...
