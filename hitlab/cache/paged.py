"""vLLM's prefix cache: a pool of blocks, found by chained keys and reused from a free queue.

Measured on vLLM 0.32.0 with one group of full attention. Beside its sources, in vllm/v1/core: block_pool.py
is the pool, kv_cache_manager.py and single_type_kv_cache_manager.py what requests take from it. B is the
block size, L a prompt's length. Not modelled: preemption, and a prefill split over several steps.

V1  Block 0 is the null block and holds nothing. All others start in the free queue.
V2  A key stands for a block's tokens and, through its parent's key, for all tokens before them; the
    salt enters the first block's key.
V3  A hit is the longest unbroken run of resident keys from the first block on, at most
    floor((L-1)/B) blocks: the last token is always computed, and with it its block.
V4  One key can be held by several blocks at once. A lookup answers the oldest of them.
V5  A request takes ceil(L/B) blocks. Hits that wait in the free queue count against it too. If they
    do not all fit the request waits and nothing has changed.
V6  Hit blocks leave the free queue. Any number of running requests may use one block.
V7  New blocks come from the head of the free queue, and lose the key they had: that is eviction.
V8  Full blocks get their key when they are taken, before they are computed. The partial last block
    has none.
V9  Decode stores prompt + output[:-1], after a stop token too: a token takes its place in the step
    after the one that generated it. A block is taken when the length crosses into it, and gets its
    key when it is full.
V10 A finished request gives its blocks back tail first. A block without users goes to the tail of
    the free queue, or to its head when it has no key.
V11 A reset forgets all keys, and is refused while a block is in use.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence

from hitlab.cache.model import PoolFullError
from hitlab.errors import InputError
from hitlab.tokens import Prompt


class BlockPool:
    """Blocks 0 to num_blocks-1, their keys, their users and the free queue; knows nothing of tokens.

    Keys are whatever is hashable, so traces that come as block ids need no tokens.

    >>> pool = BlockPool(num_blocks=4)
    >>> for keys in ("abc", "x"):
    ...     blocks = pool.take(len(keys))
    ...     pool.name(blocks, keys)
    ...     pool.release(blocks)
    >>> len(pool.longest_hit("abc"))  # "x" took the block of "c"
    2
    """

    def __init__(self, num_blocks: int) -> None:
        # V1. An OrderedDict is a queue that gives up any member in O(1).
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_blocks))
        self._users = [0] * num_blocks
        self._key_of: dict[int, Hashable] = {}
        self._blocks_of: dict[Hashable, list[int]] = {}
        self.num_blocks = num_blocks
        self.evicted_blocks = 0

    @property
    def free_blocks(self) -> int:
        """Blocks without a user, with or without a key."""
        return len(self._free)

    @property
    def resident_blocks(self) -> int:
        """Blocks with a key; those that share one each count."""
        return len(self._key_of)

    def longest_hit(self, keys: Iterable[Hashable]) -> list[int]:
        """The blocks of the longest unbroken run of resident keys, the oldest of each key (V3, V4)."""
        hits = []
        for key in keys:
            blocks = self._blocks_of.get(key)
            if blocks is None:
                break
            hits.append(blocks[0])
        return hits

    def count_free(self, blocks: Iterable[int]) -> int:
        """How many of the blocks wait in the free queue."""
        return sum(not self._users[block] for block in blocks)

    def touch(self, blocks: Iterable[int]) -> None:
        """Add a user to each block (V6)."""
        for block in blocks:
            if not self._users[block]:
                del self._free[block]
            self._users[block] += 1

    def take(self, count: int) -> list[int]:
        """Blocks from the head of the free queue, without keys (V7). KeyError when there are too few."""
        taken = [self._free.popitem(last=False)[0] for _ in range(count)]
        for block in taken:
            self._users[block] = 1
            if block in self._key_of:
                self._forget(block)
                self.evicted_blocks += 1
        return taken

    def name(self, blocks: Iterable[int], keys: Iterable[Hashable]) -> None:
        """Give each block its key; another block's holding it already does not matter (V4, V8)."""
        for block, key in zip(blocks, keys, strict=False):
            self._key_of[block] = key
            self._blocks_of.setdefault(key, []).append(block)

    def release(self, blocks: Sequence[int]) -> None:
        """Take a user from each block, tail first (V10)."""
        for block in reversed(blocks):
            self._users[block] -= 1
            if not self._users[block]:
                self._free[block] = None
                if block not in self._key_of:
                    self._free.move_to_end(block, last=False)

    def reset(self) -> bool:
        """Forget all keys; False while a block is in use (V11)."""
        if len(self._free) < self.num_blocks - 1:
            return False
        self._key_of.clear()
        self._blocks_of.clear()
        return True

    def _forget(self, block: int) -> None:
        key = self._key_of.pop(block)
        holders = self._blocks_of[key]
        holders.remove(block)
        if not holders:
            del self._blocks_of[key]


def block_keys(prompt: Prompt, block_tokens: int) -> list[int]:
    """The chained keys of a prompt's full blocks, in order (V2).

    vLLM's are sha256 digests. Python's own 64-bit hash keeps a million blocks apart with one chance in ten
    million of an error, and takes a fifth of the time.

    >>> a, b = (block_keys(Prompt((first, 2, 3, 4, 5)), block_tokens=2) for first in (1, 9))
    >>> len(a), a[0] == b[0], a[1] == b[1]  # the same second block, after another first one
    (2, False, False)
    """
    tokens = prompt.tokens
    key, keys = _root_key(prompt.salt), []
    for end in range(block_tokens, len(tokens) + 1, block_tokens):
        key = _chain(key, tokens[end - block_tokens : end])
        keys.append(key)
    return keys


def _root_key(salt: str | None) -> int:
    return hash(salt) if salt else 0


def _chain(parent: int, tokens: tuple[int, ...]) -> int:
    return hash((parent, tokens))


class PagedCache:
    """vLLM's cache of one rank; `num_blocks` is its num_gpu_blocks, the null block included.

    >>> cache = PagedCache(num_blocks=2048, block_tokens=32)
    >>> cache.capacity_tokens
    65504
    """

    def __init__(self, num_blocks: int, block_tokens: int = 16) -> None:
        if num_blocks < 1 or block_tokens < 1:
            raise InputError(f"no cache has {num_blocks} blocks of {block_tokens} tokens")
        self.pool = BlockPool(num_blocks)
        self.block_tokens = block_tokens

    @property
    def capacity_tokens(self) -> int:
        """Tokens in all blocks but the null block (V1)."""
        return (self.pool.num_blocks - 1) * self.block_tokens

    @property
    def resident_tokens(self) -> int:
        """Tokens in blocks with a key; content held by several blocks counts in each (V4)."""
        return self.pool.resident_blocks * self.block_tokens

    @property
    def evicted_tokens(self) -> int:
        """Tokens in blocks that lost their key to a new owner (V7)."""
        return self.pool.evicted_blocks * self.block_tokens

    def begin(self, prompt: Prompt, max_tokens: int = 1) -> "PagedLease":
        """Look the prompt up and take its blocks, whatever `max_tokens` is. Raises PoolFullError (V5)."""
        pool, length = self.pool, len(prompt.tokens)
        keys = block_keys(prompt, self.block_tokens)
        hits = pool.longest_hit(keys[: self.max_hit_blocks(length)])
        new_blocks = -(-length // self.block_tokens) - len(hits)
        self.require(new_blocks + pool.count_free(hits))
        pool.touch(hits)
        taken = pool.take(new_blocks)
        pool.name(taken, keys[len(hits) :])
        return PagedLease(self, prompt, hits + taken, keys[-1] if keys else _root_key(prompt.salt), len(hits))

    def max_hit_blocks(self, length: int) -> int:
        """Blocks of a prompt that may be hits: never the one that holds its last token (V3)."""
        return max(0, length - 1) // self.block_tokens

    def require(self, blocks: int) -> None:
        """Raise PoolFullError unless so many blocks are free (V5)."""
        free, usable = self.pool.free_blocks, self.pool.num_blocks - 1
        if blocks > free:
            raise PoolFullError(
                f"{blocks} blocks are needed and {free} of {usable} are free",
                todo="finish a running request first, or give the pool more blocks",
            )

    def reset(self) -> bool:
        """What /reset_prefix_cache does (V11)."""
        return self.pool.reset()


class PagedLease:
    """The blocks of one running request."""

    def __init__(self, cache: PagedCache, prompt: Prompt, blocks: list[int], last_key: int, hit_blocks: int) -> None:
        self.hit_tokens = hit_blocks * cache.block_tokens
        self._cache = cache
        self._blocks = blocks
        self._last_key = last_key
        self._partial = list(prompt.tokens[len(prompt.tokens) // cache.block_tokens * cache.block_tokens :])
        self._newest: int | None = None

    def decode(self, token: int) -> None:
        """The next generated token; the one before it takes its place now (V9). Raises PoolFullError."""
        if self._newest is not None:
            self._store(self._newest)
        self._newest = token

    def finish(self, stopped: bool = False) -> None:
        """Give the blocks back (V10); the newest token was never stored, however the request ended (V9)."""
        self._cache.pool.release(self._blocks)
        self._blocks = []

    def _store(self, token: int) -> None:
        pool = self._cache.pool
        if not self._partial:
            self._cache.require(1)
            self._blocks += pool.take(1)
        self._partial.append(token)
        if len(self._partial) == self._cache.block_tokens:
            self._last_key = _chain(self._last_key, tuple(self._partial))
            pool.name(self._blocks[-1:], [self._last_key])
            self._partial = []
