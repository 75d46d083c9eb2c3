"""SGLang's prefix cache on a trace's block ids: rules S1 to S11 of hitlab/cache/radix.py, requests one at a time.

A page is a block; an id stands for it together with all ids before it in its request. The least recent unlocked leaf
of the compressed tree is evicted whole. A request hits at most floor((L-1)/B) blocks, and its floor(L/B) full ones stay
in the tree; above B = 1 it asks for one block more than it takes. One output token, of which nothing is stored; no
chunked prefill. A request that cannot fit is not served: it hits nothing and evicts nothing, but refreshes its match.
"""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hitlab.simulation.structures import LinkedLists, link, linked_list_members, new_linked_lists, rule, unlink
from hitlab.traces.trace import Trace

NAME = "SGLANG"
VARIANT = "SGLang's own rules, one request at a time: a radix tree whose least recent leaf goes whole"
UNIT: Final = "request"
BOUNDED = True
CURVE = None

NOBODY = np.uint32(2**32 - 1)


class Cache(NamedTuple):
    """The radix tree over all prefixes of the trace.

    A node is a run of prefixes, each one block longer than the one before, and has the number of its last one.
    """

    prefixes: NDArray[np.uint32]  # [references]
    parent: NDArray[np.uint32]  # [prefixes], the prefix that is one block shorter, or NOBODY
    depth: NDArray[np.uint32]  # [prefixes], blocks
    wanted_blocks: NDArray[np.uint32]  # [requests], blocks that must fit in the cache, its hits included
    full_blocks: NDArray[np.uint32]  # [requests], floor(L/B), or as many as are listed
    matchable_blocks: NDArray[np.uint32]  # [requests], floor((L-1)/B), or as many as are listed
    here: NDArray[np.bool_]  # [prefixes], in the tree
    top: NDArray[np.uint32]  # [prefixes], the first prefix of a node
    bottom: NDArray[np.uint32]  # [prefixes], the last prefix of the node with this first prefix
    children: NDArray[np.uint32]  # [prefixes], the number of children of a node
    recency: LinkedLists  # of all nodes
    at: NDArray[np.uint32]  # [1]: blocks in the tree
    capacity_blocks: int


def new(trace: Trace, capacity_blocks: int) -> Cache:
    """An empty cache."""
    prefixes, parent, depth = number_prefixes(trace)
    listed = np.diff(trace.starts)
    full = np.minimum(trace.prompt_tokens // trace.block_tokens, listed)
    matchable = np.minimum(np.maximum(trace.prompt_tokens - 1, 0) // trace.block_tokens, listed)
    extra = int(trace.block_tokens > 1)  # S6
    size = parent.size
    return Cache(
        prefixes=prefixes,
        parent=parent,
        depth=depth,
        wanted_blocks=(-(-trace.prompt_tokens // trace.block_tokens) + extra).astype(np.uint32),
        full_blocks=full.astype(np.uint32),
        matchable_blocks=matchable.astype(np.uint32),
        here=np.zeros(size, np.bool_),
        top=np.zeros(size, np.uint32),
        bottom=np.zeros(size, np.uint32),
        children=np.zeros(size, np.uint32),
        recency=new_linked_lists(1, size),
        at=np.zeros(1, np.uint32),
        capacity_blocks=capacity_blocks,
    )


def number_prefixes(trace: Trace) -> tuple[NDArray[np.uint32], NDArray[np.uint32], NDArray[np.uint32]]:
    """Each reference's prefix as a number, and of each prefix its parent and depth.

    >>> [each.tolist() for each in number_prefixes(Trace.of([(3, [7, 8, 7]), (2, [8, 8])], 1))]
    [[0, 2, 4, 1, 3], [4294967295, 4294967295, 0, 1, 2], [1, 1, 2, 2, 3]]
    """
    blocks, starts = trace.blocks.view(np.uint32), trace.starts
    lengths = np.diff(starts)
    before = np.empty_like(blocks)
    before[1:] = blocks[:-1]
    before[starts[:-1][lengths > 0]] = NOBODY
    parent = np.full(trace.distinct_blocks, NOBODY, np.uint32)
    parent[blocks] = before
    place = (np.arange(blocks.size, dtype=np.int64) - np.repeat(starts[:-1], lengths)).astype(np.uint32)
    if np.array_equal(parent[blocks], before):  # ids that stand for their prefix, as chained hashes do
        depth = np.zeros(trace.distinct_blocks, np.uint32)
        depth[blocks] = place + np.uint32(1)
        return blocks, parent, depth
    prefixes = np.empty(blocks.size, np.uint32)
    parents, depths, known = [], [], 0
    order = np.argsort(-lengths, kind="stable")
    for depth_now in range(int(lengths.max())):
        at = starts[order[: int(np.count_nonzero(lengths > depth_now))]] + depth_now
        above = prefixes[at - 1].astype(np.int64) if depth_now else np.full(at.size, -1)
        pairs, numbers = np.unique((above + 1) * trace.distinct_blocks + blocks[at], return_inverse=True)
        prefixes[at] = numbers + known
        parents.append(np.where(depth_now, pairs // trace.distinct_blocks - 1, NOBODY).astype(np.uint32))
        depths.append(np.full(pairs.size, depth_now + 1, np.uint32))
        known += pairs.size
    return prefixes, np.concatenate(parents), np.concatenate(depths)


@rule
def serve(cache: Cache, request: int, first: int, end: int) -> int:
    """Match the request, make room for the rest of it, insert its full blocks; the number of blocks it hit."""
    hits = match(cache, first, first + cache.matchable_blocks[request])
    if cache.wanted_blocks[request] > cache.capacity_blocks:
        return 0
    while cache.capacity_blocks - cache.at[0] + hits < cache.wanted_blocks[request]:
        evict(cache)
    insert(cache, first, first + cache.full_blocks[request])
    return hits


@rule
def match(cache: Cache, first: int, end: int) -> int:
    """The number of leading blocks in the tree; splits the node where they end, makes the path most recent (S3, S4)."""
    matched = first
    while matched < end and cache.here[cache.prefixes[matched]]:
        matched += 1
    at = first
    while at < matched:
        at = next_node(cache, at, matched)
    at = first
    while at < matched:
        node = cache.bottom[cache.prefixes[at]]
        refresh(cache, node)
        at = first + cache.depth[node]
    return int(matched - first)


@rule
def insert(cache: Cache, first: int, end: int) -> None:
    """Make the nodes on the way the most recent, cut where they part, add the rest as one leaf (S8)."""
    resident = first
    while resident < end and cache.here[cache.prefixes[resident]]:
        resident += 1
    at = first
    while at < resident:
        refresh(cache, cache.bottom[cache.prefixes[at]])
        at = next_node(cache, at, resident)
    if at < end:
        leaf = cache.prefixes[end - 1]
        for reference in range(at, end):
            cache.here[cache.prefixes[reference]] = True
        cache.at[0] += end - at
        cache.top[leaf] = cache.prefixes[at]
        cache.bottom[cache.prefixes[at]] = leaf
        cache.children[leaf] = 0
        if at > first:
            cache.children[cache.prefixes[at - 1]] += 1
        link(cache.recency, cache.here.size, leaf)


@rule
def next_node(cache: Cache, at: int, end: int) -> int:
    """Where the node that starts at this reference ends, after a split if it goes beyond `end` (S4)."""
    lower = cache.bottom[cache.prefixes[at]]
    length = cache.depth[lower] - cache.depth[cache.prefixes[at]] + 1
    if length > end - at:
        upper = cache.prefixes[end - 1]
        cache.top[upper] = cache.prefixes[at]
        cache.bottom[cache.prefixes[at]] = upper
        cache.children[upper] = 1
        link(cache.recency, cache.here.size, upper)
        below = lower
        while cache.parent[below] != upper:
            below = cache.parent[below]
        cache.top[lower] = below
        cache.bottom[below] = lower
        refresh(cache, lower)
        return end
    return int(at + length)


@rule
def refresh(cache: Cache, node: int) -> None:
    """Make a node the most recent."""
    unlink(cache.recency, node)
    link(cache.recency, cache.here.size, node)


@rule
def evict(cache: Cache) -> None:
    """Evict the least recent leaf, whole (S7). The matched path needs no lock: it is the most recent."""
    node = cache.recency.after[cache.here.size]
    while cache.children[node] > 0:
        node = cache.recency.after[node]
    above = cache.parent[cache.top[node]]
    if above != NOBODY:
        cache.children[above] -= 1
    unlink(cache.recency, node)
    prefix = node
    while prefix != above:
        cache.here[prefix] = False
        cache.at[0] -= 1
        prefix = cache.parent[prefix]


def size_blocks(cache: Cache) -> int:
    """Blocks in the tree."""
    return int(cache.at[0])


def invariant_violations(cache: Cache) -> list[str]:
    """More blocks than fit, a wrong count, a prefix without its parent, nodes that are not all of the tree."""
    here = np.flatnonzero(cache.here)
    found = []
    if len(here) != cache.at[0]:
        found.append(f"{len(here)} blocks are in the tree, {cache.at[0]} are counted")
    if len(here) > cache.capacity_blocks:
        found.append(f"{len(here)} blocks are in the tree, the capacity is {cache.capacity_blocks}")
    above = cache.parent[here]
    if not cache.here[above[above != NOBODY]].all():
        found.append("a block is in the tree without the one before it")
    nodes = np.array(linked_list_members(cache.recency, cache.here.size), np.int64)
    blocks = cache.depth[nodes].astype(np.int64) - cache.depth[cache.top[nodes]] + 1
    if int(blocks.sum()) != len(here) or not np.array_equal(cache.bottom[cache.top[nodes]], nodes):
        found.append("the nodes are not all of the tree")
    over = cache.parent[cache.top[nodes]]
    children = np.bincount(over[over != NOBODY], minlength=cache.here.size)
    if not np.array_equal(children[nodes], cache.children[nodes]):
        found.append("a node has another number of children than it counts")
    return found
