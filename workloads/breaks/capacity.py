"""Keep the prefix, lose the blocks: a flood of unique prompts evicts it.

Source: lab page section 4.3. Measured: only the first request after the flood misses, so the loss shows in a
one-request probe and never in a whole pass (docs/decisions/0001-measurement-corrects-the-page.md).
"""

from hitlab.experiment.shape import BreakOptions, ColdRequests, Phase, Role, SharedPrefix
from hitlab.experiment.steps import Act, Send

SUMMARY = "a flood of unique prompts evicts the prefix; the next request brings it back"
TAKES: tuple[str, ...] = ()


def steps(shape: SharedPrefix, options: BreakOptions) -> list[Act | Send]:
    """A flood, then one request that probes what it left, then the rest of the pass."""
    return [
        Act.FLOOD,
        Send(Phase("evicted", Role.PROBE, 1, shape.prefix_tokens, ColdRequests.ONE)),
        Send(Phase("recovery", Role.RECOVERY, shape.requests - 1, shape.prefix_tokens, ColdRequests.REST)),
    ]
