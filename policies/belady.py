"""Belady's MIN, after Belady, "A study of replacement algorithms for a virtual-storage computer", 1966.

Clairvoyant: a miss in a full cache evicts the block whose next use is furthest away. No policy that brings in every
block it accesses has more BLOCK hits. It is a bound on block hits and not proven to be one on prefix hits, where the
blocks of one prefix are worth nothing without those before them.
"""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hitlab.simulation.structures import Bitmap, bitmap_members, clear_bit, highest_set_bit, new_bitmap, rule, set_bit
from hitlab.traces.trace import Trace

NAME = "BELADY"
VARIANT = "clairvoyant: a bound on block hits, not proven optimal for prefix hits"
UNIT: Final = "block"
BOUNDED = True
CURVE = None

SIZE, NOW = 0, 1


class Cache(NamedTuple):
    """For each resident block, a bit is set at the number of the reference that uses it next.

    A block that is not used again has its bit above those of all references, at `references + block`.
    """

    here: NDArray[np.bool_]  # [distinct blocks]
    due: NDArray[np.uint32]  # [distinct blocks], the number of the bit of a resident block
    times: Bitmap  # [references + distinct blocks]
    blocks: NDArray[np.uint32]  # [references]
    next_use: NDArray[np.uint32]  # [references], the reference that uses the block next, or none as in `due`
    at: NDArray[np.uint32]  # [2]: blocks resident, the reference accessed now
    capacity_blocks: int


def new(trace: Trace, capacity_blocks: int) -> Cache:
    """An empty cache for this trace, whose references it will look up in advance."""
    distinct, references = trace.distinct_blocks, trace.blocks.size
    return Cache(
        np.zeros(distinct, np.bool_),
        np.zeros(distinct, np.uint32),
        new_bitmap(references + distinct),
        trace.blocks.view(np.uint32),
        np.empty(references, np.uint32),
        np.zeros(2, np.uint32),
        capacity_blocks,
    )


@rule
def resident(cache: Cache, block: int) -> bool:
    """Whether the block is in the cache."""
    return bool(cache.here[block])


@rule
def access(cache: Cache, block: int) -> None:
    """Move the block's bit to its next use; bring it in if it is new, after an eviction if the cache is full."""
    if cache.at[NOW] == 0:
        foresee(cache)
    if cache.here[block]:
        clear_bit(cache.times, cache.due[block])
    else:
        if cache.at[SIZE] >= cache.capacity_blocks:
            evict(cache)
        cache.at[SIZE] += 1
        cache.here[block] = True
    cache.due[block] = cache.next_use[cache.at[NOW]]
    set_bit(cache.times, cache.due[block])
    cache.at[NOW] += 1


@rule
def foresee(cache: Cache) -> None:
    """Fill `next_use`, from the trace's end to its start; for a block's last reference it is references + block."""
    references = cache.blocks.size
    for block in range(cache.due.size):
        cache.due[block] = references + block
    for back in range(references):
        reference = references - 1 - back
        block = cache.blocks[reference]
        cache.next_use[reference] = cache.due[block]
        cache.due[block] = reference


@rule
def evict(cache: Cache) -> None:
    """Evict the block whose next use is furthest away: the one of the highest bit."""
    time = highest_set_bit(cache.times)
    clear_bit(cache.times, time)
    victim = time - cache.blocks.size if time >= cache.blocks.size else cache.blocks[time]
    cache.here[victim] = False
    cache.at[SIZE] -= 1


def size_blocks(cache: Cache) -> int:
    """Blocks in the cache."""
    return int(cache.at[SIZE])


def invariant_violations(cache: Cache) -> list[str]:
    """More blocks than fit, a wrong count, bits that are not the next uses of the resident blocks."""
    here = np.flatnonzero(cache.here)
    found = []
    if len(here) != cache.at[SIZE]:
        found.append(f"{len(here)} blocks are resident, {cache.at[SIZE]} are counted")
    if len(here) > cache.capacity_blocks:
        found.append(f"{len(here)} blocks are resident, the capacity is {cache.capacity_blocks}")
    if not np.array_equal(np.sort(cache.due[here]), bitmap_members(cache.times)):
        found.append("the bits are not the next uses of the resident blocks")
    return found
