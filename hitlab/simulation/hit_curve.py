"""Hit-ratio curves: the hit tokens of a cache at EVERY capacity, from one pass over the trace.

LRU keeps the C most recent blocks, so a block is resident at a request's arrival if at most C - 1 distinct blocks
were used after it: its stack distance (Mattson et al., "Evaluation techniques for storage hierarchies", 1970) is at
most C. A prefix of k blocks is hit if that holds for each of them, hence for the one used longest ago. So a distance
is counted only where a request comes to a block used longer ago than those before it; consecutive blocks last used
by the same request share one.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from hitlab.simulation import kernel_store, structures
from hitlab.simulation.curve import Curve
from hitlab.simulation.policy import CurveBuilder
from hitlab.simulation.structures import rule
from hitlab.traces.trace import Trace

Kernel = Callable[..., None]


class Curves:
    """The hit-ratio curves of one trace, each built once, when it is first asked for."""

    def __init__(self, trace: Trace, *, engine_cap: bool = False) -> None:
        self._trace = trace
        self._engine_cap = engine_cap
        self._built: dict[CurveBuilder, Curve] = {}

    def of(self, builder: CurveBuilder) -> Curve:
        """The curve that this builder makes of the trace."""
        if builder not in self._built:
            self._built[builder] = builder(self._trace, engine_cap=self._engine_cap)
        return self._built[builder]


def lru_curve(trace: Trace, *, engine_cap: bool = False) -> Curve:
    """LRU's hit-ratio curve."""
    references, words = trace.blocks.size, trace.blocks.size // 64 + 1
    stack = Stack(
        np.zeros(trace.distinct_blocks, np.uint32),
        np.zeros(words, np.uint64),
        np.zeros(words + 1, np.uint32),
        np.zeros(1, np.uint64),
    )
    needed, request, hit_tokens = (np.empty(references, np.uint32) for _ in range(3))
    pieces = Pieces(needed, request, hit_tokens, np.zeros(1, np.int64))
    most_tokens = trace.countable_tokens(engine_cap)
    compiled()(stack, pieces, trace.blocks.view(np.uint32), trace.starts, most_tokens, trace.block_tokens)
    needed = needed[: pieces.made[0]]
    order = np.argsort(needed, kind="stable")
    distinct = trace.distinct_blocks
    tokens = hit_tokens[order].astype(np.int64)
    return Curve(needed[order], tokens, request[order], distinct, distinct, bounded=True)


def unbounded_curve(trace: Trace, *, engine_cap: bool = False) -> Curve:
    """The hit-ratio curve of a cache that never evicts: the same hits at every capacity."""
    lru = lru_curve(trace, engine_cap=engine_cap)
    distinct = trace.distinct_blocks
    return Curve(np.ones_like(lru.needed_blocks), lru.hit_tokens, lru.request, distinct, distinct, bounded=False)


class Stack(NamedTuple):
    """The LRU stack as the references of the trace so far; a reference is dead once its block was used again.

    The references that are not dead are the stack, the most recent last. Dead references are bits of a bitmap; a
    Fenwick tree holds how many there are in each word, so that those before any reference can be counted quickly.
    """

    last_use: NDArray[np.uint32]  # [distinct blocks], 1 + the number of the reference; 0 if never used
    dead: NDArray[np.uint64]  # [words], a bit for each reference
    sums: NDArray[np.uint32]  # [words + 1], the Fenwick tree of dead references per word
    all_dead: NDArray[np.uint64]  # [1], how many are dead


class Pieces(NamedTuple):
    """The hit-ratio curve's pieces in the order of the trace, and how many there are."""

    needed_blocks: NDArray[np.uint32]  # [references]
    request: NDArray[np.uint32]  # [references]
    hit_tokens: NDArray[np.uint32]  # [references]
    made: NDArray[np.int64]  # [1], how many pieces there are


@cache
def compiled() -> Kernel:
    """The pass over the trace as machine code; loaded from disk, or compiled, when it is first called."""
    import numba

    njit: Any = numba.njit  # its stubs do not know every option
    kept_in = kernel_store.folder_of("curve", __file__, str(structures.__file__))
    return cast(Kernel, kernel_store.kept(njit(nogil=True, _nrt=False)(_all_requests), kept_in))


def _all_requests(
    stack: Stack,
    pieces: Pieces,
    blocks: NDArray[np.uint32],
    starts: NDArray[np.int64],
    most_tokens: NDArray[np.int64],
    block_tokens: int,
) -> None:
    for request in range(most_tokens.size):
        first, end = np.uint64(starts[request]), np.uint64(starts[request + 1])
        _measure(stack, pieces, blocks, request, first, end, most_tokens[request], block_tokens)
        _use(stack, blocks, first, end)


@rule
def _measure(
    stack: Stack, pieces: Pieces, blocks: Any, request: int, first: Any, end: Any, most: Any, block_tokens: int
) -> None:
    """Append the pieces of an arriving request, up to the first block that was never used before."""
    oldest, counted, piece = end, np.int64(0), pieces.made[0] - 1
    for reference in range(first, end):
        use = np.uint64(stack.last_use[blocks[reference]])
        if use == 0:
            break
        if use - np.uint64(1) < oldest:
            oldest = use - np.uint64(1)
            piece += 1
            pieces.needed_blocks[piece] = first - oldest - (stack.all_dead[0] - _dead_before(stack, oldest))
            pieces.request[piece] = request
            pieces.hit_tokens[piece] = 0
        tokens = min((np.int64(reference - first) + 1) * block_tokens, most)
        pieces.hit_tokens[piece] += tokens - counted
        counted = tokens
    pieces.made[0] = piece + 1


@rule
def _use(stack: Stack, blocks: Any, first: Any, end: Any) -> None:
    """Use each block of a request now, which makes the reference of its last use dead."""
    word, newly_dead = np.uint64(0), np.uint64(0)
    for reference in range(first, end):
        block = blocks[reference]
        use = np.uint64(stack.last_use[block])
        if use != 0:
            use -= np.uint64(1)
            if use >> np.uint64(6) != word:
                _count_dead(stack, word, newly_dead)
                word, newly_dead = use >> np.uint64(6), np.uint64(0)
            stack.dead[word] |= np.uint64(1) << (use & np.uint64(63))
            newly_dead += np.uint64(1)
        stack.last_use[block] = reference + np.uint64(1)
    _count_dead(stack, word, newly_dead)


@rule
def _count_dead(stack: Stack, word: Any, count: Any) -> None:
    """Record in the tree that so many more references of a word are dead."""
    if count > 0:
        stack.all_dead[0] += count
        place = word + np.uint64(1)
        while place < stack.sums.size:
            stack.sums[place] += count
            place += place & (~place + np.uint64(1))


@rule
def _dead_before(stack: Stack, reference: Any) -> Any:
    """The number of dead references before this one."""
    word = reference >> np.uint64(6)
    below = (np.uint64(1) << (reference & np.uint64(63))) - np.uint64(1)
    found = _bits(stack.dead[word] & below)
    while word > 0:  # the tree counts from 1, so this sums all words before
        found += stack.sums[word]
        word &= word - np.uint64(1)
    return found


@rule
def _bits(word: Any) -> Any:
    """How many bits of a word are set: sums of 2, 4 and 8 bits, then the sum of the 8 bytes by a multiplication."""
    word = word - ((word >> np.uint64(1)) & np.uint64(0x5555555555555555))
    word = (word & np.uint64(0x3333333333333333)) + ((word >> np.uint64(2)) & np.uint64(0x3333333333333333))
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return (word * np.uint64(0x0101010101010101)) >> np.uint64(56)
