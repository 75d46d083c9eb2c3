"""From an experiment to the list of steps that `measure` walks and `--dry-run` prints."""

from hitlab.errors import UsageError
from hitlab.types import Act, Break, BreakOptions, Firsts, Phase, Send, SharedPrefix


def outline(how: Break, shape: SharedPrefix, options: BreakOptions) -> list[Act | Send]:
    """Reset, cold, warm, then the break's own steps; phases of no requests are left out.

    Raises UsageError for a break outside the prefix.
    """
    if not 0 <= options.at < max(1, shape.prefix_tokens):
        raise UsageError(
            f"--break-at {options.at} is outside the prefix",
            todo=f"give an index from 0 to {shape.prefix_tokens - 1}",
        )
    start: list[Act | Send] = [
        Act.RESET,
        Send(Phase("cold", 1, shape.prefix_tokens, Firsts.ONE)),
        Send(Phase("warm", shape.requests - 1, shape.prefix_tokens, Firsts.REST)),
    ]
    steps = start + how.steps(shape, options)
    return [step for step in steps if not (isinstance(step, Send) and step.phase.requests == 0)]


def phases_of(how: Break, shape: SharedPrefix, options: BreakOptions) -> list[Phase]:
    """The measured phases of a run, in order."""
    return [step.phase for step in outline(how, shape, options) if isinstance(step, Send)]
