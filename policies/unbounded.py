"""A cache that never evicts, whatever its capacity: the most that any policy can hit."""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hitlab.simulation.hit_curve import unbounded_curve
from hitlab.simulation.structures import rule
from hitlab.traces.trace import Trace

NAME = "UNBOUNDED"
VARIANT = "an upper bound: nothing is ever evicted, whatever the capacity"
UNIT: Final = "block"
BOUNDED = False
CURVE = unbounded_curve


class Cache(NamedTuple):
    """Which blocks were ever accessed."""

    here: NDArray[np.bool_]  # [distinct blocks]


def new(trace: Trace, capacity_blocks: int) -> Cache:
    """An empty cache."""
    return Cache(np.zeros(trace.distinct_blocks, np.bool_))


@rule
def resident(cache: Cache, block: int) -> bool:
    """Whether the block was accessed before."""
    return bool(cache.here[block])


@rule
def access(cache: Cache, block: int) -> None:
    """Keep the block."""
    cache.here[block] = True


def size_blocks(cache: Cache) -> int:
    """Blocks ever accessed."""
    return int(np.count_nonzero(cache.here))


def invariant_violations(cache: Cache) -> list[str]:
    """Nothing can be wrong with it."""
    return []
