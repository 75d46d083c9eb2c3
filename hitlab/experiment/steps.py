"""What a workload and a break offer, and the steps that a plan is made of."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, cast

from hitlab import families
from hitlab.experiment.shape import BreakOptions, Phase, SharedPrefix
from hitlab.tokens import Prompt


class Draw(Protocol):
    """Where a break gets a token or a salt that no other request has.

    Each request has a draw of its own, or, where the break is the same in all requests, each group has one.
    """

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
        """Take note of the token ids generated after this prompt; None where the server does not return them."""
        ...

    def unrelated(self, requests: int, tokens: int) -> Iterator[Prompt]:
        """This many prompts of this many tokens each, which share nothing with any other prompt."""
        ...

    def draws(self, requests: int, fixed: bool) -> list[Draw]:
        """The draw of each of the last `requests` prompts; `fixed` gives those of one group the same draw."""
        ...

    def fresh_prefixes(self) -> None:
        """Use other prefixes from now on."""
        ...


class WorkloadFile(Protocol):
    """What a file of workloads/ offers: a builder of prompts, and the closed form of its phases."""

    SUMMARY: str
    BREAKABLE: bool  # whether a file of breaks/ can break it
    SEQUENTIAL: bool  # whether a prompt holds the answers before it, so that requests can't overlap

    def fit(self, shape: SharedPrefix) -> SharedPrefix:
        """The shape that is really sent. Raises UsageError where this workload can't have it."""
        ...

    def phases(self, shape: SharedPrefix, output_tokens: int, ranks: int) -> list[Phase]:
        """The phases of an unbroken run, in order, from an empty cache."""
        ...

    def build(self, shape: SharedPrefix, seed: int, vocab_range: tuple[int, int], output_tokens: int) -> Workload:
        """The prompts, the same for the same arguments. `vocab_range` is the first and the last id that may be sent."""
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
    """Send a phase's requests, each changed by `alter`.

    With `first_alone` the first request of each group completes before the others are sent, so that they find it.
    """

    phase: Phase
    alter: Alter = unaltered
    first_alone: bool = True


class Break(Protocol):
    """What a file of workloads/breaks/ offers."""

    SUMMARY: str
    TAKES: tuple[str, ...]  # the fields of BreakOptions that it reads

    def steps(self, shape: SharedPrefix, options: BreakOptions) -> list[Act | Send]:
        """What follows the reset, cold and warm steps every run starts with; each phase says its role."""
        ...


def load_workload(name: str) -> WorkloadFile:
    """The workload of this name, in any case. Raises UsageError for an unknown one."""
    return cast(WorkloadFile, families.load("workloads", name))


def load_break(name: str) -> Break:
    """The way to break a cache of this name, in any case. Raises UsageError for an unknown one."""
    return cast(Break, families.load("workloads.breaks", name))
