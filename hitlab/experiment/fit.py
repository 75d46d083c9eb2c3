"""Whether a plan fits a server: its pool, its longest prompt, its vocabulary."""

from dataclasses import replace

from hitlab.errors import UsageError
from hitlab.experiment.plan import Experiment, Plan
from hitlab.experiment.steps import Act, Send, unaltered


def with_auto_flood(
    experiment: Experiment, capacity_tokens: int, ranks: int, max_model_tokens: int | None = None
) -> Experiment:
    """The experiment with a flood that pushes everything else out of every rank's pool, one prompt more than needed.

    `capacity_tokens` is one rank's pool. Flood prompts are made shorter where the server would refuse them.

    >>> from hitlab.experiment.shape import SharedPrefix
    >>> flooded = with_auto_flood(Experiment(SharedPrefix(64, 1000, 200)), capacity_tokens=32_752, ranks=1)
    >>> flooded.flood_requests, flooded.flood_tokens
    (10, 4096)
    """
    longest = min(capacity_tokens, max_model_tokens or capacity_tokens) - 1
    tokens = min(experiment.flood_tokens, longest)
    if tokens < 1:
        raise UsageError(f"the pool holds {capacity_tokens:,} tokens", todo="give `capacity_blocks` a larger number")
    needed_tokens = capacity_tokens + experiment.shape.prompt_tokens
    return replace(experiment, flood_tokens=tokens, flood_requests=(-(-needed_tokens // tokens) + 1) * ranks)


def warnings(planned: Plan, capacity_tokens: int | None, ranks: int) -> list[str]:
    """What the plan can't show on a pool of so many tokens a rank, in sentences."""
    if capacity_tokens is None:
        return []
    said = []
    experiment, shape = planned.experiment, planned.experiment.shape
    own_tokens = shape.suffix_tokens + experiment.output_tokens - 1
    footprint = shape.groups * shape.prefix_tokens + -(-shape.requests // ranks) * own_tokens
    if footprint > capacity_tokens:
        said.append(
            f"a pass leaves {footprint:,} tokens in a pool of {capacity_tokens:,}: it evicts its own blocks, "
            "so trust the model's prediction, not the closed form"
        )
    flood_tokens = experiment.flood_requests * experiment.flood_tokens
    if planned.floods and flood_tokens < capacity_tokens * ranks:
        enough = with_auto_flood(experiment, capacity_tokens, ranks).flood_requests
        said.append(
            f"a flood of {flood_tokens:,} tokens is smaller than the pool of {capacity_tokens * ranks:,} and may evict "
            f"nothing; `flood_requests` {enough} or auto would"
        )
    return said


def require_ids(planned: Plan) -> None:
    """Raise UsageError where the plan needs more different first tokens than the vocabulary range holds."""
    experiment = planned.experiment
    first, last = experiment.vocab_range
    prefixes = experiment.shape.groups * (1 + sum(step is Act.RESET for step in planned.steps))
    sends = [step for step in planned.steps if isinstance(step, Send)]
    own = sum(step.phase.requests * (2 if step.alter is not unaltered else 1) for step in sends)
    needed = prefixes + own + (experiment.flood_requests if planned.floods else 0)
    if needed > last + 1 - first:
        raise UsageError(
            f"the run needs {needed:,} different first tokens, the vocabulary range has {last + 1 - first:,} ids",
            todo="send fewer requests, a smaller flood, or widen `vocab_range` (never above the model's)",
        )


def longest_prompt(planned: Plan) -> int:
    """Tokens of the longest measured prompt."""
    own = [phase.prompt_tokens or 0 for phase in planned.phases]
    return max(own, default=0) or planned.experiment.shape.prompt_tokens


def require_fits(planned: Plan, limit_tokens: int | None) -> None:
    """Raise UsageError for a prompt that is longer, with its output tokens, than the server takes; None is no limit."""
    if limit_tokens is None:
        return
    if limit_tokens < 2:
        raise UsageError(f"the pool holds {limit_tokens:,} tokens", todo="give `capacity_blocks` a larger number")
    experiment = planned.experiment
    longest = [("`prefix_tokens` plus `suffix_tokens`", longest_prompt(planned), experiment.output_tokens)]
    if planned.floods:
        longest.append(("`flood_tokens`", experiment.flood_tokens, 1))
    for option, length, generated in longest:
        if length + generated > limit_tokens:
            more = "one" if generated == 1 else f"{generated:,}"
            raise UsageError(
                f"{option} is {length:,} tokens, the server takes {limit_tokens - generated:,} and {more} to generate",
                todo="make it shorter, or start the server with a longer model length or a larger pool",
            )
