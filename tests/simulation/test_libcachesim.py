"""Block hits, one by one, beside libcachesim's; where it leaves a paper, how, and that this alone is the difference."""

from collections import OrderedDict
from collections.abc import Hashable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from simulation.reference_policies import hit_tokens

from hitlab.simulation import replay
from hitlab.simulation.policy import load_policy
from hitlab.traces.reader import read_trace
from hitlab.traces.trace import Trace

libcachesim = pytest.importorskip("libcachesim", reason="libcachesim is not installed: pip install libcachesim")

THEIRS = {
    "2q": "TwoQ",
    "arc": "ARC",
    "belady": "Belady",
    "clock": "Clock",
    "fifo": "FIFO",
    "lfu": "LFU",
    "lru": "LRU",
    "sieve": "Sieve",
}


def skewed() -> list[int]:
    random = Random(1)
    return [int(300 * random.random() ** 3) for _ in range(5000)]


def prefixes() -> list[int]:
    random, blocks = Random(2), []
    for _ in range(700):
        first = int(100 * random.random() ** 2)
        blocks += [first, *range(200 + first * 10, 200 + first * 10 + random.randrange(9))]
    return blocks


@pytest.fixture(scope="module", params=[skewed, prefixes])
def blocks(request: pytest.FixtureRequest) -> list[int]:
    numbers: dict[int, int] = {}
    return [numbers.setdefault(block, len(numbers)) for block in request.param()]


def theirs(name: str, blocks: list[int], capacity: int) -> list[bool]:
    cache: Any = getattr(libcachesim, name)(capacity, hashpower=14)
    following, seen = [2**63 - 1] * len(blocks), dict[int, int]()
    for now, block in reversed(list(enumerate(blocks))):
        following[now] = seen.get(block, 2**63 - 1)
        seen[block] = now + 1
    request: Any = libcachesim.Request()
    request.obj_size = 1
    hits = []
    for now, block in enumerate(blocks):
        request.obj_id, request.clock_time = block, now
        request.next_access_vtime = following[now]
        hits.append(bool(cache.get(request)))
    return hits


def ours(name: str, blocks: list[int], capacity: int) -> list[bool]:
    one_each = Trace.of([(1, [block]) for block in blocks], 1)
    hits: list[bool] = (replay.replay(one_each, load_policy(name), capacity).hit_tokens > 0).tolist()
    return hits


def referenced(cache: Any, blocks: list[int]) -> list[bool]:
    hits = []
    for block in blocks:
        hits.append(cache.resident(block))
        cache.access(block)
    return hits


@pytest.mark.parametrize("capacity", [8, 40, 100, 150])
@pytest.mark.parametrize("name", THEIRS)
def test_every_block_hit_is_theirs(name: str, capacity: int, blocks: list[int]) -> None:
    assert ours(name, blocks, capacity) == theirs(THEIRS[name], blocks, capacity)


class LirsOfLibcachesim:
    """A hit on a block that is in the queue only demotes a LIR block, too, so the LIR set is no longer full.

    Room for the demoted is made by evicting from the queue, be it the block that was hit: that one stays in the
    stack as resident though nothing holds it. The stack forgets evicted blocks beyond twice the capacity.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.hir_blocks = max(1, int(capacity * 0.01))
        self.lir_blocks = capacity - self.hir_blocks
        self.stack: OrderedDict[Hashable, str] = OrderedDict()  # bottom first: LIR, HIR or GONE
        self.queue: OrderedDict[Hashable, None] = OrderedDict()
        self.gone: OrderedDict[Hashable, None] = OrderedDict()
        self.lirs = 0

    def resident(self, block: Hashable) -> bool:
        return self.stack.get(block, "HIR" if block in self.queue else "GONE") != "GONE"

    def access(self, block: Hashable) -> None:
        state, queued = self.stack.get(block), block in self.queue
        for place in (self.stack, self.queue):
            if block in place:
                place.move_to_end(block)
        if state == "LIR":
            self.prune()
        elif state is not None or queued:
            if state is not None:
                self.queue.pop(block, None)
            while self.lirs >= self.lir_blocks:
                self.demote()
            self.gone.pop(block, None)
            self.stack[block] = "HIR" if state is None else "LIR"
            self.lirs += state is not None
        elif self.lirs < self.lir_blocks:
            self.stack[block] = "LIR"
            self.lirs += 1
        else:
            self.make_room()
            self.stack[block] = "HIR"
            self.queue[block] = None
        while len(self.stack) > 2 * self.capacity and self.gone:
            del self.stack[self.gone.popitem(last=False)[0]]

    def demote(self) -> None:
        bottom, _ = self.stack.popitem(last=False)
        self.lirs -= 1
        self.make_room()
        self.queue[bottom] = None
        self.prune()

    def make_room(self) -> None:
        while len(self.queue) >= self.hir_blocks:
            victim, _ = self.queue.popitem(last=False)
            if victim in self.stack:
                self.stack[victim] = "GONE"
                self.gone[victim] = None

    def prune(self) -> None:
        while len(self.stack) > 1 and self.stack[bottom := next(iter(self.stack))] != "LIR":
            del self.stack[bottom]
            self.gone.pop(bottom, None)


@pytest.mark.parametrize("capacity", [8, 40, 100, 150, 220])
def test_their_lirs_demotes_on_hits_in_the_queue_and_bounds_the_stack(capacity: int, blocks: list[int]) -> None:
    libcachesims = theirs("LIRS", blocks, capacity)
    assert capacity > 40 or ours("lirs", blocks, capacity) != libcachesims  # with room enough they agree
    assert referenced(LirsOfLibcachesim(capacity), blocks) == libcachesims


class S3FifoOfLibcachesim:
    """Small may use main's room and the other way round; two uses to be promoted, none kept; sizes truncated."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.small_blocks = int(capacity * 0.1)
        self.main_blocks = capacity - self.small_blocks
        self.ghost_blocks = int(capacity * 0.9)
        self.small: OrderedDict[Hashable, int] = OrderedDict()
        self.main: OrderedDict[Hashable, int] = OrderedDict()
        self.ghost: OrderedDict[Hashable, None] = OrderedDict()
        self.has_evicted = False

    def resident(self, block: Hashable) -> bool:
        return block in self.small or block in self.main

    def access(self, block: Hashable) -> None:
        for queue in (self.small, self.main):
            if block in queue:
                queue[block] += 1
                return
        remembered = block in self.ghost
        self.ghost.pop(block, None)
        while len(self.small) + len(self.main) >= self.capacity:
            self.evict()
        full = not self.has_evicted and len(self.small) >= self.small_blocks
        (self.main if remembered or full else self.small)[block] = 0

    def evict(self) -> None:
        self.has_evicted = True
        if len(self.main) > self.main_blocks or not self.small:
            while True:
                block, uses = self.main.popitem(last=False)
                if not uses:
                    return
                self.main[block] = min(uses, 3) - 1
        while self.small:
            block, uses = self.small.popitem(last=False)
            if uses < 2:
                if len(self.ghost) == self.ghost_blocks:
                    self.ghost.popitem(last=False)
                self.ghost[block] = None
                return
            self.main[block] = 0


@pytest.mark.parametrize("capacity", [45, 100, 155])
def test_their_s3fifo_borrows_room_promotes_at_two_and_truncates(capacity: int, blocks: list[int]) -> None:
    libcachesims = theirs("S3FIFO", blocks, capacity)
    assert ours("s3fifo", blocks, capacity) != libcachesims
    assert referenced(S3FifoOfLibcachesim(capacity), blocks) == libcachesims


def test_their_s3fifo_with_prefix_hits_has_the_rate_published_for_it(shared: Path) -> None:
    trace = read_trace(shared / "traces" / "conversation_trace.jsonl")
    blocks, starts = trace.blocks.tolist(), trace.starts.tolist()
    requests = [
        (tokens, blocks[first:end])
        for tokens, first, end in zip(trace.prompt_tokens.tolist(), starts, starts[1:], strict=False)
    ]
    hits = hit_tokens(requests, trace.block_tokens, S3FifoOfLibcachesim(11_275))
    steady = replay.first_warm(trace.requests, 0.5)
    assert sum(hits[steady:]) / trace.prompt_tokens[steady:].sum() == pytest.approx(0.2093, abs=6e-5)
