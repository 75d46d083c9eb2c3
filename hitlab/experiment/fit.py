"""Whether an experiment fits a server: its pool, its longest prompt, its vocabulary."""

from collections.abc import Sequence

from hitlab.errors import UsageError
from hitlab.experiment.plan import Experiment
from hitlab.experiment.shape import SharedPrefix
from hitlab.experiment.steps import Act, Send, unaltered


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
