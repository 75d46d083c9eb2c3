"""No break: the workload as it is."""

from hitlab.experiment.shape import BreakOptions, SharedPrefix
from hitlab.experiment.steps import Act, Send

SUMMARY = "no break: a cold first request, then the rest"
TAKES: tuple[str, ...] = ()


def steps(shape: SharedPrefix, options: BreakOptions) -> list[Act | Send]:
    """No step follows cold and warm."""
    return []
