"""No broken key: all requests at once from an empty cache, not even the first alone.

Source: lab page section 5 ("requests overlapped"). Measured: requests that SGLang prefills in one batch do not find
each other; on vLLM at default settings nothing is lost (docs/decisions/0001-measurement-corrects-the-page.md).
"""

from hitlab.experiment.shape import BreakOptions, ColdRequests, Phase, Role, SharedPrefix
from hitlab.experiment.steps import Act, Send

SUMMARY = "all requests at once from an empty cache, as many as `concurrency`"
TAKES: tuple[str, ...] = ()


def steps(shape: SharedPrefix, options: BreakOptions) -> list[Act | Send]:
    """Reset, then all requests, which may overlap from the first on; the prediction is that of requests in turn."""
    return [
        Act.RESET,
        Send(Phase("burst", Role.BROKEN, shape.requests, shape.prefix_tokens, ColdRequests.ALL), first_alone=False),
    ]
