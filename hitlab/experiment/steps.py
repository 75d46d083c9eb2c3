"""What a workload and a break offer, and the steps that a plan is made of."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from hitlab.experiment.shape import BreakOptions, Phase, SharedPrefix
from hitlab.tokens import Prompt


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
