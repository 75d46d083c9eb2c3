"""Least frequently used, in O(1): one recency list for each use count, after Shah, Mitra and Matani, 2010.

A block's count starts at 1 when it enters and is forgotten when it leaves (in-cache LFU). Of the blocks used
least often, the one whose last use is longest ago is evicted.
"""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hitlab.simulation.structures import LinkedLists, link, linked_list_members, new_linked_lists, rule, unlink
from hitlab.traces.trace import Trace

NAME = "LFU"
VARIANT = "counts uses while in the cache; the least recent of the least used is evicted"
UNIT: Final = "block"
BOUNDED = True
CURVE = None

SIZE, LOWEST = 0, 1


class Cache(NamedTuple):
    """Use counts, and list i of the resident blocks that were used i times, least recent first."""

    uses: NDArray[np.uint32]  # [distinct blocks], 0 when absent
    lists: LinkedLists
    at: NDArray[np.uint32]  # [2]: blocks resident, the lowest use count among them
    capacity_blocks: int


def new(trace: Trace, capacity_blocks: int) -> Cache:
    """An empty cache."""
    most_uses = int(np.bincount(trace.blocks).max()) if trace.blocks.size else 0
    uses = np.zeros(trace.distinct_blocks, np.uint32)
    lists = new_linked_lists(most_uses + 1, trace.distinct_blocks)
    return Cache(uses, lists, np.zeros(2, np.uint32), capacity_blocks)


@rule
def resident(cache: Cache, block: int) -> bool:
    """Whether the block is in the cache: then it was used at least once."""
    return bool(cache.uses[block] > 0)


@rule
def access(cache: Cache, block: int) -> None:
    """Move the block to the list of one more use; bring a new one in, after an eviction if the cache is full."""
    uses = cache.uses[block]
    if uses > 0:
        unlink(cache.lists, block)
        if uses == cache.at[LOWEST] and is_empty(cache, uses):
            cache.at[LOWEST] += 1  # the block moves to that list now
    else:
        if cache.at[SIZE] >= cache.capacity_blocks:
            evict(cache)
        cache.at[SIZE] += 1
        cache.at[LOWEST] = 1
    cache.uses[block] = uses + 1
    link(cache.lists, cache.uses.size + uses + 1, block)


@rule
def is_empty(cache: Cache, uses: int) -> bool:
    """Whether no resident block was used that often."""
    node = cache.uses.size + uses
    return bool(cache.lists.after[node] == node)


@rule
def evict(cache: Cache) -> None:
    """Evict the least recent of the blocks with the lowest use count."""
    victim = cache.lists.after[cache.uses.size + cache.at[LOWEST]]
    unlink(cache.lists, victim)
    cache.uses[victim] = 0
    cache.at[SIZE] -= 1


def size_blocks(cache: Cache) -> int:
    """Blocks in the cache."""
    return int(cache.at[SIZE])


def invariant_violations(cache: Cache) -> list[str]:
    """More blocks than fit, a wrong count, a block in another list than its uses say, a wrong lowest count."""
    here = np.flatnonzero(cache.uses)
    found = []
    if len(here) != cache.at[SIZE]:
        found.append(f"{len(here)} blocks are resident, {cache.at[SIZE]} are counted")
    if len(here) > cache.capacity_blocks:
        found.append(f"{len(here)} blocks are resident, the capacity is {cache.capacity_blocks}")
    for uses in np.unique(cache.uses[here]):
        listed = linked_list_members(cache.lists, cache.uses.size + int(uses))
        if sorted(listed) != np.flatnonzero(cache.uses == uses).tolist():
            found.append(f"list {uses} does not hold the blocks used {uses} times")
    if len(here) and cache.uses[here].min() != cache.at[LOWEST]:
        found.append(f"the lowest count is {cache.uses[here].min()}, not {cache.at[LOWEST]}")
    return found
