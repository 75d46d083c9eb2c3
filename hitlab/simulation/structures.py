"""Queues, lists and a bitmap in NumPy arrays, from which policies are built, and `rule`, which compiles their code.

Called from Python, each function here runs as ordinary Python. Called from a replay's compiled loop, numba compiles
it. Whatever changes is in an array, because a named tuple's fields cannot be assigned. The arrays are unsigned,
because an index that may be negative costs a check each time (a third of a kernel's time).
"""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import numpy as np
from numba.extending import register_jitable
from numpy.typing import NDArray

Function = TypeVar("Function", bound=Callable[..., object])


def rule(function: Function) -> Function:
    """Let a replay's compiled loop call this function. It must not create arrays or other objects.

    Reference counting is off, since each read of an array out of a named tuple would cost an atomic increment, ten
    times the work itself; what is created would never be freed. Inlining is forced, since a call would pass every
    array of the cache by value.
    """
    compiled: Function = register_jitable(forceinline=True, _nrt=False)(function)
    return compiled


# Both cursors only grow, so a push or a pop is one store, and the length is their difference.
_HEAD, _TAIL = 0, 1


class Fifo(NamedTuple):
    """A first-in, first-out queue: a ring of slots and two cursors, which count all blocks ever popped and pushed."""

    slots: NDArray[np.uint32]  # [a power of two]
    at: NDArray[np.uint32]  # [2]


def new_fifo(room_blocks: int) -> Fifo:
    """An empty queue that can hold so many blocks at a time.

    >>> queue = new_fifo(3)
    >>> push(queue, 7); push(queue, 8); pop(queue).item(), length(queue), members(queue).tolist()
    (7, 1, [8])
    """
    return Fifo(np.empty(1 << max(room_blocks - 1, 0).bit_length(), np.uint32), np.zeros(2, np.uint32))


@rule
def length(queue: Fifo) -> int:
    """How many blocks are in the queue."""
    return int(queue.at[_TAIL] - queue.at[_HEAD])


@rule
def push(queue: Fifo, block: int) -> None:
    """Append a block at the tail; the queue must have room."""
    queue.slots[queue.at[_TAIL] & (queue.slots.size - 1)] = block
    queue.at[_TAIL] += 1


@rule
def pop(queue: Fifo) -> int:
    """Remove the head of a queue that is not empty, and return it."""
    block: int = queue.slots[queue.at[_HEAD] & (queue.slots.size - 1)]
    queue.at[_HEAD] += 1
    return block


def members(queue: Fifo) -> NDArray[np.uint32]:
    """The blocks in the queue, head first."""
    places = np.arange(*queue.at.tolist())
    found: NDArray[np.uint32] = queue.slots[places & (queue.slots.size - 1)]
    return found


_OLDEST, _NEXT, _GAPS = 0, 1, 2
_EMPTY = np.uint32(2**32 - 1)


class RemovableFifo(NamedTuple):
    """A first-in, first-out queue from whose middle a block can also be removed.

    A block removed from the middle leaves a gap, which is skipped when the oldest block is asked for. Slots are
    written once, from front to back, and never used again, so there is one for every append there will ever be.
    """

    slots: NDArray[np.uint32]  # [appends], a block or _EMPTY
    place: NDArray[np.uint32]  # [distinct blocks], the slot of a block in the queue
    at: NDArray[np.uint32]  # [3]: the oldest slot, the next free slot, gaps between them


def new_removable_fifo(appends: int, distinct_blocks: int) -> RemovableFifo:
    """An empty queue to which so many blocks can be appended in all its life.

    >>> queue = new_removable_fifo(4, 10)
    >>> for block in (7, 8, 9): append(queue, block)
    >>> remove(queue, 8); remove_oldest(queue).item(), removable_length(queue), removable_members(queue).tolist()
    (7, 1, [9])
    """
    return RemovableFifo(np.empty(appends, np.uint32), np.empty(distinct_blocks, np.uint32), np.zeros(3, np.uint32))


@rule
def removable_length(queue: RemovableFifo) -> int:
    """How many blocks are in the queue."""
    return int(queue.at[_NEXT] - queue.at[_OLDEST] - queue.at[_GAPS])


@rule
def append(queue: RemovableFifo, block: int) -> None:
    """Append a block that is not in the queue."""
    queue.slots[queue.at[_NEXT]] = block
    queue.place[block] = queue.at[_NEXT]
    queue.at[_NEXT] += 1


@rule
def remove(queue: RemovableFifo, block: int) -> None:
    """Remove a block that is in the queue, wherever it stands."""
    queue.slots[queue.place[block]] = _EMPTY
    queue.at[_GAPS] += 1


@rule
def remove_oldest(queue: RemovableFifo) -> int:
    """Remove the oldest block of a queue that is not empty, and return it."""
    while queue.slots[queue.at[_OLDEST]] == _EMPTY:
        queue.at[_OLDEST] += 1
        queue.at[_GAPS] -= 1
    block: int = queue.slots[queue.at[_OLDEST]]
    queue.at[_OLDEST] += 1
    return block


def removable_members(queue: RemovableFifo) -> NDArray[np.uint32]:
    """The blocks in the queue, oldest first."""
    slots = queue.slots[queue.at[_OLDEST] : queue.at[_NEXT]]
    found: NDArray[np.uint32] = slots[slots != _EMPTY]
    return found


class LinkedLists(NamedTuple):
    """Doubly linked lists of blocks; a block is in one of them at most.

    A list goes by the number of its node: list i, counted from 0, has node `distinct_blocks + i`. Each list is a
    circle of its node and its blocks: after the node comes the oldest block, before it the newest. An empty list is
    the node alone.
    """

    before: NDArray[np.uint32]  # [distinct blocks + lists], the next older block, or the node
    after: NDArray[np.uint32]  # [distinct blocks + lists], the next newer block, or the node


def new_linked_lists(lists: int, distinct_blocks: int) -> LinkedLists:
    """So many empty lists for blocks 0 to below `distinct_blocks`.

    >>> lists = new_linked_lists(2, 10)
    >>> for block in (7, 8, 9): link(lists, 11, block)
    >>> unlink(lists, 8); linked_list_members(lists, 11), linked_list_members(lists, 10)
    ([7, 9], [])
    """
    nodes = np.arange(distinct_blocks + lists, dtype=np.uint32)
    return LinkedLists(nodes, nodes.copy())


@rule
def link(lists: LinkedLists, node: int, block: int) -> None:
    """Append a block that is in no list, as the newest of the list with that node."""
    newest = lists.before[node]
    lists.after[newest] = block
    lists.before[block] = newest
    lists.after[block] = node
    lists.before[node] = block


@rule
def unlink(lists: LinkedLists, block: int) -> None:
    """Take a block out of its list."""
    before, after = lists.before[block], lists.after[block]
    lists.after[before] = after
    lists.before[after] = before


def linked_list_members(lists: LinkedLists, node: int) -> list[int]:
    """The blocks of the list with that node, oldest first."""
    found: list[int] = []
    block = int(lists.after[node])
    while block != node and len(found) < lists.after.size:
        found.append(block)
        block = int(lists.after[block])
    return found


_LEVELS = 6  # of 64 children each: 36 bits, enough for any 32-bit number


class Bitmap(NamedTuple):
    """A set of numbers, one bit each, whose highest number is found in six steps whatever the size.

    It is a tree of 64-bit words. The lowest level has a bit for each number. A bit of the level above says that the
    word it stands for, 64 bits of the level below, is not 0; and so on for six levels.
    """

    words: NDArray[np.uint64]  # the words of all levels, the lowest level first
    levels: NDArray[np.uint64]  # [6], the word with which each level starts


def new_bitmap(size: int) -> Bitmap:
    """An empty set for numbers from 0 to below `size`.

    >>> bitmap = new_bitmap(300_000)
    >>> for number in (7, 70_000, 64): set_bit(bitmap, number)
    >>> highest_set_bit(bitmap), bitmap_members(bitmap).tolist()
    (70000, [7, 64, 70000])
    >>> clear_bit(bitmap, 70_000); highest_set_bit(bitmap)
    64
    """
    widths = []
    for _ in range(_LEVELS):
        size = -(-size // 64)
        widths.append(size)
    starts = np.cumsum([0, *widths[:-1]])
    return Bitmap(np.zeros(max(1, sum(widths)), np.uint64), starts.astype(np.uint64))


@rule
def set_bit(bitmap: Bitmap, number: int) -> None:
    """Add a number to the set.

    >>> bitmap = new_bitmap(100)
    >>> set_bit(bitmap, 99); set_bit(bitmap, 99); bitmap_members(bitmap).tolist()
    [99]
    """
    rest = np.uint64(number)
    for level in range(_LEVELS):
        place = bitmap.levels[level] + (rest >> np.uint64(6))
        before = bitmap.words[place]
        bitmap.words[place] = before | (np.uint64(1) << (rest & np.uint64(63)))
        if before != 0:
            break  # the levels above know already that this word is not 0
        rest = rest >> np.uint64(6)


@rule
def clear_bit(bitmap: Bitmap, number: int) -> None:
    """Remove a number that is in the set.

    >>> bitmap = new_bitmap(100)
    >>> set_bit(bitmap, 3); set_bit(bitmap, 99); clear_bit(bitmap, 3); bitmap_members(bitmap).tolist()
    [99]
    """
    rest = np.uint64(number)
    for level in range(_LEVELS):
        place = bitmap.levels[level] + (rest >> np.uint64(6))
        bitmap.words[place] &= ~(np.uint64(1) << (rest & np.uint64(63)))
        if bitmap.words[place] != 0:
            break
        rest = rest >> np.uint64(6)


@rule
def highest_set_bit(bitmap: Bitmap) -> int:
    """The highest number of a set that is not empty.

    >>> bitmap = new_bitmap(10_000)
    >>> set_bit(bitmap, 64); set_bit(bitmap, 4096); highest_set_bit(bitmap)
    4096
    """
    found = np.uint64(0)
    for above in range(_LEVELS):
        word = bitmap.words[bitmap.levels[_LEVELS - 1 - above] + found]
        found = (found << np.uint64(6)) | highest_bit_of_word(word)
    return int(found)


@rule
def highest_bit_of_word(word: np.uint64) -> np.uint64:
    """The place, 0 to 63, of the highest bit of a word that is not 0.

    >>> int(highest_bit_of_word(np.uint64(1))), int(highest_bit_of_word(np.uint64(2**63 + 5)))
    (0, 63)
    """
    place = np.uint64(0)
    for half in (32, 16, 8, 4, 2, 1):
        if word >> np.uint64(half) != 0:
            word = word >> np.uint64(half)
            place += np.uint64(half)
    return place


def bitmap_members(bitmap: Bitmap) -> NDArray[np.int64]:
    """The numbers in the set, the lowest first."""
    lowest = bitmap.words[: bitmap.levels[1]] if bitmap.levels[1] else bitmap.words
    return np.flatnonzero(np.unpackbits(lowest.view(np.uint8), bitorder="little"))
