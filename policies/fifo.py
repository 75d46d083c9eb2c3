"""First in, first out: a miss in a full cache evicts the block that entered first, used since or not."""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hitlab.simulation.structures import Fifo, length, members, new_fifo, pop, push, rule
from hitlab.traces.trace import Trace

NAME = "FIFO"
VARIANT = "a hit changes nothing"
UNIT: Final = "block"
BOUNDED = True
CURVE = None


class Cache(NamedTuple):
    """The queue, and a mark on each block in it."""

    here: NDArray[np.bool_]  # [distinct blocks]
    queue: Fifo
    capacity_blocks: int


def new(trace: Trace, capacity_blocks: int) -> Cache:
    """An empty cache."""
    distinct = trace.distinct_blocks
    return Cache(np.zeros(distinct, np.bool_), new_fifo(min(capacity_blocks, distinct)), capacity_blocks)


@rule
def resident(cache: Cache, block: int) -> bool:
    """Whether the block is in the queue."""
    return bool(cache.here[block])


@rule
def access(cache: Cache, block: int) -> None:
    """Append a new block; evict the head first if the queue is full."""
    if not cache.here[block]:
        if length(cache.queue) >= cache.capacity_blocks:
            cache.here[pop(cache.queue)] = False
        push(cache.queue, block)
        cache.here[block] = True


def size_blocks(cache: Cache) -> int:
    """Blocks in the queue."""
    return int(length(cache.queue))


def invariant_violations(cache: Cache) -> list[str]:
    """More blocks than fit, a block twice, a mark without its block."""
    blocks = members(cache.queue)
    found = []
    if len(blocks) > cache.capacity_blocks:
        found.append(f"{len(blocks)} blocks are resident, the capacity is {cache.capacity_blocks}")
    if not np.array_equal(np.sort(blocks), np.flatnonzero(cache.here)):
        found.append("the queue does not hold each marked block once")
    return found
