"""SGLang's prefix cache: a compressed radix tree cut at pages, whose least recent leaves go whole.

Measured on SGLang 0.5.23 with the LRU policy and full attention. To be read beside its sources in
sglang/srt/mem_cache, whose names it uses: unified_cache/unified_tree_core.py is the tree,
unified_radix_cache.py and common.py what requests leave in it, allocation.py how room is made. ps is the page
size, L a prompt's length; floor and ceil are to whole pages. Not modelled: what admission keeps back for the
tokens that running requests may still generate, and retraction.

S1  The pool holds floor(max_total_num_tokens) tokens. Available is what is neither in the tree nor held
    outside it, in whole pages, by a running request.
S2  A child is found by its first page of tokens and the extra key, which is the salt. Lengths and splits
    are whole pages. Recency comes from a counter, not the clock.
S3  A request matches floor(prompt[:L-1]). A match that ends inside a node splits it there. The
    matched path becomes the most recent, the deepest node last.
S4  A split makes the upper part recent, then the rest: sharing half a leaf refreshes all of it.
S5  The matched path is locked up to the root, and locked nodes are not evicted.
S6  Prefill asks for its uncached tokens, and above page size 1 for one page more than it takes.
S7  Eviction takes the least recent unlocked leaf whole, again and again until there is room; a
    parent left without children is a leaf from then on, as recent as it was.
S8  Insertion makes each node on the way recent, splits as S4 does and adds the rest as one leaf.
    Tokens the tree has already are freed.
S9  A finished request inserts floor(all its stored tokens). If that is longer than floor(L) and
    floor(L) is not 0, it inserts its prompt once more, which splits at the prompt's end and makes the
    prompt's path recent. What is left of a page is freed, the path unlocked.
S10 Chunked prefill, when more than chunked_prefill_size are uncached: each chunk ends at
    floor(done + chunk), asks for room as S6 does, is inserted and locked. The first comparison is of the
    ceiled length, later ones of the plain one. Nodes end where chunks did.
S11 Nothing is evicted for a request that will not fit.

D1  Stored tokens are prompt + output[:-1]: a token takes its place in the step after the one that
    generated it. A request of more than one token inserts and locks its prompt after prefill.
D2  Each decode step asks for ps free tokens, though it takes a page only when it crosses into one.
    With the overlap scheduler the first step takes its place before the prompt is inserted.
D3  The overlap scheduler is a step ahead of a stop token: ended by one before max_tokens, a request
    has stored its last token too.

Each rule is a small public method, with the rule's number in its docstring. tests/recordings/ overrides them one
by one in subclasses, which `RadixCache.tree_type` and `lease_type` put into a cache, and shows that each is needed.
"""

from contextlib import suppress

from hitlab.cache.model import PoolFullError
from hitlab.cache.radix_tree import RadixTree, Tokens, TreeNode
from hitlab.errors import InputError
from hitlab.tokens import Prompt


class RadixLease:
    """What one running request holds: a locked path of the tree, and pages outside it."""

    def __init__(self, cache: "RadixCache", prompt: Prompt, max_tokens: int, node: TreeNode, hit_tokens: int) -> None:
        self.hit_tokens = hit_tokens
        self.cache = cache
        self.prompt: Tokens = prompt.tokens
        self.extra_key = prompt.salt or None
        self.max_tokens = max_tokens
        self.output: list[int] = []
        #: Where the locked path ends, and how many tokens are on it.
        self.last_node = node
        self.path_tokens = hit_tokens
        #: Tokens on the path or in pages outside the tree, and the tokens of those pages.
        self.stored_tokens = hit_tokens
        self.held_tokens = 0
        cache.running += 1
        self.prefill()

    def decode(self, token: int) -> None:
        """Report the next generated token; the one before it takes its place now (D1). Raises PoolFullError."""
        if len(self.output) == 1:
            self.first_decode_step()
        elif self.output:
            self.decode_step()
        self.output.append(token)

    def finish(self, stopped: bool = False) -> None:
        """Leave all stored tokens in the tree and give the rest back (S9)."""
        if self.is_step_ahead(stopped):
            # An engine too full for that step would have retracted the request; the model drops the step.
            with suppress(PoolFullError):
                self.decode_step()
        whole_pages = self.cache.floor(self.stored_tokens)
        self.cache.tree.insert((self.prompt + tuple(self.output))[:whole_pages], self.extra_key)
        self.insert_prompt_again(whole_pages)
        self.hold(0)
        self.cache.tree.dec_lock_ref(self.last_node)
        self.cache.running -= 1

    def prefill(self) -> None:
        """Store the prompt, chunk by chunk if it is long (S10)."""
        length, chunk = len(self.prompt), self.cache.chunked_prefill_size
        rest = self.first_prefill_length()
        while chunk and 0 < chunk < rest:
            self.extend(self.cache.floor(self.path_tokens + chunk))
            self.cache_unfinished_req(self.stored_tokens)
            rest = length - self.path_tokens
        self.extend(length)

    def first_prefill_length(self) -> int:
        """What is compared with the chunk size at first: the uncached tokens in whole pages (S10)."""
        return self.cache.ceil(len(self.prompt) - self.path_tokens)

    def extend(self, length: int) -> None:
        """Compute and store the prompt up to this length. Raises PoolFullError."""
        self.cache.make_room(self.cache.prefill_room(length - self.path_tokens))
        self.store(length)

    def first_decode_step(self) -> None:
        """The first decode step, and the prompt's insertion after or before it (D2)."""
        if self.cache.overlap_schedule:
            self.decode_step()
            self.cache_unfinished_req(len(self.prompt))
        else:
            self.cache_unfinished_req(len(self.prompt))
            self.decode_step()

    def decode_step(self) -> None:
        """Store one generated token, after asking for a page (D2). Raises PoolFullError."""
        self.cache.make_room(self.cache.page_size)
        self.store(self.stored_tokens + 1)

    def is_step_ahead(self, stopped: bool) -> bool:
        """Whether the scheduler began another step before it saw the stop token (D3)."""
        return stopped and self.cache.overlap_schedule and 0 < len(self.output) < self.max_tokens

    def insert_prompt_again(self, inserted: int) -> None:
        """Split what was inserted where the prompt ends (S9)."""
        prompt = self.prompt[: self.cache.floor(len(self.prompt))]
        if 0 < len(prompt) < inserted:
            self.cache.tree.insert(prompt, self.extra_key)

    def cache_unfinished_req(self, length: int) -> None:
        """Insert the prompt's first tokens and move the lock to where they end (S10, D1)."""
        tree, tokens = self.cache.tree, self.prompt[: self.cache.floor(length)]
        node = tree.insert(tokens, self.extra_key)
        tree.inc_lock_ref(node)
        tree.dec_lock_ref(self.last_node)
        self.last_node = node
        self.path_tokens = len(tokens)
        self.store(self.stored_tokens)

    def store(self, length: int) -> None:
        """Hold the pages that so many tokens need outside the tree; what the tree has already is freed (S1, S8)."""
        self.stored_tokens = length
        self.hold(self.cache.ceil(length) - self.path_tokens)

    def hold(self, tokens: int) -> None:
        """Hold so many tokens outside the tree, in whole pages (S1)."""
        self.cache.held_tokens += tokens - self.held_tokens
        self.held_tokens = tokens


class RadixCache:
    """SGLang's cache of one rank; the arguments are named as the engine's own options.

    `chunked_prefill_size` None or not positive never chunks; `overlap_schedule` False is a server started with
    --disable-overlap-schedule. Raises InputError for sizes that no server has.

    >>> RadixCache(max_total_num_tokens=1000, page_size=16).capacity_tokens
    992
    """

    tree_type = RadixTree
    lease_type = RadixLease

    def __init__(
        self,
        max_total_num_tokens: int,
        page_size: int = 1,
        chunked_prefill_size: int | None = None,
        overlap_schedule: bool = True,
    ) -> None:
        if max_total_num_tokens < 0 or page_size < 1:
            raise InputError(f"no cache has {max_total_num_tokens} tokens in pages of {page_size}")
        if chunked_prefill_size is not None and 0 < chunked_prefill_size < page_size:
            raise InputError(f"chunks of {chunked_prefill_size} tokens are shorter than a page of {page_size}")
        self.page_size = page_size
        self.capacity_tokens = self.floor(max_total_num_tokens)
        self.chunked_prefill_size = chunked_prefill_size
        self.overlap_schedule = overlap_schedule
        self.tree = self.tree_type(page_size)
        self.evicted_tokens = 0
        #: Tokens that running requests hold outside the tree, and how many requests run.
        self.held_tokens = 0
        self.running = 0

    @property
    def resident_tokens(self) -> int:
        """Tokens in the tree."""
        return self.tree.total_size

    @property
    def available_size(self) -> int:
        """Tokens that can be taken without evicting (S1)."""
        return self.capacity_tokens - self.tree.total_size - self.held_tokens

    def begin(self, prompt: Prompt, max_tokens: int = 1) -> RadixLease:
        """Match the prompt and take room for the rest. Raises PoolFullError if it does not fit now (S11)."""
        length = len(prompt.tokens)
        node, hit_tokens = self.tree.match_prefix(prompt.tokens[: self.matchable(length)], prompt.salt or None)
        self.tree.inc_lock_ref(node)
        try:
            self.require(self.prefill_room(length - hit_tokens))
        except PoolFullError:
            self.tree.dec_lock_ref(node)
            raise
        return self.lease_type(self, prompt, max_tokens, node, hit_tokens)

    def reset(self) -> bool:
        """What /flush_cache does: refused while a request runs."""
        if self.running:
            return False
        self.tree = self.tree_type(self.page_size)
        return True

    def floor(self, length: int) -> int:
        """The length in whole pages, rounded down (S1, S2)."""
        return length - length % self.page_size

    def ceil(self, length: int) -> int:
        """The length in whole pages, rounded up."""
        return self.floor(length + self.page_size - 1)

    def matchable(self, length: int) -> int:
        """Tokens of a prompt that may be hits: whole pages without the last token (S3)."""
        return self.floor(max(0, length - 1))

    def prefill_room(self, tokens: int) -> int:
        """The room that a prefill of so many tokens asks for (S6)."""
        return tokens if self.page_size == 1 else tokens + self.page_size

    def require(self, tokens: int) -> None:
        """Raise PoolFullError unless so many tokens are free or can be evicted (S11)."""
        within_reach = self.available_size + self.tree.evictable_size
        if tokens > within_reach:
            raise PoolFullError(
                f"{tokens} tokens are needed and {within_reach} of {self.capacity_tokens} can be had",
                todo="finish a running request first, or give the pool more tokens",
            )

    def make_room(self, tokens: int) -> None:
        """Evict until so many tokens are free (S7). Raises PoolFullError, and then evicts nothing."""
        self.require(tokens)
        while self.available_size < tokens:
            self.evicted_tokens += self.tree.evict_leaf()
