"""Change one token of the prefix: everything from its block to the end of the prompt is lost.

Source: lab page section 4.1 (block hashes are chained).
"""

from dataclasses import replace

from hitlab.experiment.shape import BreakOptions, ColdRequests, Phase, Role, SharedPrefix
from hitlab.experiment.steps import Act, Draw, Send
from hitlab.tokens import Prompt

SUMMARY = "another token at `break_at` in every request (or, `break_fixed`, one same token in all)"
TAKES: tuple[str, ...] = ("at", "fixed")


def steps(shape: SharedPrefix, options: BreakOptions) -> list[Act | Send]:
    """A changed pass from an empty cache, then another without a reset; only a fixed change is found again."""

    def change_token(prompt: Prompt, draw: Draw) -> Prompt:
        head, old, tail = (
            prompt.tokens[: options.at],
            prompt.tokens[options.at],
            prompt.tokens[options.at + 1 :],
        )
        return replace(prompt, tokens=(*head, draw.token(unlike=old), *tail))

    shared_tokens = shape.prefix_tokens if options.fixed else options.at
    return [
        Act.RESET,
        Send(Phase("break", Role.BROKEN, shape.requests, shared_tokens, ColdRequests.ALL), change_token),
        Send(Phase("repeat", Role.REPEAT, shape.requests, shared_tokens, ColdRequests.NONE), change_token),
    ]
