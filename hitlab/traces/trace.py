"""A trace of requests as arrays, and the rules that each request must keep. reader.py reads traces from files."""

import math
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hitlab.errors import TraceError, UsageError

MAX_TOKENS = 2**31 - 1  # of a request or a block, so that a product of two stays within 64 bits

MAX_REFERENCES = 2**31 - 1  # queue cursors have 32 bits and move at most twice a reference

BlockId = int | str


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """Requests in file order; their block ids are interned to 0 .. distinct_blocks - 1.

    The arrays are read-only, as they are when they come memory-mapped to a worker, so that kernels are
    compiled for one kind of array.
    """

    block_tokens: int
    blocks: NDArray[np.int32]  # [references], request after request
    starts: NDArray[np.int64]  # [requests + 1], where each request's blocks start
    prompt_tokens: NDArray[np.int64]  # [requests]
    distinct_blocks: int
    skipped_rows: int = 0
    first_skipped: str = ""  # where the first row left out was, and why
    arrival_s: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))  # [requests], NaN if unknown

    def __post_init__(self) -> None:
        for column in (self.blocks, self.starts, self.prompt_tokens, self.arrival_s):
            column.flags.writeable = False

    @property
    def requests(self) -> int:
        return self.prompt_tokens.size

    def countable_tokens(self, engine_cap: bool = False) -> NDArray[np.int64]:
        """The most tokens of each request that can be hits: all L, or with `engine_cap` those that engines can reuse.

        Engines match whole blocks only and always compute the last token: floor((L-1)/B)*B.

        >>> trace = Trace.of([(29, [1, 2]), (32, [1, 3]), (0, [])], 16)
        >>> trace.countable_tokens().tolist(), trace.countable_tokens(engine_cap=True).tolist()
        ([29, 32, 0], [16, 16, 0])
        """
        if not engine_cap:
            return self.prompt_tokens
        most: NDArray[np.int64] = np.maximum(self.prompt_tokens - 1, 0) // self.block_tokens * self.block_tokens
        return most

    @classmethod
    def of(cls, requests: Iterable[tuple[int, Sequence[BlockId]]], block_tokens: int) -> "Trace":
        """A trace of (prompt tokens, block ids) pairs.

        >>> trace = Trace.of([(29, ["a", "b"]), (16, ["a"]), (40, [7, 2**70])], 16)
        >>> trace.blocks.tolist(), trace.starts.tolist(), trace.distinct_blocks
        ([1, 2, 1, 0, 3], [0, 2, 3, 5], 4)
        """
        builder = TraceBuilder(block_tokens)
        for prompt_tokens, hash_ids in requests:
            builder.add(prompt_tokens, hash_ids)
        return builder.trace()


def check_prompt(prompt_tokens: int) -> None:
    """Raise TraceError for a number of prompt tokens below 0 or above MAX_TOKENS."""
    if not 0 <= prompt_tokens <= MAX_TOKENS:
        raise TraceError(f"{prompt_tokens} prompt tokens", todo=f"a request has 0 to {MAX_TOKENS}")


class TraceBuilder:
    """Collects requests one by one into a trace, in 8 bytes a block reference and no Python objects.

    Ids are opaque. Integers of 64 bits are kept as they are; the rest (strings, longer integers) are numbered
    in a dictionary, and their places remembered, so that 1, "1" and 2**64 + 1 stay three ids.
    """

    def __init__(self, block_tokens: int) -> None:
        if not 1 <= block_tokens <= MAX_TOKENS:
            raise UsageError(f"a block of {block_tokens} tokens", todo=f"choose a block size of 1 to {MAX_TOKENS}")
        self.block_tokens = block_tokens
        self._keys = array("q")
        self._starts = array("q", [0])
        self._prompt_tokens = array("q")
        self._arrival_s = array("d")
        self._symbols: dict[BlockId, int] = {}
        self._symbol_places = array("q")
        self._skipped_rows = 0
        self._first_skipped = ""

    def add(
        self, prompt_tokens: int, hash_ids: Sequence[BlockId], arrival_s: float = math.nan, *, loose: bool = False
    ) -> None:
        """Append a request; raises TraceError, and adds nothing, if it cannot have that many blocks.

        `loose` is for traces whose token counts do not come from the text that was cut into blocks: any number
        of blocks will do.
        """
        check_prompt(prompt_tokens)
        full_blocks, rest = divmod(prompt_tokens, self.block_tokens)
        if not loose and not full_blocks <= len(hash_ids) <= full_blocks + (rest > 0):
            raise _misfit(prompt_tokens, len(hash_ids), self.block_tokens)
        try:
            self._keys.extend(hash_ids)  # type: ignore[arg-type]
        except (TypeError, OverflowError):
            del self._keys[self._starts[-1] :]  # those before the first that is no 64-bit integer
            for hash_id in hash_ids:
                self._add_one(hash_id)
        self._starts.append(len(self._keys))
        self._prompt_tokens.append(prompt_tokens)
        self._arrival_s.append(arrival_s)

    def skip(self, reason: str) -> None:
        """Count a row left out."""
        self._skipped_rows += 1
        self._first_skipped = self._first_skipped or reason

    def trace(self) -> Trace:
        """The trace; the builder takes no more rows afterwards."""
        if len(self._keys) > MAX_REFERENCES:
            raise TraceError(f"more than {MAX_REFERENCES} block references", todo="split the trace")
        blocks, distinct_blocks = self._interned()
        return Trace(
            self.block_tokens,
            blocks,
            np.frombuffer(self._starts, np.int64),
            np.frombuffer(self._prompt_tokens, np.int64),
            distinct_blocks,
            self._skipped_rows,
            self._first_skipped,
            np.frombuffer(self._arrival_s, np.float64),
        )

    def _add_one(self, hash_id: BlockId) -> None:
        if isinstance(hash_id, str) or not -(2**63) <= hash_id < 2**63:
            self._symbol_places.append(len(self._keys))
            hash_id = self._symbols.setdefault(hash_id, len(self._symbols))
        self._keys.append(hash_id)

    def _interned(self) -> tuple[NDArray[np.int32], int]:
        keys = np.frombuffer(self._keys, np.int64)
        if not self._symbols:
            return intern(keys)
        is_symbol = np.zeros(keys.size, np.bool_)
        is_symbol[np.frombuffer(self._symbol_places, np.int64)] = True
        integers, distinct_integers = intern(keys[~is_symbol])
        blocks = np.empty(keys.size, np.int32)
        blocks[~is_symbol] = integers
        blocks[is_symbol] = keys[is_symbol] + distinct_integers
        return blocks, distinct_integers + len(self._symbols)


def intern(ids: NDArray[np.int64]) -> tuple[NDArray[np.int32], int]:
    """Numbers from 0 up in place of ids, equal for equal ids; and how many distinct ids there are.

    >>> intern(np.array([7, 9, 7, 8]))[0].tolist(), intern(np.array([-5, 2**62, -5]))[0].tolist()
    ([0, 2, 0, 1], [0, 1, 0])
    """
    if ids.size == 0:
        return np.zeros(0, np.int32), 0
    lowest = int(ids.min())
    span = int(ids.max()) - lowest + 1
    if span <= min(
        2 * ids.size, MAX_REFERENCES
    ):  # ids that were counted up, as in Mooncake's traces: a table of all values is small
        offsets = (ids - lowest).astype(np.int32)
        used = np.zeros(span, np.bool_)
        used[offsets] = True
        distinct = int(np.count_nonzero(used))
        if distinct == span:
            return offsets, distinct
        return (np.cumsum(used, dtype=np.int32) - np.int32(1))[offsets], distinct
    # Hashes: numbered in the order of first appearance, so that blocks used together lie together.
    order = np.argsort(ids, kind="stable")
    ids = ids[order]
    opens_group = np.concatenate(([True], ids[1:] != ids[:-1]))
    del ids
    first_seen = order[opens_group]
    number = np.empty(first_seen.size, np.int32)
    number[np.argsort(first_seen)] = np.arange(first_seen.size, dtype=np.int32)
    numbers = np.empty(order.size, np.int32)
    numbers[order] = number[np.cumsum(opens_group, dtype=np.int32) - np.int32(1)]
    return numbers, first_seen.size


def fitting_block_tokens(prompt_tokens: int, listed_blocks: int) -> tuple[range, range]:
    """Block sizes at which a request has that many blocks, and at which it has that many full blocks.

    >>> fitting_block_tokens(300, 2)
    (range(150, 300), range(101, 151))
    >>> fitting_block_tokens(33, 3)
    (range(11, 17), range(9, 12))
    """
    tokens, blocks = prompt_tokens, listed_blocks
    endless = MAX_TOKENS + 1
    every = range(-(-tokens // blocks) if blocks else endless, -(-tokens // (blocks - 1)) if blocks > 1 else endless)
    full = range(tokens // (blocks + 1) + 1, tokens // blocks + 1 if blocks else endless)
    return every, full


def _misfit(prompt_tokens: int, listed_blocks: int, block_tokens: int) -> TraceError:
    full_blocks, rest = divmod(prompt_tokens, block_tokens)
    expected = f"{full_blocks:,} or {full_blocks + 1:,}" if rest else f"{full_blocks:,}"
    what = (
        f"hash_ids lists {_count(listed_blocks, 'block')}, but {_count(prompt_tokens, 'token')} "
        f"make {expected} of {_count(block_tokens, 'token')} each"
    )
    every, full = fitting_block_tokens(prompt_tokens, listed_blocks) if prompt_tokens else (range(0), range(0))
    fits = [_span(every)] if every else []
    if full:
        fits.append(f"{_span(full)} if only full blocks are listed")
    if not fits:
        return TraceError(what, todo="no block size fits: correct the row")
    powers = [1 << (sizes[0] - 1).bit_length() for sizes in (every, full) if sizes]
    likely = [power for power in powers if power in every or power in full]
    hint = f"try `block_tokens` {likely[0]}; " if likely else ""
    return TraceError(what, todo=f"{hint}block sizes that fit: {', or '.join(fits)}")


def _span(sizes: range) -> str:
    if sizes[-1] >= MAX_TOKENS:
        return f"{sizes[0]} and more"
    return f"{sizes[0]} to {sizes[-1]}" if len(sizes) > 1 else f"{sizes[0]}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s'[: number != 1]}"
