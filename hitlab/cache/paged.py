"""vLLM's prefix cache: a pool of blocks, found by chained hashes and reused from a free queue.

Measured on vLLM 0.32.0 with one group of full attention. To be read beside its sources in vllm/v1/core, whose
names it uses: block_pool.py is the pool, kv_cache_manager.py and single_type_kv_cache_manager.py what requests
take from it, kv_cache_utils.py the hashes. B is the block size, L a prompt's length. Not modelled: preemption,
and a prefill split over several steps.

V1  Block 0 is the null block and holds nothing. All others start in the free queue.
V2  A block hash stands for a block's tokens and, through its parent's hash, for all tokens before them; the
    salt enters the first block's hash.
V3  A hit is the longest unbroken run of cached hashes from the first block on, at most floor((L-1)/B)
    blocks: the last token is always computed, and with it its block.
V4  One hash can be held by several blocks at once. A lookup answers the oldest of them.
V5  A request takes ceil(L/B) blocks. Hits that wait in the free queue count against it too. If they
    do not all fit the request waits and nothing has changed.
V6  Hit blocks leave the free queue. Any number of running requests may use one block.
V7  New blocks come from the head of the free queue, and lose the hash they had: that is eviction.
V8  Full blocks get their hash when they are taken, before they are computed. The partial last block
    has none.
V9  Decode stores prompt + output[:-1], after a stop token too: a token takes its place in the step
    after the one that generated it. A block is taken when the length crosses into it, and gets its
    hash when it is full.
V10 A finished request gives its blocks back tail first. A block without users goes to the tail of
    the free queue, or to its head when it has no hash.
V11 A reset forgets all hashes, and is refused while a block is in use.

Each rule is a small public method, with the rule's number in its docstring. tests/recordings/ overrides them one
by one in subclasses, which `PagedCache.pool_type` and `lease_type` put into a cache, and shows that each is needed.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence

from hitlab.cache.model import PoolFullError
from hitlab.errors import InputError
from hitlab.tokens import Prompt


class BlockPool:
    """Blocks 0 to num_gpu_blocks-1, their hashes, their users and the free queue; knows nothing of tokens.

    A block is its number. A hash is whatever is hashable, so traces that come as block ids need no tokens.

    >>> pool = BlockPool(num_gpu_blocks=4)
    >>> for hashes in ("abc", "x"):
    ...     blocks = pool.get_new_blocks(len(hashes))
    ...     pool.cache_full_blocks(blocks, hashes)
    ...     pool.free_blocks(blocks[::-1])
    >>> len(pool.find_longest_cache_hit("abc"))  # "x" took the block of "c"
    2
    """

    def __init__(self, num_gpu_blocks: int) -> None:
        self.num_gpu_blocks = num_gpu_blocks
        #: The next to be taken first. An OrderedDict is a queue that gives up any member in O(1).
        self.free_block_queue: OrderedDict[int, None] = OrderedDict.fromkeys(self.usable_blocks())
        #: Running requests that use each block.
        self.ref_cnt = [0] * num_gpu_blocks
        #: The hash of each block that has one.
        self.block_hash: dict[int, Hashable] = {}
        #: The blocks that hold each hash, the oldest first.
        self.cached_block_hash_to_block: dict[Hashable, list[int]] = {}
        #: Blocks that lost their hash to a new owner, since the pool was made.
        self.evicted_blocks = 0

    @property
    def cached_blocks(self) -> int:
        """Blocks with a hash; those that share one each count."""
        return len(self.block_hash)

    def usable_blocks(self) -> range:
        """The blocks that requests may take (V1)."""
        return range(1, self.num_gpu_blocks)

    def get_num_free_blocks(self) -> int:
        """Blocks without a user, with or without a hash."""
        return len(self.free_block_queue)

    def find_longest_cache_hit(self, block_hashes: Iterable[Hashable]) -> list[int]:
        """The blocks of the longest unbroken run of cached hashes (V3)."""
        hits = []
        for block_hash in block_hashes:
            block = self.get_cached_block(block_hash)
            if block is None:
                break
            hits.append(block)
        return hits

    def get_cached_block(self, block_hash: Hashable) -> int | None:
        """The oldest block that holds the hash; None where no block does (V4)."""
        blocks = self.cached_block_hash_to_block.get(block_hash)
        return blocks[0] if blocks else None

    def touch(self, blocks: Iterable[int]) -> None:
        """Add a user to each block (V6)."""
        for block in blocks:
            if not self.ref_cnt[block]:
                del self.free_block_queue[block]
            self.ref_cnt[block] += 1

    def get_new_blocks(self, num_blocks: int) -> list[int]:
        """Blocks from the head of the free queue, without hashes (V7). KeyError when there are too few."""
        blocks = [self.free_block_queue.popitem(last=False)[0] for _ in range(num_blocks)]
        for block in blocks:
            self.ref_cnt[block] = 1
            self.evicted_blocks += self.maybe_evict_cached_block(block)
        return blocks

    def maybe_evict_cached_block(self, block: int) -> bool:
        """Take a block's hash away from it, and only from it (V4, V7); whether it had one."""
        block_hash = self.block_hash.pop(block, None)
        if block_hash is None:
            return False
        blocks = self.cached_block_hash_to_block[block_hash]
        blocks.remove(block)
        if not blocks:
            del self.cached_block_hash_to_block[block_hash]
        return True

    def cache_full_blocks(self, blocks: Iterable[int], block_hashes: Iterable[Hashable]) -> None:
        """Give each block its hash; another block's holding it already does not matter (V4, V8)."""
        for block, block_hash in zip(blocks, block_hashes, strict=False):
            self.block_hash[block] = block_hash
            self.cached_block_hash_to_block.setdefault(block_hash, []).append(block)

    def free_blocks(self, ordered_blocks: Iterable[int]) -> None:
        """Take a user from each block, in this order (V10)."""
        for block in ordered_blocks:
            self.ref_cnt[block] -= 1
            if not self.ref_cnt[block]:
                self.free_block_queue[block] = None
                if block not in self.block_hash:
                    self.free_block_queue.move_to_end(block, last=False)

    def reset_prefix_cache(self) -> bool:
        """Forget all hashes; False while a block is in use (V11)."""
        if self.get_num_free_blocks() < len(self.usable_blocks()):
            return False
        self.block_hash.clear()
        self.cached_block_hash_to_block.clear()
        return True


class PagedLease:
    """The blocks of one running request."""

    def __init__(
        self, cache: "PagedCache", prompt: Prompt, blocks: list[int], last_hash: Hashable, hit_blocks: int
    ) -> None:
        self.cache = cache
        self.blocks = blocks
        self.hit_tokens = hit_blocks * cache.block_tokens
        #: Hash of the last full block.
        self.last_hash = last_hash
        #: Tokens in the last block, while it is not full.
        self.partial = list(prompt.tokens[len(prompt.tokens) // cache.block_tokens * cache.block_tokens :])
        #: The token generated last, which has no place yet.
        self.newest: int | None = None

    def decode(self, token: int) -> None:
        """Report the next generated token; the one before it takes its place now (V9). Raises PoolFullError."""
        if self.newest is not None:
            self.store(self.newest)
        self.newest = token

    def store(self, token: int) -> None:
        """Give a generated token its place (V9). Raises PoolFullError."""
        if not self.partial:
            self.cache.require(1)
            self.blocks += self.cache.pool.get_new_blocks(1)
        self.partial.append(token)
        if len(self.partial) == self.cache.block_tokens:
            self.cache_full_block()

    def cache_full_block(self) -> None:
        """Give the last block, which has become full, its hash (V9)."""
        self.last_hash = self.cache.hash_block_tokens(self.last_hash, tuple(self.partial))
        self.cache.pool.cache_full_blocks(self.blocks[-1:], [self.last_hash])
        self.partial = []

    def finish(self, stopped: bool = False) -> None:
        """Give the blocks back (V10); the newest token was never stored, however the request ended (V9)."""
        self.cache.pool.free_blocks(self.blocks[::-1])
        self.blocks = []


class PagedCache:
    """vLLM's cache of one rank. Raises InputError for sizes that no server has.

    >>> cache = PagedCache(num_gpu_blocks=2048, block_tokens=32)
    >>> cache.capacity_tokens
    65504
    """

    pool_type = BlockPool
    lease_type = PagedLease

    def __init__(self, num_gpu_blocks: int, block_tokens: int = 16) -> None:
        if num_gpu_blocks < 1 or block_tokens < 1:
            raise InputError(f"no cache has {num_gpu_blocks} blocks of {block_tokens} tokens")
        self.pool = self.pool_type(num_gpu_blocks)
        self.block_tokens = block_tokens

    @property
    def capacity_tokens(self) -> int:
        """Tokens in all blocks but the null block (V1)."""
        return len(self.pool.usable_blocks()) * self.block_tokens

    @property
    def resident_tokens(self) -> int:
        """Tokens in blocks with a hash; content held by several blocks counts in each (V4)."""
        return self.pool.cached_blocks * self.block_tokens

    @property
    def evicted_tokens(self) -> int:
        """Tokens in blocks that lost their hash to a new owner (V7)."""
        return self.pool.evicted_blocks * self.block_tokens

    def begin(self, prompt: Prompt, max_tokens: int = 1) -> PagedLease:
        """Look the prompt up and take its blocks, whatever `max_tokens` is. Raises PoolFullError (V5)."""
        pool, length = self.pool, len(prompt.tokens)
        hashes = self.block_hashes(prompt)
        hits = pool.find_longest_cache_hit(hashes[: self.max_hit_blocks(length)])
        self.require(self.get_num_blocks_to_allocate(length, hits))
        pool.touch(hits)
        new_blocks = pool.get_new_blocks(self.num_blocks(length) - len(hits))
        pool.cache_full_blocks(new_blocks, hashes[len(hits) :])
        last_hash = hashes[-1] if hashes else self.none_hash(prompt.salt)
        return self.lease_type(self, prompt, hits + new_blocks, last_hash, len(hits))

    def reset(self) -> bool:
        """What /reset_prefix_cache does (V11)."""
        return self.pool.reset_prefix_cache()

    def num_blocks(self, length: int) -> int:
        """Blocks that so many tokens need (V5)."""
        return -(-length // self.block_tokens)

    def max_hit_blocks(self, length: int) -> int:
        """Blocks of a prompt that may be hits: never the one that holds its last token (V3)."""
        return max(0, length - 1) // self.block_tokens

    def get_num_blocks_to_allocate(self, length: int, hits: Sequence[int]) -> int:
        """Blocks that a prompt takes out of the free queue: new ones, and hits that wait there (V5)."""
        return self.num_blocks(length) - len(hits) + sum(not self.pool.ref_cnt[block] for block in hits)

    def require(self, num_blocks: int) -> None:
        """Raise PoolFullError unless so many blocks are free (V5)."""
        free = self.pool.get_num_free_blocks()
        if num_blocks > free:
            raise PoolFullError(
                f"{num_blocks} blocks are needed and {free} of {len(self.pool.usable_blocks())} are free",
                todo="finish a running request first, or give the pool more blocks",
            )

    def block_hashes(self, prompt: Prompt) -> list[int]:
        """The hashes of a prompt's full blocks, in order, each made with the one before it (V2, V8).

        >>> cache = PagedCache(num_gpu_blocks=9, block_tokens=2)
        >>> a, b = (cache.block_hashes(Prompt((first, 2, 3, 4, 5))) for first in (1, 9))
        >>> len(a), a[0] == b[0], a[1] == b[1]  # the same second block, after another first one
        (2, False, False)
        """
        tokens, size = prompt.tokens, self.block_tokens
        parent, hashes = self.none_hash(prompt.salt), []
        for end in range(size, len(tokens) + 1, size):
            parent = self.hash_block_tokens(parent, tokens[end - size : end])
            hashes.append(parent)
        return hashes

    def none_hash(self, salt: str | None) -> int:
        """What the first block's hash is made with in place of a parent's: the salt (V2)."""
        return hash(salt) if salt else 0

    def hash_block_tokens(self, parent_block_hash: Hashable, tokens: tuple[int, ...]) -> int:
        """A block's hash (V2).

        vLLM's are sha256 digests. Python's own 64-bit hash keeps a million blocks apart with one chance in ten
        million of an error, and takes a fifth of the time.
        """
        return hash((parent_block_hash, tokens))
