"""vLLM's prefix cache on a trace's block ids: rules V1 to V10 of hitlab/cache/paged.py, requests one at a time.

The ids stand for vLLM's chained block keys. The capacity is blocks that can be used, without vLLM's null block. A
request hits at most floor((L-1)/B) blocks and takes ceil(L/B); only its floor(L/B) full blocks get a key, so a hit on
a partial last block never counts, whether or not the trace lists one. One output token, of which nothing is stored. A
request longer than the cache is not served: it hits nothing and leaves the cache as it is.
"""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hitlab.simulation.structures import LinkedLists, link, linked_list_members, new_linked_lists, rule, unlink
from hitlab.traces.trace import Trace

NAME = "VLLM"
VARIANT = "vLLM's own rules, one request at a time: only full blocks, freed tail first, a key may have several blocks"
UNIT: Final = "request"
BOUNDED = True
CURVE = None

NOBODY = np.uint32(2**32 - 1)


class Cache(NamedTuple):
    """A pool of places for blocks: the key of each place, the places of each key, and the free queue."""

    blocks: NDArray[np.uint32]  # [references]
    taken_blocks: NDArray[np.uint32]  # [requests], ceil(L/B)
    full_blocks: NDArray[np.uint32]  # [requests], floor(L/B), or as many as are listed
    matchable_blocks: NDArray[np.uint32]  # [requests], floor((L-1)/B), or as many as are listed
    key: NDArray[np.uint32]  # [places], NOBODY without one
    users: NDArray[np.uint32]  # [places]
    older: NDArray[np.uint32]  # [places], the place that got the same key before, or NOBODY
    newer: NDArray[np.uint32]  # [places], the place that got the same key after, or NOBODY
    oldest: NDArray[np.uint32]  # [distinct blocks], the first place of a key, or NOBODY
    newest: NDArray[np.uint32]  # [distinct blocks], the last place of a key, or NOBODY
    free: LinkedLists  # the place to be taken next comes first
    held: NDArray[np.uint32]  # [blocks of the longest request], places held by the request being served
    at: NDArray[np.uint32]  # [1]: places with a key
    capacity_blocks: int


def new(trace: Trace, capacity_blocks: int) -> Cache:
    """An empty cache."""
    taken = -(-trace.prompt_tokens // trace.block_tokens)
    full = trace.prompt_tokens // trace.block_tokens
    listed = np.diff(trace.starts)
    matchable = np.minimum(np.maximum(trace.prompt_tokens - 1, 0) // trace.block_tokens, listed)
    places = min(capacity_blocks, int(taken.sum()))  # more would never be taken
    distinct = trace.distinct_blocks
    free = new_linked_lists(1, places)
    line = np.append(np.arange(places, dtype=np.uint32), np.uint32(places))
    free.after[:] = np.roll(line, -1)
    free.before[:] = np.roll(line, 1)
    return Cache(
        blocks=trace.blocks.view(np.uint32),
        taken_blocks=taken.astype(np.uint32),
        full_blocks=np.minimum(full, listed).astype(np.uint32),
        matchable_blocks=matchable.astype(np.uint32),
        key=np.full(places, NOBODY, np.uint32),
        users=np.zeros(places, np.uint32),
        older=np.full(places, NOBODY, np.uint32),
        newer=np.full(places, NOBODY, np.uint32),
        oldest=np.full(distinct, NOBODY, np.uint32),
        newest=np.full(distinct, NOBODY, np.uint32),
        free=free,
        held=np.zeros(int(taken.max(initial=0)), np.uint32),
        at=np.zeros(1, np.uint32),
        capacity_blocks=capacity_blocks,
    )


@rule
def serve(cache: Cache, request: int, first: int, end: int) -> int:
    """Look the request up, take a place for each of its blocks, release them; the number of blocks it hit."""
    taken = cache.taken_blocks[request]
    if taken > cache.capacity_blocks:
        return 0
    hits = 0
    while hits < cache.matchable_blocks[request] and cache.oldest[cache.blocks[first + hits]] != NOBODY:
        cache.held[hits] = cache.oldest[cache.blocks[first + hits]]
        hits += 1
    for i in range(hits):
        touch(cache, cache.held[i])
    for i in range(hits, taken):
        cache.held[i] = take(cache)
    for i in range(hits, cache.full_blocks[request]):
        name(cache, cache.held[i], cache.blocks[first + i])
    for i in range(taken):
        release(cache, cache.held[taken - 1 - i])
    return hits


@rule
def touch(cache: Cache, place: int) -> None:
    """Add a user to a place, which leaves the free queue if it was there (V6)."""
    if cache.users[place] == 0:
        unlink(cache.free, place)
    cache.users[place] += 1


@rule
def take(cache: Cache) -> int:
    """Take the place at the head of the free queue, and its key from it (V7)."""
    place = cache.free.after[cache.key.size]
    unlink(cache.free, place)
    cache.users[place] = 1
    if cache.key[place] != NOBODY:
        forget(cache, place)
    return int(place)


@rule
def name(cache: Cache, place: int, key: int) -> None:
    """Give a place its key, beside others that may have the same (V4, V8)."""
    newest = cache.newest[key]
    cache.key[place] = key
    cache.older[place] = newest
    cache.newer[place] = NOBODY
    if newest == NOBODY:
        cache.oldest[key] = place
    else:
        cache.newer[newest] = place
    cache.newest[key] = place
    cache.at[0] += 1


@rule
def forget(cache: Cache, place: int) -> None:
    """Remove the key of a place."""
    key, older, newer = cache.key[place], cache.older[place], cache.newer[place]
    if older == NOBODY:
        cache.oldest[key] = newer
    else:
        cache.newer[older] = newer
    if newer == NOBODY:
        cache.newest[key] = older
    else:
        cache.older[newer] = older
    cache.key[place] = NOBODY
    cache.at[0] -= 1


@rule
def release(cache: Cache, place: int) -> None:
    """Remove a user; a place without users joins the free queue: at its tail, or at its head without a key (V10)."""
    cache.users[place] -= 1
    if cache.users[place] == 0:
        node = cache.key.size
        link(cache.free, node if cache.key[place] != NOBODY else cache.free.after[node], place)


def size_blocks(cache: Cache) -> int:
    """Places with a key; places that share one key count one each."""
    return int(cache.at[0])


def invariant_violations(cache: Cache) -> list[str]:
    """A wrong count, a place still in use or not in the free queue, a key that does not lead to its place."""
    named = np.flatnonzero(cache.key != NOBODY)
    found = []
    if len(named) != cache.at[0]:
        found.append(f"{len(named)} places have a key, {cache.at[0]} are counted")
    if cache.users.any():
        found.append(f"{np.count_nonzero(cache.users)} places are in use by nobody")
    if sorted(linked_list_members(cache.free, cache.key.size)) != list(range(cache.key.size)):
        found.append("the free queue does not hold each place once")
    first = cache.oldest[cache.oldest != NOBODY]
    if not np.array_equal(np.sort(first), named[cache.older[named] == NOBODY]):
        found.append("a key does not lead to its oldest place")
    return found
