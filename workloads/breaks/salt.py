"""Salt the cache key: identical tokens, nothing shared.

Source: lab page section 4.2 (the salt enters the first block's key, and through the chain all others).
"""

from dataclasses import replace

from hitlab.experiment.shape import BreakOptions, ColdRequests, Phase, Role, SharedPrefix
from hitlab.experiment.steps import Act, Draw, Send
from hitlab.tokens import Prompt

SUMMARY = "another cache salt in every request (or, `break_fixed`, one same salt in all)"
TAKES: tuple[str, ...] = ("fixed",)


def steps(shape: SharedPrefix, options: BreakOptions) -> list[Act | Send]:
    """A salted pass from an empty cache, then another without a reset; one fixed salt warms like any namespace."""

    def add_salt(prompt: Prompt, draw: Draw) -> Prompt:
        return replace(prompt, salt=draw.salt())

    shared_tokens = shape.prefix_tokens if options.fixed else 0
    return [
        Act.RESET,
        Send(Phase("break", Role.BROKEN, shape.requests, shared_tokens, ColdRequests.ALL), add_salt),
        Send(Phase("repeat", Role.REPEAT, shape.requests, shared_tokens, ColdRequests.NONE), add_salt),
    ]
