"""CLOCK, after Corbató, "A paging experiment with the Multics system", 1968: FIFO with a second chance.

Blocks stand in a circle. A hit sets the block's reference bit. A miss in a full cache moves the hand on, clearing
bits, to the first block whose bit is not set, and puts the new block in its place. The new block's bit is not set
(some authors set it).
"""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hitlab.simulation.structures import rule
from hitlab.traces.trace import Trace

NAME = "CLOCK"
VARIANT = "one reference bit, not set when a block enters"
UNIT: Final = "block"
BOUNDED = True
CURVE = None

ABSENT, UNUSED, USED = range(3)
SIZE, HAND = 0, 1


class Cache(NamedTuple):
    """The circle, and for each block whether it is in it and its reference bit."""

    state: NDArray[np.uint8]  # [distinct blocks]
    circle: NDArray[np.uint32]  # [places]
    at: NDArray[np.uint32]  # [2]: places taken, where the hand stands
    capacity_blocks: int


def new(trace: Trace, capacity_blocks: int) -> Cache:
    """An empty cache."""
    distinct = trace.distinct_blocks
    circle = np.zeros(min(capacity_blocks, distinct), np.uint32)
    return Cache(np.zeros(distinct, np.uint8), circle, np.zeros(2, np.uint32), capacity_blocks)


@rule
def resident(cache: Cache, block: int) -> bool:
    """Whether the block is in the circle."""
    return bool(cache.state[block] != ABSENT)


@rule
def access(cache: Cache, block: int) -> None:
    """Set the block's bit; bring a new block in at a free place, or at the one that the hand frees."""
    if cache.state[block] != ABSENT:
        cache.state[block] = USED
        return
    if cache.at[SIZE] < cache.capacity_blocks:
        cache.circle[cache.at[SIZE]] = block
        cache.at[SIZE] += 1
    else:
        while cache.state[cache.circle[cache.at[HAND]]] == USED:
            cache.state[cache.circle[cache.at[HAND]]] = UNUSED
            advance(cache)
        cache.state[cache.circle[cache.at[HAND]]] = ABSENT
        cache.circle[cache.at[HAND]] = block
        advance(cache)
    cache.state[block] = UNUSED


@rule
def advance(cache: Cache) -> None:
    """Move the hand to the next place."""
    cache.at[HAND] += 1
    if cache.at[HAND] == cache.circle.size:
        cache.at[HAND] = 0


def size_blocks(cache: Cache) -> int:
    """Blocks in the circle."""
    return int(cache.at[SIZE])


def invariant_violations(cache: Cache) -> list[str]:
    """More blocks than fit, a block twice, a state without its block."""
    blocks = cache.circle[: cache.at[SIZE]]
    found = []
    if cache.at[SIZE] > cache.capacity_blocks:
        found.append(f"{cache.at[SIZE]} blocks are resident, the capacity is {cache.capacity_blocks}")
    if not np.array_equal(np.sort(blocks), np.flatnonzero(cache.state)):
        found.append("the circle does not hold each resident block once")
    return found
