"""ARC, after Megiddo and Modha, "ARC: a self-tuning, low overhead replacement cache", FAST 2003, figure 4.

T1 holds blocks used once, T2 blocks used again, both least recent first. B1 and B2 remember blocks evicted from them,
without holding them; all four lists together have at most twice the capacity. A request for a block in B1 raises
T1's target size, one for a block in B2 lowers it. The target is
a real number, as in the paper, not rounded.
"""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hitlab.simulation.structures import LinkedLists, link, linked_list_members, new_linked_lists, rule, unlink
from hitlab.traces.trace import Trace

NAME = "ARC"
VARIANT = "as published; the target size of T1 is a real number"
UNIT: Final = "block"
BOUNDED = True
CURVE = None

ABSENT, B1, B2, T1, T2 = range(5)


class Cache(NamedTuple):
    """The four lists, and for each block the one that holds it."""

    where: NDArray[np.uint8]  # [distinct blocks]
    lists: LinkedLists  # of the five states; that of ABSENT stays empty
    sizes: NDArray[np.uint32]  # [5], by list
    target: NDArray[np.float64]  # [1], of T1
    capacity_blocks: int


def new(trace: Trace, capacity_blocks: int) -> Cache:
    """An empty cache."""
    distinct = trace.distinct_blocks
    lists = new_linked_lists(5, distinct)
    return Cache(np.zeros(distinct, np.uint8), lists, np.zeros(5, np.uint32), np.zeros(1), capacity_blocks)


@rule
def resident(cache: Cache, block: int) -> bool:
    """Whether the block is in T1 or T2."""
    return bool(cache.where[block] >= T1)


@rule
def access(cache: Cache, block: int) -> None:
    """Make the block the most recent of T2, or of T1 if nothing remembers it; make room as the paper's cases say."""
    where = cache.where[block]
    if where == ABSENT:
        make_room_for_new(cache)
        put(cache, T1, block)
        return
    if where == B1:
        step = max(1.0, cache.sizes[B2] / cache.sizes[B1])
        cache.target[0] = min(float(cache.capacity_blocks), cache.target[0] + step)
    elif where == B2:
        step = max(1.0, cache.sizes[B1] / cache.sizes[B2])
        cache.target[0] = max(0.0, cache.target[0] - step)
    take(cache, block)
    if where <= B2:
        replace(cache, where == B2)
    put(cache, T2, block)


@rule
def make_room_for_new(cache: Cache) -> None:
    """Case IV of the paper: keep T1 and B1 together within the capacity, and all four lists within twice of it."""
    sizes = cache.sizes
    if sizes[T1] + sizes[B1] == cache.capacity_blocks:
        if sizes[B1] == 0:
            take(cache, oldest(cache, T1))
        else:
            take(cache, oldest(cache, B1))
            replace(cache, False)
    elif sizes[T1] + sizes[T2] >= cache.capacity_blocks:
        if sizes[T1] + sizes[T2] + sizes[B1] + sizes[B2] >= 2 * cache.capacity_blocks:
            take(cache, oldest(cache, B2))
        replace(cache, False)


@rule
def replace(cache: Cache, hit_in_b2: bool) -> None:
    """Move the least recent of T1 to B1 if T1 is above its target, else that of T2 to B2."""
    recent = cache.sizes[T1]
    if recent > 0 and (recent > cache.target[0] or (hit_in_b2 and recent == cache.target[0])):
        move(cache, T1, B1)
    else:
        move(cache, T2, B2)


@rule
def move(cache: Cache, source: int, target: int) -> None:
    """Move the least recent block of one list to the end of another, where it is the most recent."""
    block = oldest(cache, source)
    take(cache, block)
    put(cache, target, block)


@rule
def oldest(cache: Cache, where: int) -> int:
    """The least recent block of a list that is not empty."""
    block: int = cache.lists.after[cache.where.size + where]
    return block


@rule
def take(cache: Cache, block: int) -> None:
    """Remove a block from the list that it is in."""
    unlink(cache.lists, block)
    cache.sizes[cache.where[block]] -= 1
    cache.where[block] = ABSENT


@rule
def put(cache: Cache, where: int, block: int) -> None:
    """Append a block, as the most recent, to a list."""
    link(cache.lists, cache.where.size + where, block)
    cache.sizes[where] += 1
    cache.where[block] = where


def size_blocks(cache: Cache) -> int:
    """Blocks in T1 and T2."""
    return int(cache.sizes[T1]) + int(cache.sizes[T2])


def invariant_violations(cache: Cache) -> list[str]:
    """More blocks than fit or may be remembered, a list without its blocks, a target out of range."""
    capacity, found = cache.capacity_blocks, []
    if size_blocks(cache) > capacity:
        found.append(f"{size_blocks(cache)} blocks are resident, the capacity is {capacity}")
    if int(cache.sizes[T1]) + int(cache.sizes[B1]) > capacity:
        found.append(f"T1 and B1 hold {cache.sizes[T1] + cache.sizes[B1]} blocks, more than {capacity}")
    if int(cache.sizes.sum()) > 2 * capacity:
        found.append(f"{cache.sizes.sum()} blocks are remembered, more than {2 * capacity}")
    for where, name in ((T1, "T1"), (T2, "T2"), (B1, "B1"), (B2, "B2")):
        blocks = linked_list_members(cache.lists, cache.where.size + where)
        if sorted(blocks) != np.flatnonzero(cache.where == where).tolist():
            found.append(f"{name} does not hold the blocks that are marked as its own")
        if len(blocks) != cache.sizes[where]:
            found.append(f"{name} holds {len(blocks)} blocks, {cache.sizes[where]} are counted")
    if not 0 <= cache.target[0] <= capacity:
        found.append(f"the target is {cache.target[0]}")
    return found
