"""No break: the workload as it is."""

from hitlab.types import Act, BreakOptions, Send, SharedPrefix

SUMMARY = "no break: a cold first request, then the rest"
SCORED = ("cold", "warm")
TAKES: tuple[str, ...] = ()


def steps(shape: SharedPrefix, options: BreakOptions) -> list[Act | Send]:
    """Nothing after cold and warm."""
    return []
