"""S3-FIFO, after Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023.

Three queues: new blocks enter `small`; a block used again while there moves on to `main`; `ghost` remembers evicted
blocks, without holding them. Published variants differ, and so do their hit rates. This one:
- moves a block from small to main if it was used at least once more (the paper's listing: more than once),
- remembers in the ghost what either queue evicts (the paper: small only); the ghost is as long as main,
- keeps small and main to their sizes (libcachesim lets small borrow main's room), small's by round().
"""

from bisect import bisect_left
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hitlab.errors import UsageError
from hitlab.simulation.structures import (
    Fifo,
    RemovableFifo,
    append,
    length,
    members,
    new_fifo,
    new_removable_fifo,
    pop,
    push,
    removable_length,
    removable_members,
    remove,
    remove_oldest,
    rule,
)
from hitlab.traces.trace import Trace

NAME = "S3FIFO"
VARIANT = "to main at freq >= 1, ghost hits enter main at 0, both queues evict to a ghost as long as main"
UNIT: Final = "block"
BOUNDED = True
CURVE = None

ABSENT, GHOST, SMALL, MAIN = range(4)


class Cache(NamedTuple):
    """The three queues, and for each block the one that holds it and its use count."""

    where: NDArray[np.uint8]  # [distinct blocks]
    freq: NDArray[Any]  # [distinct blocks], of 8 bits, or 32 for a max_freq above 255
    small: Fifo
    main: Fifo
    ghost: RemovableFifo
    small_blocks: int
    main_blocks: int  # also the size of the ghost
    max_freq: int


def new(trace: Trace, capacity_blocks: int, *, small_ratio: float = 0.1, max_freq: int = 3) -> Cache:
    """An empty cache; `small_ratio` of the capacity is small's, use counts stop at `max_freq`."""
    if not 0 < small_ratio < 1:
        raise UsageError(f"a small ratio of {small_ratio}", todo="choose one between 0 and 1")
    if max_freq < 0:
        raise UsageError(f"a max freq of {max_freq}", todo="choose 0 or more (3 is usual)")
    small_blocks, main_blocks = _split(capacity_blocks, small_ratio)
    if not (small_blocks and main_blocks):
        # Neither part shrinks as the capacity grows, so the capacities that work have a smallest one.
        smallest = bisect_left(range(2**62), True, key=lambda blocks: all(_split(blocks, small_ratio)))
        raise UsageError(
            f"{capacity_blocks} blocks leave the {'main' if small_blocks else 'small'} queue empty "
            f"at small ratio {small_ratio}",
            todo=f"the smallest capacity that works is {smallest}",
        )
    distinct, references = trace.distinct_blocks, trace.blocks.size
    max_freq = min(max_freq, references)  # no block can be used more often
    return Cache(
        where=np.zeros(distinct, np.uint8),
        freq=np.zeros(distinct, np.uint8 if max_freq < 256 else np.uint32),
        small=new_fifo(min(small_blocks, distinct)),
        main=new_fifo(min(main_blocks, distinct)),
        ghost=new_removable_fifo(references, distinct),  # at most one eviction an access
        small_blocks=small_blocks,
        main_blocks=main_blocks,
        max_freq=max_freq,
    )


def _split(capacity_blocks: int, small_ratio: float) -> tuple[int, int]:
    small_blocks = round(capacity_blocks * small_ratio)
    return small_blocks, capacity_blocks - small_blocks


@rule
def resident(cache: Cache, block: int) -> bool:
    """Whether the block is in small or main; the ghost does not count."""
    return bool(cache.where[block] >= SMALL)


@rule
def access(cache: Cache, block: int) -> None:
    """Count a use, or bring the block in: to main if the ghost remembers it, else to small."""
    if cache.where[block] >= SMALL:
        if cache.freq[block] < cache.max_freq:
            cache.freq[block] += 1
    elif cache.where[block] == GHOST:
        remove(cache.ghost, block)
        admit_to_main(cache, block, 0)
    else:
        admit_to_small(cache, block)


@rule
def admit_to_small(cache: Cache, block: int) -> None:
    """Append a block to small. A full small first moves its head: to main if it was used, else to the ghost."""
    while length(cache.small) >= cache.small_blocks:
        victim = pop(cache.small)
        if cache.freq[victim] >= 1:
            admit_to_main(cache, victim, cache.freq[victim])
        else:
            insert_to_ghost(cache, victim)
    push(cache.small, block)
    cache.where[block] = SMALL
    cache.freq[block] = 0


@rule
def admit_to_main(cache: Cache, block: int, freq: int) -> None:
    """Append a block to main. A full main first evicts a block; a block with uses is appended again, with one less."""
    while length(cache.main) >= cache.main_blocks:
        victim = pop(cache.main)
        if cache.freq[victim] >= 1:
            cache.freq[victim] -= 1
            push(cache.main, victim)
        else:
            insert_to_ghost(cache, victim)
            break
    push(cache.main, block)
    cache.where[block] = MAIN
    cache.freq[block] = freq


@rule
def insert_to_ghost(cache: Cache, block: int) -> None:
    """Append an evicted block to the ghost. A full ghost first forgets its oldest block."""
    if removable_length(cache.ghost) >= cache.main_blocks:
        cache.where[remove_oldest(cache.ghost)] = ABSENT
    append(cache.ghost, block)
    cache.where[block] = GHOST


def size_blocks(cache: Cache) -> int:
    """Blocks in small and main."""
    return int(length(cache.small) + length(cache.main))


def invariant_violations(cache: Cache) -> list[str]:
    """Queues longer than their size, a block in two places, a use count out of range."""
    queues = (
        ("small", SMALL, members(cache.small), cache.small_blocks),
        ("main", MAIN, members(cache.main), cache.main_blocks),
        ("ghost", GHOST, removable_members(cache.ghost), cache.main_blocks),
    )
    found = []
    for name, place, blocks, room_blocks in queues:
        if len(blocks) > room_blocks:
            found.append(f"{name} holds {len(blocks)} blocks, its size is {room_blocks}")
        if len(np.unique(blocks)) < len(blocks):
            found.append(f"{name} holds a block twice")
        if not np.array_equal(np.sort(blocks), np.flatnonzero(cache.where == place)):
            found.append(f"{name} does not hold the blocks that are marked as its own")
    if cache.freq.size and cache.freq.max() > cache.max_freq:
        found.append(f"a use count is above {cache.max_freq}")
    return found
