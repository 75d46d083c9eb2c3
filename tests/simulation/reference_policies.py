"""The policies again, word for word from their rules, on ordered dictionaries: slow, and independent of the kernels.

Each class has `len()`, the number of resident blocks, and `resident(block)` and `access(block)`, or, where a request
is served as a whole, `serve(prompt tokens, block ids, block tokens)`, the blocks it hit.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

from hitlab.cache.model import PoolFullError, serve
from hitlab.cache.paged import BlockPool
from hitlab.cache.radix import RadixCache
from hitlab.tokens import Prompt


class S3Fifo:
    """The listing of the trace-replay rules. Front of a dictionary: head of the queue. Value: freq."""

    def __init__(self, capacity: int, small_ratio: float = 0.1, max_freq: int = 3) -> None:
        self.small_cap = round(capacity * small_ratio)
        self.main_cap = capacity - self.small_cap
        self.ghost_cap = self.main_cap
        self.max_freq = max_freq
        self.small: OrderedDict[Hashable, int] = OrderedDict()
        self.main: OrderedDict[Hashable, int] = OrderedDict()
        self.ghost: OrderedDict[Hashable, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self.small) + len(self.main)

    def resident(self, block: Hashable) -> bool:
        return block in self.small or block in self.main

    def access(self, block: Hashable) -> None:
        if block in self.small:
            self.small[block] = min(self.small[block] + 1, self.max_freq)
        elif block in self.main:
            self.main[block] = min(self.main[block] + 1, self.max_freq)
        elif block in self.ghost:
            del self.ghost[block]
            self.admit_to_main(block, 0)
        else:
            self.admit_to_small(block)

    def admit_to_small(self, block: Hashable) -> None:
        while len(self.small) >= self.small_cap:
            victim, freq = self.small.popitem(last=False)
            if freq >= 1:
                self.admit_to_main(victim, freq)
            else:
                self.insert_to_ghost(victim)
        self.small[block] = 0

    def admit_to_main(self, block: Hashable, freq: int) -> None:
        while len(self.main) >= self.main_cap:
            victim, victim_freq = self.main.popitem(last=False)
            if victim_freq >= 1:
                self.main[victim] = victim_freq - 1
                continue
            self.insert_to_ghost(victim)
            break
        self.main[block] = freq

    def insert_to_ghost(self, block: Hashable) -> None:
        if block in self.ghost:
            del self.ghost[block]
        elif len(self.ghost) >= self.ghost_cap:
            self.ghost.popitem(last=False)
        self.ghost[block] = None


class Lru:
    """Front: least recently used."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.blocks: OrderedDict[Hashable, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self.blocks)

    def resident(self, block: Hashable) -> bool:
        return block in self.blocks

    def access(self, block: Hashable) -> None:
        if block in self.blocks:
            self.blocks.move_to_end(block)
            return
        if len(self.blocks) == self.capacity:
            self.blocks.popitem(last=False)
        self.blocks[block] = None


class Fifo(Lru):
    """Front: first in."""

    def access(self, block: Hashable) -> None:
        if block not in self.blocks:
            super().access(block)


class Lfu:
    """Blocks by last use, least recent in front, with their use counts; the first of the lowest count goes."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.uses: OrderedDict[Hashable, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self.uses)

    def resident(self, block: Hashable) -> bool:
        return block in self.uses

    def access(self, block: Hashable) -> None:
        if block not in self.uses and len(self.uses) == self.capacity:
            del self.uses[min(self.uses, key=lambda each: self.uses[each])]  # min() takes the first of equals
        self.uses[block] = self.uses.get(block, 0) + 1
        self.uses.move_to_end(block)


class Clock(Lru):
    """Front: where the hand is. A block passed over goes to the back without its bit."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.bits: set[Hashable] = set()

    def access(self, block: Hashable) -> None:
        if block in self.blocks:
            self.bits.add(block)
            return
        if len(self.blocks) == self.capacity:
            while (victim := next(iter(self.blocks))) in self.bits:
                self.bits.remove(victim)
                self.blocks.move_to_end(victim)
            del self.blocks[victim]
        self.blocks[block] = None


class Sieve:
    """The listing of the paper on a plain list, newest first; the hand is an index."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.queue: list[Hashable] = []
        self.visited: set[Hashable] = set()
        self.hand: Hashable | None = None

    def __len__(self) -> int:
        return len(self.queue)

    def resident(self, block: Hashable) -> bool:
        return block in self.queue

    def access(self, block: Hashable) -> None:
        if block in self.queue:
            self.visited.add(block)
            return
        if len(self.queue) == self.capacity:
            at = len(self.queue) - 1 if self.hand is None else self.queue.index(self.hand)
            while self.queue[at] in self.visited:
                self.visited.remove(self.queue[at])
                at = at - 1 if at else len(self.queue) - 1
            self.hand = self.queue[at - 1] if at else None
            del self.queue[at]
        self.queue.insert(0, block)


class TwoQ:
    """The listing of the paper's full version. Front: oldest, or least recent."""

    def __init__(self, capacity: int, in_ratio: float = 0.25, out_ratio: float = 0.5) -> None:
        self.capacity = capacity
        self.k_in, self.k_out = int(capacity * in_ratio), int(capacity * out_ratio)
        self.a1in: OrderedDict[Hashable, None] = OrderedDict()
        self.a1out: OrderedDict[Hashable, None] = OrderedDict()
        self.am: OrderedDict[Hashable, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self.a1in) + len(self.am)

    def resident(self, block: Hashable) -> bool:
        return block in self.a1in or block in self.am

    def access(self, block: Hashable) -> None:
        if block in self.am:
            self.am.move_to_end(block)
        elif block in self.a1out:
            del self.a1out[block]
            self.reclaim()
            self.am[block] = None
        elif block not in self.a1in:
            self.reclaim()
            self.a1in[block] = None

    def reclaim(self) -> None:
        if len(self) < self.capacity:
            return
        if len(self.a1in) > self.k_in or not self.am:
            victim, _ = self.a1in.popitem(last=False)
            self.a1out[victim] = None
            if len(self.a1out) > self.k_out:
                self.a1out.popitem(last=False)
        else:
            self.am.popitem(last=False)


class Arc:
    """Figure 4 of the paper, in its words. Front: least recent."""

    def __init__(self, capacity: int) -> None:
        self.c, self.p = capacity, 0.0
        self.t1: OrderedDict[Hashable, None] = OrderedDict()
        self.t2: OrderedDict[Hashable, None] = OrderedDict()
        self.b1: OrderedDict[Hashable, None] = OrderedDict()
        self.b2: OrderedDict[Hashable, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self.t1) + len(self.t2)

    def resident(self, block: Hashable) -> bool:
        return block in self.t1 or block in self.t2

    def access(self, x: Hashable) -> None:
        t1, t2, b1, b2 = self.t1, self.t2, self.b1, self.b2
        if x in t1 or x in t2:
            (t1 if x in t1 else t2).pop(x)
            t2[x] = None
        elif x in b1:
            self.p = min(self.c, self.p + (1 if len(b1) >= len(b2) else len(b2) / len(b1)))
            self.replace(x)
            del b1[x]
            t2[x] = None
        elif x in b2:
            self.p = max(0, self.p - (1 if len(b2) >= len(b1) else len(b1) / len(b2)))
            self.replace(x)
            del b2[x]
            t2[x] = None
        else:
            if len(t1) + len(b1) == self.c:
                if len(t1) < self.c:
                    b1.popitem(last=False)
                    self.replace(x)
                else:
                    t1.popitem(last=False)
            elif len(t1) + len(t2) + len(b1) + len(b2) >= self.c:
                if len(t1) + len(t2) + len(b1) + len(b2) == 2 * self.c:
                    b2.popitem(last=False)
                self.replace(x)
            t1[x] = None

    def replace(self, x: Hashable) -> None:
        if self.t1 and ((x in self.b2 and len(self.t1) == self.p) or len(self.t1) > self.p):
            self.b1[self.t1.popitem(last=False)[0]] = None
        else:
            self.b2[self.t2.popitem(last=False)[0]] = None


class Lirs:
    """The rules of the paper's section 3.3. The stack and the queue each have the least recent in front."""

    def __init__(self, capacity: int, hir_ratio: float = 0.01) -> None:
        self.capacity = capacity
        self.lir_limit = capacity - max(1, int(capacity * hir_ratio))
        self.stack: OrderedDict[Hashable, None] = OrderedDict()
        self.queue: OrderedDict[Hashable, None] = OrderedDict()
        self.lir: set[Hashable] = set()

    def __len__(self) -> int:
        return len(self.lir) + len(self.queue)

    def resident(self, block: Hashable) -> bool:
        return block in self.lir or block in self.queue

    def access(self, block: Hashable) -> None:
        if not self.resident(block) and len(self) == self.capacity:
            self.queue.popitem(last=False)
        was_in_stack = block in self.stack
        self.stack[block] = None
        self.stack.move_to_end(block)
        if block in self.lir:
            pass
        elif was_in_stack:
            self.queue.pop(block, None)
            self.lir.add(block)
            if len(self.lir) > self.lir_limit:
                bottom, _ = self.stack.popitem(last=False)
                self.lir.remove(bottom)
                self.queue[bottom] = None
        elif block in self.queue:
            self.queue.move_to_end(block)
        elif len(self.lir) < self.lir_limit:
            self.lir.add(block)
        else:
            self.queue[block] = None
        while next(iter(self.stack)) not in self.lir:
            self.stack.popitem(last=False)


class Unbounded:
    def __init__(self, capacity: int) -> None:
        self.blocks: set[Hashable] = set()

    def __len__(self) -> int:
        return len(self.blocks)

    def resident(self, block: Hashable) -> bool:
        return block in self.blocks

    def access(self, block: Hashable) -> None:
        self.blocks.add(block)


class Belady(Lru):
    """Told the future first; looks for each block's next use in it, one by one."""

    future: list[Hashable]

    def access(self, block: Hashable) -> None:
        self.future.pop(0)
        if block not in self.blocks and len(self.blocks) == self.capacity:
            never = len(self.future)
            del self.blocks[
                max(self.blocks, key=lambda each: self.future.index(each) if each in self.future else never)
            ]
        self.blocks[block] = None


class Vllm:
    """The pool of the cache model, on block ids as they are."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.pool = BlockPool(capacity + 1)  # and the null block

    def __len__(self) -> int:
        return self.pool.cached_blocks

    def serve(self, prompt_tokens: int, hash_ids: Sequence[Hashable], block_tokens: int) -> int:
        needed = -(-prompt_tokens // block_tokens)
        if needed > self.capacity:
            return 0
        hits = self.pool.find_longest_cache_hit(hash_ids[: max(0, prompt_tokens - 1) // block_tokens])
        self.pool.touch(hits)
        new = self.pool.get_new_blocks(needed - len(hits))
        self.pool.cache_full_blocks(new, hash_ids[len(hits) : prompt_tokens // block_tokens])
        self.pool.free_blocks((hits + new)[::-1])
        return len(hits)


class Sglang:
    """The whole cache model, on tokens made of the block ids: what a server would see."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.cache: RadixCache | None = None
        self.block_tokens = 1
        self.served = 0

    def __len__(self) -> int:
        return self.cache.resident_tokens // self.block_tokens if self.cache else 0

    def serve(self, prompt_tokens: int, hash_ids: Sequence[Hashable], block_tokens: int) -> int:
        if self.cache is None:
            self.cache, self.block_tokens = RadixCache(self.capacity * block_tokens, block_tokens), block_tokens
        self.served += 1
        tokens = [(block, place) for block in hash_ids for place in range(block_tokens)]
        # What no id stands for is a text of the request's own.
        tokens += [(f"own {self.served}", place) for place in range(prompt_tokens - len(tokens))]
        prompt: Any = tuple(tokens[:prompt_tokens])
        try:
            return serve(self.cache, Prompt(prompt)).hit_tokens // block_tokens
        except PoolFullError:
            return 0


REFERENCES: dict[str, Any] = {
    "2q": TwoQ,
    "arc": Arc,
    "belady": Belady,
    "clock": Clock,
    "fifo": Fifo,
    "lfu": Lfu,
    "lirs": Lirs,
    "lru": Lru,
    "s3fifo": S3Fifo,
    "sglang": Sglang,
    "sieve": Sieve,
    "unbounded": Unbounded,
    "vllm": Vllm,
}


def hit_tokens(requests: Iterable[tuple[int, Sequence[Hashable]]], block_tokens: int, policy: Any) -> list[int]:
    """Per request, min(leading resident blocks x block size, prompt tokens), counted before it is accessed."""
    found = []
    requests = list(requests)
    policy.future = [block for _, hash_ids in requests for block in hash_ids]
    for prompt_tokens, hash_ids in requests:
        if hasattr(policy, "serve"):
            leading = policy.serve(prompt_tokens, hash_ids, block_tokens)
        else:
            leading = next((i for i, block in enumerate(hash_ids) if not policy.resident(block)), len(hash_ids))
            for block in hash_ids:
                policy.access(block)
        found.append(min(leading * block_tokens, prompt_tokens))
    return found
