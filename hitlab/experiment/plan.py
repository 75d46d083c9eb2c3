"""From an experiment to its plan: the steps that `measure` walks and `--dry-run` prints."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hitlab.errors import UsageError
from hitlab.experiment.shape import NO_OPTIONS, BreakOptions, Phase, SharedPrefix
from hitlab.experiment.steps import Act, Break, Send, load_break, load_workload
from hitlab.experiment.vocabulary import DEFAULT_RANGE

COLD_BY = ("reset", "fresh-prefix")


@dataclass(frozen=True, slots=True)
class Experiment:
    """What a run sends. With the engine's name and address it is enough to repeat the run."""

    shape: SharedPrefix
    break_mode: str = "none"
    options: BreakOptions = NO_OPTIONS
    seed: int = 0
    vocab_range: tuple[int, int] = DEFAULT_RANGE  # first and last token id that may be sent
    concurrency: int = 1
    flood_requests: int = 400
    flood_tokens: int = 4096  # of each prompt of the flood
    cold_by: str = "reset"  # or "fresh-prefix"
    workload: str = "shared-prefix"
    output_tokens: int = 1  # generated after each measured prompt
    prompts_per_post: int = 1  # once a phase's first requests have completed


@dataclass(frozen=True, slots=True)
class Plan:
    """An experiment as its workload can send it, and the steps it takes."""

    experiment: Experiment
    steps: tuple[Act | Send, ...]

    @property
    def phases(self) -> list[Phase]:
        """The measured phases, in order."""
        return [step.phase for step in self.steps if isinstance(step, Send)]

    @property
    def floods(self) -> bool:
        """Whether a flood is among the steps."""
        return Act.FLOOD in self.steps


def plan(experiment: Experiment, ranks: int) -> Plan:
    """The steps of an experiment on a server of so many data-parallel ranks.

    Raises UsageError where the workload can't have this shape, break or concurrency.
    """
    check_numbers(experiment)
    workload = load_workload(experiment.workload)
    broken = experiment.break_mode.lower() != "none"
    if broken and (workload.SEQUENTIAL or not workload.BREAKABLE):  # the closed form of a break knows no answers
        raise UsageError(f"{experiment.workload} has no breaks", todo="leave out `break_mode`")
    if experiment.concurrency > 1 and workload.SEQUENTIAL:
        raise UsageError(
            f"in {experiment.workload} a prompt holds the answers before it", todo="leave out `concurrency`"
        )
    shape = workload.fit(experiment.shape)
    unbroken = workload.phases(shape, experiment.output_tokens, ranks)
    steps = outline(load_break(experiment.break_mode), shape, experiment.options, unbroken)
    named = replace(experiment, workload=experiment.workload.lower(), break_mode=experiment.break_mode.lower())
    return Plan(replace(named, shape=shape), tuple(steps))


def check_numbers(experiment: Experiment) -> None:
    """Raise UsageError for numbers and words that no experiment has."""
    for name in ("output_tokens", "concurrency", "flood_tokens", "prompts_per_post"):
        if getattr(experiment, name) < 1:
            raise UsageError(f"`{name}` is {getattr(experiment, name)}", todo="give 1 or more")
    if experiment.flood_requests < 0:
        raise UsageError(f"`flood_requests` is {experiment.flood_requests}", todo="give 0 or more")
    if experiment.cold_by not in COLD_BY:
        raise UsageError(f"`cold_by` {experiment.cold_by!r} is unknown", todo=f"choose from {', '.join(COLD_BY)}")


def outline(how: Break, shape: SharedPrefix, options: BreakOptions, unbroken: Sequence[Phase]) -> list[Act | Send]:
    """Reset, the unbroken phases, then the break's own steps; phases of no requests are left out.

    Raises UsageError for a break outside the prefix.
    """
    if not 0 <= options.at < max(1, shape.prefix_tokens):
        raise UsageError(
            f"`break_at` {options.at} is outside the prefix",
            todo=f"give an index from 0 to {shape.prefix_tokens - 1}",
        )
    steps: list[Act | Send] = [Act.RESET, *map(Send, unbroken), *how.steps(shape, options)]
    for step in steps:
        if isinstance(step, Send) and step.phase.requests < 0:
            raise UsageError(
                f"the phase {step.phase.name} of {step.phase.requests} requests", todo="send more requests"
            )
    return [step for step in steps if not (isinstance(step, Send) and step.phase.requests == 0)]
