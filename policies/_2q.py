"""2Q, after Johnson and Shasha, "2Q: a low overhead high performance buffer management replacement algorithm",
VLDB 1994, the full version.

A new block enters `a1in`, a FIFO. A block evicted from it is remembered in `a1out`, without being resident. A block
requested while it is remembered enters `am`, an LRU list. A full cache evicts from a1in if that is above its share,
otherwise from am. A hit in a1in changes nothing. The paper's shares are kept, a1in a quarter of the capacity and
a1out half of it, rounded down.
"""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hitlab.errors import UsageError
from hitlab.simulation.structures import (
    Fifo,
    LinkedLists,
    RemovableFifo,
    append,
    length,
    link,
    linked_list_members,
    members,
    new_fifo,
    new_linked_lists,
    new_removable_fifo,
    pop,
    push,
    removable_length,
    removable_members,
    remove,
    remove_oldest,
    rule,
    unlink,
)
from hitlab.traces.trace import Trace

NAME = "2Q"
VARIANT = "full 2Q: a1in is first in, first out, hits in it change nothing; blocks from am are not remembered"
UNIT: Final = "block"
BOUNDED = True
CURVE = None

ABSENT, OUT, IN, MAIN = range(4)


class Cache(NamedTuple):
    """The three queues, and for each block the one that holds it."""

    where: NDArray[np.uint8]  # [distinct blocks]
    a1in: Fifo
    a1out: RemovableFifo
    am: LinkedLists
    am_size: NDArray[np.uint32]  # [1]
    in_blocks: int
    out_blocks: int
    capacity_blocks: int


def new(trace: Trace, capacity_blocks: int, *, in_ratio: float = 0.25, out_ratio: float = 0.5) -> Cache:
    """An empty cache; the share of a1in is `in_ratio` of the capacity, a1out remembers `out_ratio` of it."""
    if not 0 <= in_ratio <= 1:
        raise UsageError(f"an in ratio of {in_ratio}", todo="choose one from 0 to 1")
    if not 0 <= out_ratio <= 100:
        raise UsageError(f"an out ratio of {out_ratio}", todo="choose one from 0 to 100")
    distinct = trace.distinct_blocks
    return Cache(
        where=np.zeros(distinct, np.uint8),
        a1in=new_fifo(min(capacity_blocks, distinct)),
        a1out=new_removable_fifo(trace.blocks.size, distinct),  # at most one eviction an access
        am=new_linked_lists(1, distinct),
        am_size=np.zeros(1, np.uint32),
        in_blocks=int(capacity_blocks * in_ratio),
        out_blocks=int(capacity_blocks * out_ratio),
        capacity_blocks=capacity_blocks,
    )


@rule
def resident(cache: Cache, block: int) -> bool:
    """Whether the block is in a1in or am; a1out does not count."""
    return bool(cache.where[block] >= IN)


@rule
def access(cache: Cache, block: int) -> None:
    """Make a block of am the most recent, or bring a block in: to am if a1out remembers it, else to a1in."""
    where = cache.where[block]
    if where == IN:
        return
    if where == MAIN:
        unlink(cache.am, block)
    else:
        if where == OUT:
            remove(cache.a1out, block)
        if length(cache.a1in) + cache.am_size[0] >= cache.capacity_blocks:
            evict(cache)
        if where == ABSENT:
            push(cache.a1in, block)
            cache.where[block] = IN
            return
        cache.am_size[0] += 1
        cache.where[block] = MAIN
    link(cache.am, cache.where.size, block)


@rule
def evict(cache: Cache) -> None:
    """Evict from a1in, and remember the block, if a1in is above its share or am is empty; else evict from am."""
    if length(cache.a1in) > cache.in_blocks or cache.am_size[0] == 0:
        victim = pop(cache.a1in)
        remember(cache, victim)
    else:
        victim = cache.am.after[cache.where.size]
        unlink(cache.am, victim)
        cache.am_size[0] -= 1
        cache.where[victim] = ABSENT


@rule
def remember(cache: Cache, block: int) -> None:
    """Append an evicted block to a1out. A full a1out first forgets its oldest block."""
    cache.where[block] = ABSENT
    if cache.out_blocks > 0:
        if removable_length(cache.a1out) >= cache.out_blocks:
            cache.where[remove_oldest(cache.a1out)] = ABSENT
        append(cache.a1out, block)
        cache.where[block] = OUT


def size_blocks(cache: Cache) -> int:
    """Blocks in a1in and am."""
    return int(length(cache.a1in)) + int(cache.am_size[0])


def invariant_violations(cache: Cache) -> list[str]:
    """More blocks than fit, a queue without its blocks."""
    queues = (
        ("a1in", IN, members(cache.a1in).tolist()),
        ("a1out", OUT, removable_members(cache.a1out).tolist()),
        ("am", MAIN, linked_list_members(cache.am, cache.where.size)),
    )
    found = []
    if size_blocks(cache) > cache.capacity_blocks:
        found.append(f"{size_blocks(cache)} blocks are resident, the capacity is {cache.capacity_blocks}")
    for name, place, blocks in queues:
        if sorted(blocks) != np.flatnonzero(cache.where == place).tolist():
            found.append(f"{name} does not hold the blocks that are marked as its own")
    if len(queues[2][2]) != cache.am_size[0]:
        found.append(f"am holds {len(queues[2][2])} blocks, {cache.am_size[0]} are counted")
    if len(queues[1][2]) > cache.out_blocks:
        found.append(f"a1out holds {len(queues[1][2])} blocks, its size is {cache.out_blocks}")
    return found
