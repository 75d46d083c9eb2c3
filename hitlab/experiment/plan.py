"""From an experiment to the list of steps that `measure` walks and `--dry-run` prints."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from hitlab.errors import UsageError
from hitlab.types import (
    NO_OPTIONS,
    Act,
    Break,
    BreakOptions,
    Firsts,
    Phase,
    Prompt,
    Send,
    SharedPrefix,
    Workload,
    unaltered,
)

FLOOD_CONCURRENCY = 8  # nobody measures the flood, it only has to be through


def unbroken(shape: SharedPrefix) -> list[Phase]:
    """The first request alone, then the rest."""
    return [
        Phase("cold", 1, shape.prefix_tokens, Firsts.ONE),
        Phase("warm", shape.requests - 1, shape.prefix_tokens, Firsts.REST),
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


def auto_flood_requests(capacity_tokens: int, ranks: int, experiment: Experiment) -> int:
    """Flood prompts that push everything else out of every rank's pool, with one to spare a rank.

    >>> auto_flood_requests(32_752, 1, Experiment(SharedPrefix(64, 1000, 200)))
    10
    """
    needed = capacity_tokens + experiment.shape.prompt_tokens
    return (-(-needed // experiment.flood_tokens) + 1) * ranks


def warnings(
    experiment: Experiment, outlined: Sequence[Act | Send], capacity_tokens: int | None, ranks: int
) -> list[str]:
    """What the plan cannot show on this pool, said before it runs."""
    if capacity_tokens is None:
        return []
    said = []
    shape = experiment.shape
    own_tokens = shape.suffix_tokens + experiment.output_tokens - 1
    footprint = shape.groups * shape.prefix_tokens + -(-shape.requests // ranks) * own_tokens
    if footprint > capacity_tokens:
        said.append(
            f"a pass leaves {footprint:,} tokens in a pool of {capacity_tokens:,}: it evicts its own blocks, "
            "so trust the model's prediction, not the closed form"
        )
    flood = experiment.flood_requests * experiment.flood_tokens
    if Act.FLOOD in outlined and flood < capacity_tokens * ranks:
        enough = auto_flood_requests(capacity_tokens, ranks, experiment)
        said.append(
            f"a flood of {flood:,} tokens is smaller than the pool of {capacity_tokens * ranks:,} and may evict "
            f"nothing; --flood-requests {enough} or auto would"
        )
    return said


def require_ids(experiment: Experiment, outlined: Sequence[Act | Send]) -> None:
    """Raise UsageError, before anything is sent, for more different first tokens than the vocabulary range holds."""
    first, last = experiment.vocab_range
    phases = [step for step in outlined if isinstance(step, Send)]
    prefixes = experiment.shape.groups * (1 + sum(step is Act.RESET for step in outlined))
    own = sum(step.phase.requests * (2 if step.alter is not unaltered else 1) for step in phases)
    needed = prefixes + own + (experiment.flood_requests if Act.FLOOD in outlined else 0)
    if needed > last + 1 - first:
        raise UsageError(
            f"the run needs {needed:,} different first tokens, the vocabulary range has {last + 1 - first:,} ids",
            todo="send fewer requests, a smaller flood, or widen --vocab-range (never above the model's)",
        )


def longest_prompt(shape: SharedPrefix, outlined: Sequence[Act | Send]) -> int:
    """Tokens of the longest measured prompt."""
    own = [step.phase.prompt_tokens or 0 for step in outlined if isinstance(step, Send)]
    return max(own, default=0) or shape.prompt_tokens


def require_fits(experiment: Experiment, outlined: Sequence[Act | Send], limit_tokens: int | None) -> None:
    """Raise UsageError for a prompt longer than the server takes, counting its output tokens."""
    output_tokens = experiment.output_tokens
    longest = [("--prefix-len plus --suffix-len", longest_prompt(experiment.shape, outlined), output_tokens)]
    if Act.FLOOD in outlined:
        longest.append(("--flood-len", experiment.flood_tokens, 1))
    if limit_tokens is not None and limit_tokens < 2:
        raise UsageError(f"the pool holds {limit_tokens:,} tokens", todo="give --capacity-blocks a larger number")
    for option, length, generated in longest:
        if limit_tokens is not None and length + generated > limit_tokens:
            more = "one" if generated == 1 else f"{generated:,}"
            raise UsageError(
                f"{option} is {length:,} tokens, the server takes {limit_tokens - generated:,} and {more} to generate",
                todo="make it shorter, or start the server with a longer model length or a larger pool",
            )
