"""From an experiment to its plan: the steps that `measure` walks and `--dry-run` prints."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from hitlab import families
from hitlab.errors import UsageError
from hitlab.experiment.shape import NO_OPTIONS, BreakOptions, Phase, SharedPrefix
from hitlab.experiment.steps import Act, Break, Send, Workload
from hitlab.experiment.vocabulary import DEFAULT_RANGE
from hitlab.tokens import Prompt

FLOOD_CONCURRENCY = 8  # a flood is not measured, so it may go as fast as it can


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
    workload = families.workload(experiment.workload)
    if experiment.break_mode != "none" and not workload.BREAKABLE:
        raise UsageError(f"{experiment.workload} has no breaks", todo="leave out --break-mode")
    if experiment.concurrency > 1 and workload.SEQUENTIAL:
        raise UsageError(
            f"in {experiment.workload} a prompt holds the answers before it", todo="leave out --concurrency"
        )
    if experiment.output_tokens < 1:
        raise UsageError(f"--output-len is {experiment.output_tokens}", todo="give 1 or more")
    shape = workload.fit(experiment.shape)
    unbroken = workload.phases(shape, experiment.output_tokens, ranks)
    steps = outline(families.break_mode(experiment.break_mode), shape, experiment.options, unbroken)
    return Plan(replace(experiment, shape=shape), tuple(steps))


def outline(how: Break, shape: SharedPrefix, options: BreakOptions, unbroken: Sequence[Phase]) -> list[Act | Send]:
    """Reset, the unbroken phases, then the break's own steps; phases of no requests are left out.

    Raises UsageError for a break outside the prefix.
    """
    if not 0 <= options.at < max(1, shape.prefix_tokens):
        raise UsageError(
            f"--break-at {options.at} is outside the prefix",
            todo=f"give an index from 0 to {shape.prefix_tokens - 1}",
        )
    steps: list[Act | Send] = [Act.RESET, *map(Send, unbroken), *how.steps(shape, options)]
    return [step for step in steps if not (isinstance(step, Send) and step.phase.requests == 0)]


@dataclass(frozen=True, slots=True)
class Batch:
    """Requests to send now: a measured phase, or (without one) a flood."""

    phase: Phase | None
    prompts: Iterable[Prompt]
    requests: int
    alone: int  # this many are sent one after the other before the rest may overlap
    concurrency: int
    output_tokens: int = 1
    prompts_per_post: int = 1


def batches(planned: Plan, workload: Workload, ranks: int) -> Iterator[Act | Batch]:
    """The steps with their prompts, which are made when a step is reached.

    A phase's first requests, one for each group and rank, go alone, so that what they store is there for the rest.
    """
    experiment = planned.experiment
    for index, step in enumerate(planned.steps):
        if step is Act.FLOOD:
            prompts = workload.unrelated(experiment.flood_requests, experiment.flood_tokens)
            yield Batch(None, prompts, experiment.flood_requests, 0, FLOOD_CONCURRENCY)
        elif isinstance(step, Act):
            if experiment.cold_by == "fresh-prefix" and index:
                workload.fresh_prefixes()
            yield step
        else:
            requests = step.phase.requests
            plain = workload.prompts(requests)
            altered = map(step.alter, plain, workload.draws(requests, experiment.options.fixed))
            alone = min(requests, experiment.shape.groups * ranks) if step.first_alone else 0
            yield Batch(
                step.phase,
                altered,
                requests,
                alone,
                experiment.concurrency,
                experiment.output_tokens,
                experiment.prompts_per_post,
            )
