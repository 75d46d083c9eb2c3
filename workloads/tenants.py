"""One prefix, used by G tenants in turn, each with a cache salt of its own: what isolation costs.

A salt is part of the first block's key and through the chain of all others, so tenants share as little as if their
prefixes differed: the closed form is that of G groups.
"""

from hitlab.experiment.shape import Phase, SharedPrefix, cold_and_warm
from hitlab.experiment.steps import Workload

SUMMARY = "one prefix for all G tenants, and a cache salt for each"
BREAKABLE = True
SEQUENTIAL = False


def fit(shape: SharedPrefix) -> SharedPrefix:
    """The shape, unchanged."""
    return shape


def phases(shape: SharedPrefix, output_tokens: int, ranks: int) -> list[Phase]:
    """Cold, then warm; each tenant is cold once."""
    return cold_and_warm(shape)


def build(shape: SharedPrefix, seed: int, vocab_range: tuple[int, int], output_tokens: int) -> Workload:
    """The prompts, in the order in which they are sent."""
    from hitlab.experiment.prompts import GroupedPrompts  # arithmetic needs no prompts, and starts sooner without

    salts = [f"hitlab-tenant-{group}" for group in range(shape.groups)]
    return GroupedPrompts(shape, seed, vocab_range, salts)
