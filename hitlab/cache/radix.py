"""SGLang's prefix cache: a compressed radix tree cut at pages, whose least recent leaves go whole.

Measured on SGLang 0.5.23 with the LRU policy and full attention. Beside its sources, in sglang/srt/mem_cache:
unified_cache/unified_tree_core.py is the tree, unified_radix_cache.py and common.py what requests leave in
it, allocation.py how room is made. ps is the page size, L a prompt's length; floor and ceil are to whole
pages. Not modelled: what admission keeps back for the tokens that running requests may still generate, and
retraction.

S1  The pool holds floor(max_total_num_tokens) tokens. Free is what is neither in the tree nor held
    outside it, in whole pages, by a running request.
S2  A child is found by its first page of tokens and the salt. Lengths and splits are whole pages.
    Recency comes from a counter, not the clock.
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
S10 Chunked prefill, when more than chunk_tokens are uncached: each chunk ends at floor(done + chunk),
    asks for room as S6 does, is inserted and locked. The first comparison is of the ceiled length,
    later ones of the plain one. Nodes end where chunks did.
S11 Nothing is evicted for a request that will not fit.

D1  Stored tokens are prompt + output[:-1]: a token takes its place in the step after the one that
    generated it. A request of more than one token inserts and locks its prompt after prefill.
D2  Each decode step asks for ps free tokens, though it takes a page only when it crosses into one.
    With the overlap scheduler the first step takes its place before the prompt is inserted.
D3  The overlap scheduler is a step ahead of a stop token: ended by one before max_tokens, a request
    has stored its last token too.
"""

from collections import OrderedDict
from collections.abc import Hashable
from contextlib import suppress

from hitlab.cache.model import PoolFullError
from hitlab.errors import InputError
from hitlab.tokens import Prompt

#: Token ids; the tree takes any hashables, so traces that come as block ids need no tokens.
Tokens = tuple[Hashable, ...]


class Node:
    """An edge of the tree and what hangs below it; the root's is empty."""

    __slots__ = ("children", "locks", "parent", "salt", "tokens")

    def __init__(self, parent: "Node | None", tokens: Tokens, salt: str | None) -> None:
        self.parent = parent
        self.tokens = tokens
        self.salt = salt
        self.locks = 0
        self.children: dict[tuple[str | None, Tokens], Node] = {}


class RadixTree:
    """The tree, its recency and its locks; knows nothing of requests.

    >>> tree = RadixTree(page_tokens=1)
    >>> _ = tree.insert((1, 2, 3, 4)), tree.insert((1, 2, 8, 9, 9))
    >>> tree.match((1, 2, 8))[1]
    3
    >>> tree.evict_oldest(), tree.tokens  # (3, 4), as one leaf
    (2, 5)
    """

    def __init__(self, page_tokens: int) -> None:
        self.page_tokens = page_tokens
        self.tokens = 0
        self.locked_tokens = 0
        self._root = Node(None, (), None)
        # S2. Every node but the root, the least recent first. A parent made recent just before its
        # child is that bit older, so the order alone is the engine's time stamps.
        self._recency: OrderedDict[Node, None] = OrderedDict()

    def match(self, tokens: Tokens, salt: str | None = None) -> tuple[Node, int]:
        """The deepest node that is a prefix of the tokens, and its depth in tokens (S3)."""
        node, depth, path = self._root, 0, []
        while depth < len(tokens):
            child = self._child(node, tokens, depth, salt)
            if child is None:
                break
            node = self._cut(child, tokens, depth)
            depth += len(node.tokens)
            path.append(node)
        for node_on_path in path:
            self._recency.move_to_end(node_on_path)
        return node, depth

    def insert(self, tokens: Tokens, salt: str | None = None) -> Node:
        """Make the tokens, whole pages, resident; the node that ends where they do (S8)."""
        node, depth = self._root, 0
        while depth < len(tokens):
            child = self._child(node, tokens, depth, salt)
            if child is None:
                node = self._add(Node(node, tokens[depth:], salt))
                self.tokens += len(node.tokens)
                break
            self._recency.move_to_end(child)
            node = self._cut(child, tokens, depth)
            depth += len(node.tokens)
        return node

    def lock(self, node: Node) -> None:
        """Keep the node and its ancestors from eviction (S5)."""
        while node.parent is not None:
            if not node.locks:
                self.locked_tokens += len(node.tokens)
            node.locks += 1
            node = node.parent

    def unlock(self, node: Node) -> None:
        """Undo one `lock`."""
        while node.parent is not None:
            node.locks -= 1
            if not node.locks:
                self.locked_tokens -= len(node.tokens)
            node = node.parent

    def evict_oldest(self) -> int:
        """Take the least recent unlocked leaf away; how many tokens it had (S7). LookupError without one."""
        # An inner node is as recent as its latest child, give or take that path, so few are passed over.
        for node in self._recency:
            if not node.children and not node.locks:
                return self._remove(node)
        raise LookupError("every leaf is locked")

    def _edge(self, tokens: Tokens, depth: int, salt: str | None) -> tuple[str | None, Tokens]:
        return salt, tokens[depth : depth + self.page_tokens]

    def _child(self, node: Node, tokens: Tokens, depth: int, salt: str | None) -> Node | None:
        return node.children.get(self._edge(tokens, depth, salt))

    def _add(self, node: Node) -> Node:
        assert node.parent is not None
        node.parent.children[self._edge(node.tokens, 0, node.salt)] = node
        self._recency[node] = None
        return node

    def _remove(self, node: Node) -> int:
        assert node.parent is not None
        del node.parent.children[self._edge(node.tokens, 0, node.salt)]
        del self._recency[node]
        self.tokens -= len(node.tokens)
        return len(node.tokens)

    def _cut(self, node: Node, tokens: Tokens, depth: int) -> Node:
        """The part of the node, in whole pages, that the tokens go along with (S3, S4)."""
        ahead = tokens[depth : depth + len(node.tokens)]
        if ahead == node.tokens:
            return node
        shared = common_prefix(node.tokens, ahead)
        return self._split(node, shared - shared % self.page_tokens)

    def _split(self, node: Node, length: int) -> Node:
        upper = self._add(Node(node.parent, node.tokens[:length], node.salt))
        upper.locks = node.locks
        node.tokens = node.tokens[length:]
        node.parent = upper
        upper.children[self._edge(node.tokens, 0, node.salt)] = node
        self._recency.move_to_end(node)
        return upper


def common_prefix(left: Tokens, right: Tokens) -> int:
    """How many tokens the two begin with alike.

    >>> common_prefix((1, 2, 3, 4), (1, 2, 9, 4)), common_prefix((1, 2), (1, 2, 3)), common_prefix((), (1,))
    (2, 2, 0)
    """
    low, high = 0, min(len(left), len(right))
    while low < high:  # comparing whole slices leaves the loop over tokens to C
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


class RadixCache:
    """SGLang's cache of one rank, with its max_total_num_tokens, page_size and chunked_prefill_size.

    `chunk_tokens` None or not positive never chunks; `overlap` False is a server started with
    --disable-overlap-schedule. Raises InputError for sizes that no server has.

    >>> RadixCache(max_total_tokens=1000, page_tokens=16).capacity_tokens
    992
    """

    def __init__(
        self,
        max_total_tokens: int,
        page_tokens: int = 1,
        chunk_tokens: int | None = None,
        overlap: bool = True,
    ) -> None:
        if max_total_tokens < 0 or page_tokens < 1:
            raise InputError(f"no cache has {max_total_tokens} tokens in pages of {page_tokens}")
        if chunk_tokens is not None and 0 < chunk_tokens < page_tokens:
            raise InputError(f"chunks of {chunk_tokens} tokens are shorter than a page of {page_tokens}")
        self.page_tokens = page_tokens
        self.capacity_tokens = self.floor(max_total_tokens)
        self.chunk_tokens = chunk_tokens
        self.overlap = overlap
        self.tree = RadixTree(page_tokens)
        self.evicted_tokens = 0
        self.held_tokens = 0
        self.running = 0

    @property
    def resident_tokens(self) -> int:
        """Tokens in the tree."""
        return self.tree.tokens

    @property
    def free_tokens(self) -> int:
        """Tokens that can be taken without evicting (S1)."""
        return self.capacity_tokens - self.tree.tokens - self.held_tokens

    def begin(self, prompt: Prompt, max_tokens: int = 1) -> "RadixLease":
        """Match the prompt and take room for the rest. Raises PoolFullError if it does not fit now (S11)."""
        length = len(prompt.tokens)
        node, hit_tokens = self.tree.match(prompt.tokens[: self.matchable(length)], prompt.salt or None)
        self.tree.lock(node)
        try:
            self.require(self.wanted(length - hit_tokens))
        except PoolFullError:
            self.tree.unlock(node)
            raise
        return RadixLease(self, prompt, max_tokens, node, hit_tokens)

    def reset(self) -> bool:
        """What /flush_cache does: refused while a request runs."""
        if self.running:
            return False
        self.tree = RadixTree(self.page_tokens)
        return True

    def floor(self, length: int) -> int:
        """The length in whole pages, rounded down."""
        return length - length % self.page_tokens

    def ceil(self, length: int) -> int:
        """The length in whole pages, rounded up."""
        return self.floor(length + self.page_tokens - 1)

    def matchable(self, length: int) -> int:
        """Tokens of a prompt that may be hits: whole pages without the last token (S3)."""
        return self.floor(max(0, length - 1))

    def wanted(self, tokens: int) -> int:
        """The room a prefill of so many tokens asks for (S6)."""
        return tokens if self.page_tokens == 1 else tokens + self.page_tokens

    def require(self, tokens: int) -> None:
        """Raise PoolFullError unless so many tokens are free or can be evicted (S11)."""
        within_reach = self.free_tokens + self.tree.tokens - self.tree.locked_tokens
        if tokens > within_reach:
            raise PoolFullError(
                f"{tokens} tokens are needed and {within_reach} of {self.capacity_tokens} can be had",
                todo="finish a running request first, or give the pool more tokens",
            )

    def make_room(self, tokens: int) -> None:
        """Evict until so many tokens are free (S7). Raises PoolFullError, and then evicts nothing."""
        self.require(tokens)
        while self.free_tokens < tokens:
            self.evicted_tokens += self.tree.evict_oldest()


class RadixLease:
    """What one running request holds: a locked path of the tree, and pages outside it."""

    def __init__(self, cache: RadixCache, prompt: Prompt, max_tokens: int, node: Node, hit_tokens: int) -> None:
        self.hit_tokens = hit_tokens
        self._cache = cache
        self._prompt = prompt.tokens
        self._salt = prompt.salt or None
        self._max_tokens = max_tokens
        self._output: list[int] = []
        self._node = node  # where the locked path ends
        self._on_path = hit_tokens  # tokens on the locked path
        self._stored = hit_tokens  # tokens on it or in pages outside the tree
        self._held = 0  # tokens of those pages
        cache.running += 1
        self._prefill()

    def decode(self, token: int) -> None:
        """The next generated token; the one before it takes its place now (D1). Raises PoolFullError."""
        if len(self._output) == 1:
            self._first_step()
        elif self._output:
            self._step()
        self._output.append(token)

    def finish(self, stopped: bool = False) -> None:
        """Leave all stored tokens in the tree and give the rest back (S9)."""
        if self._is_step_ahead(stopped):
            # An engine too full for that step would have retracted the request; the model drops the step.
            with suppress(PoolFullError):
                self._step()
        whole_pages = self._cache.floor(self._stored)
        self._cache.tree.insert((self._prompt + tuple(self._output))[:whole_pages], self._salt)
        self._insert_prompt_again(whole_pages)
        self._hold(0)
        self._cache.tree.unlock(self._node)
        self._cache.running -= 1

    def _prefill(self) -> None:
        """Store the prompt, chunk by chunk if it is long (S10)."""
        cache, length, chunk = self._cache, len(self._prompt), self._cache.chunk_tokens
        rest = cache.ceil(length - self._on_path)
        while chunk and 0 < chunk < rest:
            self._extend(cache.floor(self._on_path + chunk))
            self._publish(self._stored)
            rest = length - self._on_path
        self._extend(length)

    def _extend(self, length: int) -> None:
        self._cache.make_room(self._cache.wanted(length - self._on_path))
        self._store(length)

    def _first_step(self) -> None:
        """The first decode step, and the prompt's insertion after or before it (D2)."""
        if self._cache.overlap:
            self._step()
            self._publish(len(self._prompt))
        else:
            self._publish(len(self._prompt))
            self._step()

    def _step(self) -> None:
        self._cache.make_room(self._cache.page_tokens)
        self._store(self._stored + 1)

    def _is_step_ahead(self, stopped: bool) -> bool:
        """Whether the scheduler began another step before it saw the stop token (D3)."""
        return stopped and self._cache.overlap and 0 < len(self._output) < self._max_tokens

    def _insert_prompt_again(self, inserted: int) -> None:
        """Split what was inserted where the prompt ends (S9)."""
        prompt = self._prompt[: self._cache.floor(len(self._prompt))]
        if 0 < len(prompt) < inserted:
            self._cache.tree.insert(prompt, self._salt)

    def _publish(self, length: int) -> None:
        """Insert the prompt's first tokens and move the lock to where they end."""
        tree, tokens = self._cache.tree, self._prompt[: self._cache.floor(length)]
        node = tree.insert(tokens, self._salt)
        tree.lock(node)
        tree.unlock(self._node)
        self._node = node
        self._on_path = len(tokens)
        self._store(self._stored)

    def _store(self, length: int) -> None:
        """Hold the pages that so many tokens need outside the tree; duplicates of the tree's are freed."""
        self._stored = length
        self._hold(self._cache.ceil(length) - self._on_path)

    def _hold(self, tokens: int) -> None:
        self._cache.held_tokens += tokens - self._held
        self._held = tokens
