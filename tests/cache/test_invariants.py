"""What always holds in the cache models, whatever is asked of them in whatever order."""

from collections.abc import Callable
from typing import Any

import pytest
from cache.builders import Build, Ids, paged, radix
from hypothesis import given, settings
from hypothesis import strategies as st

from hitlab.cache.model import CacheModel, Lease, PoolFullError, serve
from hitlab.cache.paged import PagedCache
from hitlab.cache.radix import RadixCache
from hitlab.cache.radix_tree import RadixTree, TreeNode, common_prefix
from hitlab.tokens import Prompt

# Few ids and many common beginnings, so that prompts share, nest and repeat.
BASES = [tuple((base * 7 + i * i) % 5 for i in range(60)) for base in range(3)]
prompts = st.builds(
    lambda base, cut, tail, salt: Prompt((*base[:cut], *tail) or (1,), salt),
    st.sampled_from(BASES),
    st.integers(0, 60),
    st.lists(st.integers(0, 4), max_size=9),
    st.sampled_from([None, None, "a"]),
)
block_sizes = st.sampled_from([1, 2, 4, 16])
# (what to do, a prompt to begin, which running request, how many tokens to decode)
steps = st.lists(
    st.tuples(
        st.sampled_from(["begin", "begin", "decode", "finish", "reset"]),
        prompts,
        st.integers(0, 9),
        st.integers(1, 20),
        st.booleans(),
    ),
    max_size=60,
)


def check_pool(cache: PagedCache) -> None:
    pool = cache.pool
    in_use = {block for block, users in enumerate(pool.ref_cnt) if users}
    assert in_use.isdisjoint(pool.free_block_queue)
    assert in_use | set(pool.free_block_queue) == set(range(1, pool.num_gpu_blocks))
    for key, blocks in pool.cached_block_hash_to_block.items():
        assert len(blocks) == len(set(blocks)) > 0
        assert all(pool.block_hash[block] == key for block in blocks)
    assert sum(map(len, pool.cached_block_hash_to_block.values())) == len(pool.block_hash)


def check_tree(cache: RadixCache) -> None:
    tree, seen, locked = cache.tree, [], 0
    waiting: list[TreeNode] = [tree.root_node]
    while waiting:
        node = waiting.pop()
        for (salt, page), child in node.children.items():
            assert child.parent is node
            assert (child.extra_key, child.token_ids[: cache.page_size]) == (salt, page)
            assert len(child.token_ids) % cache.page_size == 0 < len(child.token_ids)
            assert node is tree.root_node or node.lock_ref >= child.lock_ref
            seen.append(child)
            locked += len(child.token_ids) if child.lock_ref else 0
            waiting.append(child)
    assert set(seen) == set(tree.recency)
    assert sum(len(node.token_ids) for node in seen) == tree.total_size
    assert locked == tree.protected_size
    assert cache.available_size >= 0
    assert cache.held_tokens >= 0


def run_steps(model: CacheModel, script: list[Any], block_tokens: int, check: Callable[[], None]) -> None:
    running: list[Lease] = []
    evicted = 0
    for what, prompt, which, tokens, stopped in script:
        if what == "begin":
            try:
                lease = model.begin(prompt, max_tokens=20)
            except PoolFullError:
                continue
            assert lease.hit_tokens <= len(prompt.tokens) - 1
            assert lease.hit_tokens % block_tokens == 0
            running.append(lease)
        elif what == "reset":
            assert model.reset() == (not running)
        elif running and what == "decode":
            try:
                for token in range(tokens):
                    running[which % len(running)].decode(token % 5)
            except PoolFullError:
                pass
        elif running:
            running.pop(which % len(running)).finish(stopped)
        assert 0 <= model.resident_tokens <= model.capacity_tokens
        assert model.evicted_tokens >= evicted
        evicted = model.evicted_tokens
        check()
    for lease in running:
        lease.finish()
    check()
    assert model.reset()


@settings(deadline=None)
@given(script=steps, block_tokens=block_sizes, capacity_tokens=st.integers(20, 200))
def test_a_block_is_free_or_in_use_and_known_by_its_hash(
    script: list[Any], block_tokens: int, capacity_tokens: int
) -> None:
    model = paged(block_tokens, capacity_tokens)
    run_steps(model, script, block_tokens, lambda: check_pool(model))


@settings(deadline=None)
@given(
    script=steps,
    block_tokens=block_sizes,
    capacity_tokens=st.integers(20, 200),
    chunk_tokens=st.sampled_from([None, 16, 24]),
    overlap=st.booleans(),
)
def test_no_token_is_twice_in_the_tree_or_unaccounted_for(
    script: list[Any], block_tokens: int, capacity_tokens: int, chunk_tokens: int | None, overlap: bool
) -> None:
    model = RadixCache(capacity_tokens, block_tokens, chunk_tokens, overlap)
    run_steps(model, script, block_tokens, lambda: check_tree(model))
    assert (model.held_tokens, model.tree.protected_size) == (0, 0)


@settings(deadline=None)
@given(
    sent=st.lists(st.tuples(prompts, st.lists(st.integers(0, 4), min_size=1, max_size=20)), max_size=20),
    block_tokens=block_sizes,
    build=st.sampled_from([paged, radix]),
)
def test_with_room_for_all_a_hit_is_the_longest_common_beginning_in_whole_blocks(
    sent: list[tuple[Prompt, list[int]]], block_tokens: int, build: Build
) -> None:
    """Against a list of everything stored, compared token by token."""
    model = build(block_tokens)
    stored: list[Prompt] = []
    for prompt, output in sent:
        longest = 0
        for other in stored:
            if other.salt == prompt.salt:
                alike = zip(other.tokens, prompt.tokens[:-1], strict=False)
                same = next((i for i, (a, b) in enumerate(alike) if a != b), None)
                whole = min(len(other.tokens), len(prompt.tokens) - 1) if same is None else same
                longest = max(longest, whole // block_tokens * block_tokens)
        assert serve(model, prompt, output).hit_tokens == longest
        stored.append(Prompt((*prompt.tokens, *output[:-1]), prompt.salt))
    assert model.evicted_tokens == 0


@given(a=st.lists(st.integers(0, 2), max_size=40), b=st.lists(st.integers(0, 2), max_size=40))
def test_the_common_prefix_is_what_a_loop_over_tokens_finds(a: list[int], b: list[int]) -> None:
    expected = 0
    for left, right in zip(a, b, strict=False):
        if left != right:
            break
        expected += 1
    assert common_prefix(tuple(a), tuple(b)) == expected


def test_block_hashes_of_different_salts_and_lengths_never_meet(ids: Ids) -> None:
    tokens, cache = ids(64), paged(16)
    hashes = [each for salt in (None, "a", "b") for each in cache.block_hashes(Prompt(tokens, salt))]
    assert len(set(hashes)) == 12
    assert cache.block_hashes(Prompt(tokens[:63])) == cache.block_hashes(Prompt(tokens))[:3]


def test_a_tree_of_locked_leaves_has_nothing_to_evict() -> None:
    tree = RadixTree(page_size=1)
    tree.inc_lock_ref(tree.insert((1, 2, 3)))
    with pytest.raises(LookupError):
        tree.evict_leaf()
