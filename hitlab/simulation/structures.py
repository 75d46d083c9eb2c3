"""Queues in arrays, from which eviction policies are built, and the decorator that compiles their rules.

Everything here is an ordinary Python function on NumPy arrays and runs as one; inside a replay kernel numba
compiles it. State that changes lives in arrays, because a named tuple itself cannot change; the arrays are
unsigned, because indexing by what might be negative costs a check each time (a third of a kernel's time).
"""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import numpy as np
from numba.extending import register_jitable
from numpy.typing import NDArray

Function = TypeVar("Function", bound=Callable[..., object])


def rule(function: Function) -> Function:
    """Let replay kernels call this function. It must not allocate.

    Reference counting is off (each read of an array out of a named tuple would cost an atomic increment,
    ten times the work itself) and inlining is forced (a call would pass every array of the cache by value).
    """
    compiled: Function = register_jitable(forceinline=True, _nrt=False)(function)
    return compiled


# Cursors only ever grow: one store a push and one a pop, and the length is their difference.
_HEAD, _TAIL = 0, 1


class Fifo(NamedTuple):
    """First in, first out: a ring, and how many blocks ever left it and entered it."""

    slots: NDArray[np.uint32]  # [a power of two]
    at: NDArray[np.uint32]  # [2]


def new_fifo(room_blocks: int) -> Fifo:
    """An empty queue that may hold so many blocks at a time.

    >>> queue = new_fifo(3)
    >>> push(queue, 7); push(queue, 8); pop(queue).item(), length(queue), members(queue).tolist()
    (7, 1, [8])
    """
    return Fifo(np.empty(1 << max(room_blocks - 1, 0).bit_length(), np.uint32), np.zeros(2, np.uint32))


@rule
def length(queue: Fifo) -> int:
    """How many blocks wait."""
    return int(queue.at[_TAIL] - queue.at[_HEAD])


@rule
def push(queue: Fifo, block: int) -> None:
    """Append at the tail."""
    queue.slots[queue.at[_TAIL] & (queue.slots.size - 1)] = block
    queue.at[_TAIL] += 1


@rule
def pop(queue: Fifo) -> int:
    """Remove the head and return it."""
    block: int = queue.slots[queue.at[_HEAD] & (queue.slots.size - 1)]
    queue.at[_HEAD] += 1
    return block


def members(queue: Fifo) -> NDArray[np.uint32]:
    """The waiting blocks, head first."""
    places = np.arange(*queue.at.tolist())
    found: NDArray[np.uint32] = queue.slots[places & (queue.slots.size - 1)]
    return found


_OLDEST, _NEXT, _GONE = 0, 1, 2
_NOBODY = np.uint32(2**32 - 1)


class Log(NamedTuple):
    """A first-in, first-out queue that a block may also leave from the middle.

    Who leaves early leaves a gap, skipped when the oldest is asked for. The log is written once from front to
    back, so it needs a slot for every entry ever made.
    """

    slots: NDArray[np.uint32]  # [entries]
    place: NDArray[np.uint32]  # [distinct blocks], the slot of a block in the log
    at: NDArray[np.uint32]  # [3]: the oldest slot, the next free one, gaps between them


def new_log(entries: int, distinct_blocks: int) -> Log:
    """An empty log with room for so many entries in all its life.

    >>> log = new_log(4, 10)
    >>> for block in (7, 8, 9): enter(log, block)
    >>> leave(log, 7); leave_oldest(log).item(), entered(log)
    (8, 1)
    """
    return Log(np.empty(entries, np.uint32), np.empty(distinct_blocks, np.uint32), np.zeros(3, np.uint32))


@rule
def entered(log: Log) -> int:
    """How many blocks are in the log."""
    return int(log.at[_NEXT] - log.at[_OLDEST] - log.at[_GONE])


@rule
def enter(log: Log, block: int) -> None:
    """Append a block that is not in the log."""
    log.slots[log.at[_NEXT]] = block
    log.place[block] = log.at[_NEXT]
    log.at[_NEXT] += 1


@rule
def leave(log: Log, block: int) -> None:
    """Take a block out, wherever it stands."""
    log.slots[log.place[block]] = _NOBODY
    log.at[_GONE] += 1


@rule
def leave_oldest(log: Log) -> int:
    """Take the oldest block out and return it."""
    while log.slots[log.at[_OLDEST]] == _NOBODY:
        log.at[_OLDEST] += 1
        log.at[_GONE] -= 1
    block: int = log.slots[log.at[_OLDEST]]
    log.at[_OLDEST] += 1
    return block


def log_members(log: Log) -> NDArray[np.uint32]:
    """The blocks in the log, oldest first."""
    slots = log.slots[log.at[_OLDEST] : log.at[_NEXT]]
    found: NDArray[np.uint32] = slots[slots != _NOBODY]
    return found


class Lists(NamedTuple):
    """Doubly linked lists over the same blocks, each block in at most one.

    List i is a circle through its own node, number `distinct_blocks + i`: after it comes the oldest block,
    before it the newest.
    """

    before: NDArray[np.uint32]  # [distinct blocks + lists]
    after: NDArray[np.uint32]  # [distinct blocks + lists]


def new_lists(lists: int, distinct_blocks: int) -> Lists:
    """So many empty lists.

    >>> lists = new_lists(2, 10)
    >>> for block in (7, 8, 9): link(lists, 11, block)
    >>> unlink(lists, 8); list_members(lists, 11), list_members(lists, 10)
    ([7, 9], [])
    """
    nodes = np.arange(distinct_blocks + lists, dtype=np.uint32)
    return Lists(nodes, nodes.copy())


@rule
def link(lists: Lists, node: int, block: int) -> None:
    """Append a block, which is in no list, as the newest of the list of that node."""
    newest = lists.before[node]
    lists.after[newest] = block
    lists.before[block] = newest
    lists.after[block] = node
    lists.before[node] = block


@rule
def unlink(lists: Lists, block: int) -> None:
    """Take a block out of its list."""
    before, after = lists.before[block], lists.after[block]
    lists.after[before] = after
    lists.before[after] = before


def list_members(lists: Lists, node: int) -> list[int]:
    """The blocks of the list of that node, oldest first."""
    found: list[int] = []
    block = int(lists.after[node])
    while block != node and len(found) < lists.after.size:
        found.append(block)
        block = int(lists.after[block])
    return found


# Marks: six bits of a number choose a bit in a word, the six above them the word's own bit one level up, and so on.
_LEVELS = 6  # of 64 children each: more than 32 bits


class Marks(NamedTuple):
    """A set of numbers that knows its highest, in a few steps whatever its size."""

    words: NDArray[np.uint64]  # all levels, the lowest first
    levels: NDArray[np.uint64]  # [6], where each level starts


def new_marks(size: int) -> Marks:
    """An empty set for numbers below `size`.

    >>> marks = new_marks(300_000)
    >>> for number in (7, 70_000, 64): mark(marks, number)
    >>> highest(marks), marked(marks).tolist()
    (70000, [7, 64, 70000])
    >>> unmark(marks, 70_000); highest(marks)
    64
    """
    widths = []
    for _ in range(_LEVELS):
        size = -(-size // 64)
        widths.append(size)
    starts = np.cumsum([0, *widths[:-1]])
    return Marks(np.zeros(max(1, sum(widths)), np.uint64), starts.astype(np.uint64))


@rule
def mark(marks: Marks, number: int) -> None:
    """Put a number in."""
    rest = np.uint64(number)
    for level in range(_LEVELS):
        place = marks.levels[level] + (rest >> np.uint64(6))
        before = marks.words[place]
        marks.words[place] = before | (np.uint64(1) << (rest & np.uint64(63)))
        if before != 0:
            break  # the levels above know of this word
        rest = rest >> np.uint64(6)


@rule
def unmark(marks: Marks, number: int) -> None:
    """Take a number out that is in."""
    rest = np.uint64(number)
    for level in range(_LEVELS):
        place = marks.levels[level] + (rest >> np.uint64(6))
        marks.words[place] &= ~(np.uint64(1) << (rest & np.uint64(63)))
        if marks.words[place] != 0:
            break
        rest = rest >> np.uint64(6)


@rule
def highest(marks: Marks) -> int:
    """The highest number of a set that is not empty."""
    found = np.uint64(0)
    for above in range(_LEVELS):
        word = marks.words[marks.levels[_LEVELS - 1 - above] + found]
        found = (found << np.uint64(6)) | highest_bit(word)
    return int(found)


@rule
def highest_bit(word: np.uint64) -> np.uint64:
    """The place of the highest bit of a word that is not 0."""
    place = np.uint64(0)
    for half in (32, 16, 8, 4, 2, 1):
        if word >> np.uint64(half) != 0:
            word = word >> np.uint64(half)
            place += np.uint64(half)
    return place


def marked(marks: Marks) -> NDArray[np.int64]:
    """The numbers in the set, the lowest first."""
    lowest = marks.words[: marks.levels[1]] if marks.levels[1] else marks.words
    return np.flatnonzero(np.unpackbits(lowest.view(np.uint8), bitorder="little"))
