"""Least recently used: a miss in a full cache evicts the block whose last use is longest ago."""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hitlab.simulation.hit_curve import lru_curve
from hitlab.simulation.structures import rule
from hitlab.traces.trace import Trace

NAME = "LRU"
VARIANT = "a request's blocks are used in order, so its last block is the most recent"
UNIT: Final = "block"
BOUNDED = True
CURVE = lru_curve

ABSENT = np.uint32(2**32 - 1)
NOW, OLDEST, SIZE = 0, 1, 2


class Cache(NamedTuple):
    """The recency queue is the trace itself: a resident block has its place at its last reference so far."""

    blocks: NDArray[np.uint32]  # [references]
    last_use: NDArray[np.uint32]  # [distinct blocks], an index into blocks, or ABSENT
    at: NDArray[np.uint32]  # [3]: the current reference, the oldest that may be a last use, blocks resident
    capacity_blocks: int


def new(trace: Trace, capacity_blocks: int) -> Cache:
    """An empty cache."""
    last_use = np.full(trace.distinct_blocks, ABSENT, np.uint32)
    return Cache(trace.blocks.view(np.uint32), last_use, np.zeros(3, np.uint32), capacity_blocks)


@rule
def resident(cache: Cache, block: int) -> bool:
    """Whether the block was used and has not been evicted since."""
    return bool(cache.last_use[block] != ABSENT)


@rule
def access(cache: Cache, block: int) -> None:
    """Make the block the most recent; bring a new one in, after an eviction if the cache is full."""
    if cache.last_use[block] == ABSENT:
        if cache.at[SIZE] >= cache.capacity_blocks:
            evict(cache)
        cache.at[SIZE] += 1
    cache.last_use[block] = cache.at[NOW]
    cache.at[NOW] += 1


@rule
def evict(cache: Cache) -> None:
    """Evict the least recent block: the first, from the oldest reference on, whose last use is that reference."""
    while cache.last_use[cache.blocks[cache.at[OLDEST]]] != cache.at[OLDEST]:
        cache.at[OLDEST] += 1
    cache.last_use[cache.blocks[cache.at[OLDEST]]] = ABSENT
    cache.at[OLDEST] += 1
    cache.at[SIZE] -= 1


def size_blocks(cache: Cache) -> int:
    """Blocks in the cache."""
    return int(cache.at[SIZE])


def invariant_violations(cache: Cache) -> list[str]:
    """More blocks than fit, a wrong count, a last use that is another block's or before the oldest reference."""
    here = np.flatnonzero(cache.last_use != ABSENT)
    found = []
    if len(here) != cache.at[SIZE]:
        found.append(f"{len(here)} blocks are resident, {cache.at[SIZE]} are counted")
    if len(here) > cache.capacity_blocks:
        found.append(f"{len(here)} blocks are resident, the capacity is {cache.capacity_blocks}")
    if not np.array_equal(cache.blocks[cache.last_use[here]], here):
        found.append("a block's last use is another block's")
    if len(here) and cache.last_use[here].min() < cache.at[OLDEST]:
        found.append("a resident block was passed over")
    return found
