"""From an experiment to the list of steps that `measure` walks and `--dry-run` prints."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from hitlab.errors import UsageError
from hitlab.experiment.shape import NO_OPTIONS, BreakOptions, ColdRequests, Phase, SharedPrefix
from hitlab.experiment.steps import Act, Break, Send, Workload
from hitlab.tokens import Prompt

FLOOD_CONCURRENCY = 8  # nobody measures the flood, it only has to be through


def unbroken(shape: SharedPrefix) -> list[Phase]:
    """The first request alone, then the rest."""
    return [
        Phase("cold", 1, shape.prefix_tokens, ColdRequests.ONE),
        Phase("warm", shape.requests - 1, shape.prefix_tokens, ColdRequests.REST),
    ]


def outline(
    how: Break, shape: SharedPrefix, options: BreakOptions, phases: Sequence[Phase] | None = None
) -> list[Act | Send]:
    """Reset, the unbroken phases (cold, warm), then the break's own steps; phases of no requests are left out.

    Raises UsageError for a break outside the prefix.
    """
    if not 0 <= options.at < max(1, shape.prefix_tokens):
        raise UsageError(
            f"--break-at {options.at} is outside the prefix",
            todo=f"give an index from 0 to {shape.prefix_tokens - 1}",
        )
    start: list[Act | Send] = [Act.RESET, *map(Send, unbroken(shape) if phases is None else phases)]
    steps = start + how.steps(shape, options)
    return [step for step in steps if not (isinstance(step, Send) and step.phase.requests == 0)]


def phases_of(
    how: Break, shape: SharedPrefix, options: BreakOptions, phases: Sequence[Phase] | None = None
) -> list[Phase]:
    """The measured phases of a run, in order."""
    return [step.phase for step in outline(how, shape, options, phases) if isinstance(step, Send)]


@dataclass(frozen=True, slots=True)
class Experiment:
    """All a run is made of; with the engine, enough to repeat it."""

    shape: SharedPrefix
    break_mode: str = "none"
    options: BreakOptions = NO_OPTIONS
    seed: int = 0
    vocab_range: tuple[int, int] = (1000, 31_999)
    concurrency: int = 1
    flood_requests: int = 400
    flood_tokens: int = 4096
    cold_by: str = "reset"  # or "fresh-prefix"
    workload: str = "shared-prefix"
    output_tokens: int = 1  # of each measured request
    prompts_per_post: int = 1  # once a phase's first requests have completed


@dataclass(frozen=True, slots=True)
class Batch:
    """Requests to send now: a measured phase, or (without one) a flood."""

    phase: Phase | None
    prompts: Iterable[Prompt]
    requests: int
    alone: int  # so many are sent one after the other before the rest may overlap
    concurrency: int
    output_tokens: int = 1
    prompts_per_post: int = 1


def build(
    outlined: Sequence[Act | Send], workload: Workload, experiment: Experiment, ranks: int
) -> Iterator[Act | Batch]:
    """The steps with their prompts, each made when it is reached.

    A phase's first requests, one for each group and rank, go alone: what they store is there for the rest.
    """
    fixed = experiment.options.fixed
    for index, step in enumerate(outlined):
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
            altered = map(step.alter, plain, workload.draws(requests, fixed))
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
