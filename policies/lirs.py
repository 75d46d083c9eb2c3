"""LIRS, after Jiang and Zhang, "LIRS: an efficient low inter-reference recency set replacement policy",
SIGMETRICS 2002.

Most of the cache is for LIR blocks, used twice within the time the stack S looks back; the few HIR blocks wait in the
queue Q, whose front is evicted. A HIR block used again while S still has it becomes LIR, and the LIR block at the
bottom of S becomes HIR in its place. S's bottom is always LIR. HIR blocks get 1 % of the capacity, rounded down, but
at least one block. S remembers evicted blocks for as long as they are above its bottom, without a limit of its own
(libcachesim forgets them beyond twice the capacity, and demotes a LIR block on every hit that is in Q only;
tests/simulation/test_libcachesim.py has its rules).
"""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hitlab.errors import UsageError
from hitlab.simulation.structures import LinkedLists, link, linked_list_members, new_linked_lists, rule, unlink
from hitlab.traces.trace import Trace

NAME = "LIRS"
VARIANT = "as published; the stack remembers evicted blocks without a limit"
UNIT: Final = "block"
BOUNDED = True
CURVE = None

ABSENT, GHOST, LIR, STACKED, QUEUED = range(5)  # STACKED: HIR, resident, in S and Q; QUEUED: in Q only
LIRS, HIRS = 0, 1


class Cache(NamedTuple):
    """S and Q, least recent first, and the state of each block."""

    state: NDArray[np.uint8]  # [distinct blocks]
    stack: LinkedLists
    queue: LinkedLists
    at: NDArray[np.uint32]  # [2]: LIR blocks, resident HIR blocks
    lir_blocks: int
    capacity_blocks: int


def new(trace: Trace, capacity_blocks: int, *, hir_ratio: float = 0.01) -> Cache:
    """An empty cache; `hir_ratio` of the capacity is for HIR blocks."""
    if not 0 <= hir_ratio < 1:
        raise UsageError(f"a HIR ratio of {hir_ratio}", todo="choose one from 0 to below 1")
    lir_blocks = capacity_blocks - max(1, int(capacity_blocks * hir_ratio))
    if lir_blocks < 1:
        raise UsageError("1 block leaves none for the LIR set", todo="the smallest capacity that works is 2")
    distinct = trace.distinct_blocks
    stack, queue = new_linked_lists(1, distinct), new_linked_lists(1, distinct)
    return Cache(np.zeros(distinct, np.uint8), stack, queue, np.zeros(2, np.uint32), lir_blocks, capacity_blocks)


@rule
def resident(cache: Cache, block: int) -> bool:
    """Whether the block is in the cache: LIR, or HIR and in Q."""
    return bool(cache.state[block] >= LIR)


@rule
def access(cache: Cache, block: int) -> None:
    """Put the block on top of S and update its state; evict first if it is not resident and the cache is full."""
    state, node = cache.state[block], cache.state.size
    if state < LIR and cache.at[LIRS] + cache.at[HIRS] >= cache.capacity_blocks:
        evict(cache)
    if state in (GHOST, LIR, STACKED):
        unlink(cache.stack, block)
    link(cache.stack, node, block)
    if state == LIR:
        prune(cache)
    elif state in (GHOST, STACKED):
        if state == STACKED:
            unlink(cache.queue, block)
            cache.at[HIRS] -= 1
        cache.state[block] = LIR
        cache.at[LIRS] += 1
        demote(cache)
        prune(cache)
    elif state == QUEUED:
        unlink(cache.queue, block)
        link(cache.queue, node, block)
        cache.state[block] = STACKED
    elif cache.at[LIRS] < cache.lir_blocks:  # the LIR set is filled first
        cache.state[block] = LIR
        cache.at[LIRS] += 1
    else:
        link(cache.queue, node, block)
        cache.state[block] = STACKED
        cache.at[HIRS] += 1


@rule
def evict(cache: Cache) -> None:
    """Evict the front of Q; if it is in S, it stays there as a ghost."""
    victim = cache.queue.after[cache.state.size]
    unlink(cache.queue, victim)
    cache.at[HIRS] -= 1
    cache.state[victim] = GHOST if cache.state[victim] == STACKED else ABSENT


@rule
def demote(cache: Cache) -> None:
    """If there is one LIR block too many, make the one at the bottom of S a HIR block at the end of Q."""
    if cache.at[LIRS] > cache.lir_blocks:
        bottom = cache.stack.after[cache.state.size]
        unlink(cache.stack, bottom)
        link(cache.queue, cache.state.size, bottom)
        cache.state[bottom] = QUEUED
        cache.at[LIRS] -= 1
        cache.at[HIRS] += 1


@rule
def prune(cache: Cache) -> None:
    """Remove HIR blocks from the bottom of S until the bottom is a LIR block."""
    bottom = cache.stack.after[cache.state.size]
    while cache.state[bottom] != LIR:
        unlink(cache.stack, bottom)
        cache.state[bottom] = QUEUED if cache.state[bottom] == STACKED else ABSENT
        bottom = cache.stack.after[cache.state.size]


def size_blocks(cache: Cache) -> int:
    """Resident LIR and HIR blocks."""
    return int(cache.at.sum())


def invariant_violations(cache: Cache) -> list[str]:
    """More blocks than fit, S or Q without its blocks, a bottom of S that is not LIR."""
    state, found = cache.state, []
    if size_blocks(cache) > cache.capacity_blocks:
        found.append(f"{size_blocks(cache)} blocks are resident, the capacity is {cache.capacity_blocks}")
    counted = (int(np.count_nonzero(state == LIR)), int(np.count_nonzero(state > LIR)))
    if counted != tuple(cache.at.tolist()):
        found.append(
            f"{counted[0]} LIR and {counted[1]} HIR blocks are resident, {cache.at[0]} and {cache.at[1]} counted"
        )
    stack = linked_list_members(cache.stack, state.size)
    if sorted(stack) != np.flatnonzero((state == GHOST) | (state == LIR) | (state == STACKED)).tolist():
        found.append("the stack does not hold the blocks that are marked as its own")
    if sorted(linked_list_members(cache.queue, state.size)) != np.flatnonzero(state > LIR).tolist():
        found.append("the queue does not hold the blocks that are marked as its own")
    if stack and state[stack[0]] != LIR:
        found.append("the bottom of the stack is not LIR")
    return found
