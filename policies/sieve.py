"""SIEVE, after Zhang et al., "SIEVE is simpler than LRU", NSDI 2024.

Blocks stand in the order they entered. A hit only marks the block as visited. A miss in a full cache moves the hand
from where it stopped last towards the newest block, clearing marks, and evicts the first block without one; the
others keep their places. After the newest block the hand goes on to the oldest.
"""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hitlab.simulation.structures import LinkedLists, link, linked_list_members, new_linked_lists, rule, unlink
from hitlab.traces.trace import Trace

NAME = "SIEVE"
VARIANT = "as published; one visited bit, not set when a block enters"
UNIT: Final = "block"
BOUNDED = True
CURVE = None

ABSENT, UNVISITED, VISITED = range(3)
SIZE, HAND = 0, 1


class Cache(NamedTuple):
    """The queue, oldest first, and for each block whether it is in it and its mark."""

    state: NDArray[np.uint8]  # [distinct blocks]
    queue: LinkedLists
    at: NDArray[np.uint32]  # [2]: blocks resident, the block the hand is at (the list's node if past the newest)
    capacity_blocks: int


def new(trace: Trace, capacity_blocks: int) -> Cache:
    """An empty cache."""
    distinct = trace.distinct_blocks
    at = np.array([0, distinct], np.uint32)
    return Cache(np.zeros(distinct, np.uint8), new_linked_lists(1, distinct), at, capacity_blocks)


@rule
def resident(cache: Cache, block: int) -> bool:
    """Whether the block is in the queue."""
    return bool(cache.state[block] != ABSENT)


@rule
def access(cache: Cache, block: int) -> None:
    """Mark the block as visited; bring a new one in, after an eviction if the cache is full."""
    if cache.state[block] != ABSENT:
        cache.state[block] = VISITED
        return
    if cache.at[SIZE] >= cache.capacity_blocks:
        evict(cache)
    cache.at[SIZE] += 1
    cache.state[block] = UNVISITED
    link(cache.queue, cache.state.size, block)


@rule
def evict(cache: Cache) -> None:
    """Move the hand on, clearing marks, until it is at a block without one, and evict that block."""
    skip_end(cache)
    while cache.state[cache.at[HAND]] == VISITED:
        cache.state[cache.at[HAND]] = UNVISITED
        cache.at[HAND] = cache.queue.after[cache.at[HAND]]
        skip_end(cache)
    victim = cache.at[HAND]
    cache.at[HAND] = cache.queue.after[victim]
    unlink(cache.queue, victim)
    cache.state[victim] = ABSENT
    cache.at[SIZE] -= 1


@rule
def skip_end(cache: Cache) -> None:
    """If the hand is past the newest block, move it to the oldest."""
    if cache.at[HAND] == cache.state.size:
        cache.at[HAND] = cache.queue.after[cache.state.size]


def size_blocks(cache: Cache) -> int:
    """Blocks in the queue."""
    return int(cache.at[SIZE])


def invariant_violations(cache: Cache) -> list[str]:
    """More blocks than fit, a wrong count, a queue without its blocks, a hand that is at no block."""
    here = np.flatnonzero(cache.state)
    found = []
    if len(here) != cache.at[SIZE]:
        found.append(f"{len(here)} blocks are resident, {cache.at[SIZE]} are counted")
    if len(here) > cache.capacity_blocks:
        found.append(f"{len(here)} blocks are resident, the capacity is {cache.capacity_blocks}")
    if sorted(linked_list_members(cache.queue, cache.state.size)) != here.tolist():
        found.append("the queue does not hold each resident block once")
    if cache.at[HAND] != cache.state.size and not cache.state[cache.at[HAND]]:
        found.append("the hand is at a block that is not resident")
    return found
