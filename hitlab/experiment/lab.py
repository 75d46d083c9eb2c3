"""A lab as data: one question, what to predict first, what is swept, and which runs answer it.

A file of labs/ holds one `LAB`. It names no engine: what depends on a server (its block size, its pool) it takes
from `Server`, so that the same lab asks the same question anywhere.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from hitlab import families
from hitlab.experiment.plan import Experiment


@dataclass(frozen=True, slots=True)
class Server:
    """What a lab may know of the server it runs on."""

    block_tokens: int
    capacity_tokens: int | None = None  # of one data-parallel rank; None where the server does not say
    ranks: int = 1
    max_model_tokens: int | None = None

    @property
    def step_tokens(self) -> int:
        """Tokens between two steps of a picture: a block or, where blocks are smaller, 16 tokens.

        Where every token is a block of its own there are no steps, and the picture spans those of another engine.
        """
        return max(16, self.block_tokens)


@dataclass(frozen=True, slots=True)
class Axis:
    """What is swept. `unit` is empty for a count or a name; a `log` scale shows only the values that were run."""

    name: str
    unit: str = ""
    log: bool = False

    @property
    def label(self) -> str:
        """As an axis shows it.

        >>> Axis("prefix length P", "tokens").label
        'prefix length P (tokens)'
        """
        return f"{self.name} ({self.unit})" if self.unit else self.name


@dataclass(frozen=True, slots=True)
class Reading:
    """One point of the picture: the tokens of these phases of a trial, added up.

    A point with a `remark` stands in the table; one that is `aside` only there, for its shape is not the curve's.
    """

    x: float | str
    phases: tuple[str, ...] = ("cold", "warm")
    series: str = ""
    remark: str = ""
    aside: bool = False


@dataclass(frozen=True, slots=True)
class Trial:
    """One run, and the points read off it. A quick lab leaves out those that only make the curve denser."""

    experiment: Experiment
    readings: tuple[Reading, ...]
    dense: bool = False


@dataclass(frozen=True, slots=True)
class Lab:
    """An experiment people can run, and what to think before they do."""

    title: str
    question: str
    predict: str  # what to write down before running
    picture: str  # what the plot should look like
    source: str  # where the question comes from
    axis: Axis
    trials: Callable[[Server], Sequence[Trial]]
    # More points of the closed form, where the trials alone would not show its steps.
    line: Callable[[Server], Sequence[Trial]] | None = None
    # A stretch of the axis that the picture shows larger, in its lower right corner.
    closer: Callable[[Server], tuple[float, float]] | None = None
    # Points are shares of what a cache that never evicts would hit, not of all prompt tokens.
    share_of_possible: bool = False
    # Points below the model's prediction are what the lab is there to show.
    finds_fewer_hits: bool = False
    # For a server that the lab starts itself: its block sizes in turn (None is the engine's own), and its pool.
    block_tokens: tuple[int | None, ...] = (None,)
    pool_tokens: int | None = None


def load_lab(name: str) -> Lab:
    """The lab of this name, in any case. Raises UsageError for an unknown one."""
    return cast(Lab, families.load("labs", name).LAB)
