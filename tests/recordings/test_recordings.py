"""The cache models against what real engines answered, and every rule of theirs against being left out.

A rule is left out by patching the model. Most of the mutilated models fail a recording; for the others, which
only overlapping requests or sizes never recorded would show, a case worked out by hand stands in. Two details
have no case because nothing can tell them apart: whether a matched path is made recent from the root down or
from the leaf up, and which half of a split comes first. No other node's turn comes between theirs.
"""

import gzip
import json
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hitlab import cli, families
from hitlab.cache import paged, radix
from hitlab.cache.model import CacheModel, PoolFullError, serve
from hitlab.cache.paged import BlockPool, PagedCache, PagedLease
from hitlab.cache.radix import RadixCache, RadixLease, RadixTree
from hitlab.errors import InputError
from hitlab.recordings.recording import Difference, RecordedRequest, Recording, compare, read_recording, recorded_facts
from hitlab.tokens import Prompt

NAMES = ("sglang_p1", "sglang_p16_small", "sglang_p1_chunk128", "sglang_p1_stop", "vllm_b32_small", "vllm_b64")


def builder(tape: Recording) -> Callable[[], CacheModel]:
    """Makes models of the cache that a recording was made with, as its engine's file makes them."""
    engine = families.engine(tape.engine)
    facts = recorded_facts(tape, engine)
    return lambda: engine.cache_model(facts)


@pytest.fixture(scope="session")
def recordings(shared: Path) -> dict[str, Recording]:
    files = sorted((shared / "recordings").glob("*.json.gz"))
    return {file.name.removesuffix(".json.gz"): read_recording(file.read_bytes()) for file in files}


# --- Equal to the engines --------------------------------------------------------------------------


def test_every_recorded_request_comes_out_equal(recordings: dict[str, Recording]) -> None:
    assert set(NAMES) <= set(recordings)
    results = {name: compare(tape, builder(tape)) for name, tape in recordings.items()}
    differing = {name: result for name, result in results.items() if not result.agrees or result.counters_differ}
    assert not differing
    assert sum(results[name].requests for name in NAMES) == 4400


def test_the_counters_of_every_sequence_come_out_equal(recordings: dict[str, Recording]) -> None:
    for tape in recordings.values():
        for sequence in tape.sequences:
            model = builder(tape)()
            queried = hits = 0
            for request in sequence.requests:
                queried += len(request.prompt)
                hits += answer(model, request)
            assert (queried, hits) == (sequence.queries_delta, sequence.hits_delta)
            assert sequence.evicted_delta in (None, model.evicted_tokens)


def test_sizes_of_a_recording_are_those_of_the_server_it_was_made_on(recordings: dict[str, Recording]) -> None:
    for tape in recordings.values():
        engine = families.engine(tape.engine)
        sizes = engine.recording_sizes(recorded_facts(tape, engine))
        assert sizes == {name: getattr(tape, name) for name in sizes}


def test_a_recorded_vllm_pool_holds_its_blocks_without_the_null_block() -> None:
    facts = recorded_facts(read_recording(tape_of()), families.engine("vllm"))
    assert (facts.block_tokens, facts.capacity_blocks, facts.capacity_tokens) == (4, 9, 32)


def answer(model: CacheModel, request: RecordedRequest) -> int:
    prompt = Prompt(request.prompt, request.salt)
    return serve(model, prompt, request.output, request.max_tokens, request.finish == "stop").hit_tokens


# --- Every rule is needed --------------------------------------------------------------------------

Patch = pytest.MonkeyPatch
Mutation = Callable[[Patch], None]
Case = Callable[[], Any]

NOTICED: list[Any] = []
WORKED_OUT: list[Any] = []


def noticed(engine: str, rule: str) -> Callable[[Mutation], Mutation]:
    """A recording of the engine fails without the rule."""

    def add(mutation: Mutation) -> Mutation:
        NOTICED.append(pytest.param(engine, mutation, id=rule))
        return mutation

    return add


def worked_out(rule: str, case: Case, right: Any) -> Callable[[Mutation], Mutation]:
    """The case gives the right value with the rule, and another without it."""

    def add(mutation: Mutation) -> Mutation:
        WORKED_OUT.append(pytest.param(mutation, case, right, id=rule))
        return mutation

    return add


@noticed("vllm", "V1 the null block holds nothing")
def use_the_null_block(patch: Patch) -> None:
    original = BlockPool.__init__
    patch.setattr(BlockPool, "__init__", lambda pool, num_blocks: original(pool, num_blocks + 1))


@noticed("vllm", "V2 keys are chained")
def key_blocks_by_their_own_tokens(patch: Patch) -> None:
    def block_keys(prompt: Prompt, block_tokens: int) -> list[int]:
        root, tokens = paged._root_key(prompt.salt), prompt.tokens
        ends = range(block_tokens, len(tokens) + 1, block_tokens)
        return [paged._chain(root, tokens[end - block_tokens : end]) for end in ends]

    patch.setattr(paged, "block_keys", block_keys)


@noticed("vllm", "V2 the salt enters the key")
def ignore_the_salt(patch: Patch) -> None:
    patch.setattr(paged, "_root_key", lambda salt: 0)


@noticed("vllm", "V3 the last token is computed")
def hit_the_last_token(patch: Patch) -> None:
    patch.setattr(PagedCache, "max_hit_blocks", lambda cache, length: length // cache.block_tokens)


@noticed("vllm", "V4 a lookup answers the oldest block")
def answer_the_newest_block(patch: Patch) -> None:
    original = BlockPool.longest_hit

    def longest_hit(pool: BlockPool, keys: list[int]) -> list[int]:
        return [pool._blocks_of[key][-1] for key, _ in zip(keys, original(pool, keys), strict=False)]

    patch.setattr(BlockPool, "longest_hit", longest_hit)


@noticed("vllm", "V4 a second block gets the key too")
def leave_the_second_block_keyless(patch: Patch) -> None:
    original = BlockPool.name

    def name(pool: BlockPool, blocks: list[int], keys: list[int]) -> None:
        for block, key in zip(blocks, keys, strict=False):
            if key not in pool._blocks_of:
                original(pool, [block], [key])

    patch.setattr(BlockPool, "name", name)


@noticed("vllm", "V4 the first block keeps the key")
def move_the_key_to_the_second_block(patch: Patch) -> None:
    original = BlockPool.name

    def name(pool: BlockPool, blocks: list[int], keys: list[int]) -> None:
        for block, key in zip(blocks, keys, strict=False):
            if key in pool._blocks_of:
                pool._forget(pool._blocks_of[key][0])
            original(pool, [block], [key])

    patch.setattr(BlockPool, "name", name)


@noticed("vllm", "V4 evicting one block leaves the key to the other")
def forget_the_key_with_one_block(patch: Patch) -> None:
    def forget(pool: BlockPool, block: int) -> None:
        pool._blocks_of.pop(pool._key_of.pop(block), None)

    patch.setattr(BlockPool, "_forget", forget)


@noticed("vllm", "V6 hit blocks leave the free queue")
def leave_hit_blocks_queued(patch: Patch) -> None:
    def touch(pool: BlockPool, blocks: list[int]) -> None:
        for block in blocks:
            pool._users[block] += 1

    patch.setattr(BlockPool, "touch", touch)


@noticed("vllm", "V7 new blocks come from the head")
def take_from_the_tail(patch: Patch) -> None:
    original = BlockPool.take

    def take(pool: BlockPool, count: int) -> list[int]:
        for block in list(pool._free)[len(pool._free) - count :]:
            pool._free.move_to_end(block, last=False)
        return original(pool, count)

    patch.setattr(BlockPool, "take", take)


@noticed("vllm", "V7 a block that is taken loses its key")
def keep_the_key_of_a_taken_block(patch: Patch) -> None:
    patch.setattr(BlockPool, "_forget", lambda pool, block: pool._key_of.pop(block))


@noticed("vllm", "V8 the partial block has no key")
def key_the_partial_block(patch: Patch) -> None:
    def block_keys(prompt: Prompt, block_tokens: int) -> list[int]:
        key, keys = paged._root_key(prompt.salt), []
        for start in range(0, len(prompt.tokens), block_tokens):
            key = paged._chain(key, prompt.tokens[start : start + block_tokens])
            keys.append(key)
        return keys

    patch.setattr(paged, "block_keys", block_keys)


@noticed("vllm", "V9 generated tokens are stored")
def store_no_output(patch: Patch) -> None:
    patch.setattr(PagedLease, "_store", lambda lease, token: None)


@noticed("vllm", "V9 but the last")
def store_all_output(patch: Patch) -> None:
    original = PagedLease.finish

    def finish(lease: PagedLease, stopped: bool = False) -> None:
        if lease._newest is not None:
            lease._store(lease._newest)
        original(lease, stopped)

    patch.setattr(PagedLease, "finish", finish)


@noticed("vllm", "V9 a block filled by decode gets its key")
def leave_decoded_blocks_keyless(patch: Patch) -> None:
    original = PagedLease._store

    def store(lease: PagedLease, token: int) -> None:
        original(lease, token)
        if not lease._partial:
            lease._cache.pool._forget(lease._blocks[-1])

    patch.setattr(PagedLease, "_store", store)


@noticed("vllm", "V10 blocks are given back tail first")
def release_head_first(patch: Patch) -> None:
    original = BlockPool.release
    patch.setattr(BlockPool, "release", lambda pool, blocks: original(pool, blocks[::-1]))


@noticed("vllm", "V10 keyless blocks go to the head")
def release_all_to_the_tail(patch: Patch) -> None:
    original = BlockPool.release

    def release(pool: BlockPool, blocks: list[int]) -> None:
        original(pool, blocks)
        for block in reversed(blocks):
            if block in pool._free:
                pool._free.move_to_end(block)

    patch.setattr(BlockPool, "release", release)


@noticed("sglang", "S1 running requests hold tokens outside the tree")
def count_only_the_tree(patch: Patch) -> None:
    patch.setattr(RadixLease, "_hold", lambda lease, tokens: None)


@noticed("sglang", "S2 the salt is part of a child's name")
def ignore_the_salt_in_the_tree(patch: Patch) -> None:
    original = RadixTree._edge
    patch.setattr(RadixTree, "_edge", lambda tree, tokens, depth, salt: original(tree, tokens, depth, None))


@noticed("sglang", "S2 the tree is cut at pages")
def cut_anywhere(patch: Patch) -> None:
    original = RadixTree.__init__
    patch.setattr(RadixTree, "__init__", lambda tree, page_tokens: original(tree, 1))


@noticed("sglang", "S3 the last token is computed")
def match_the_last_token(patch: Patch) -> None:
    patch.setattr(RadixCache, "matchable", RadixCache.floor)


@noticed("sglang", "S3 a match may end inside a node")
def match_whole_nodes(patch: Patch) -> None:
    original = RadixTree.match

    def match(tree: RadixTree, tokens: radix.Tokens, salt: str | None = None) -> tuple[radix.Node, int]:
        node, depth = tree._root, 0
        while (child := tree._child(node, tokens, depth, salt)) and (
            child.tokens == tokens[depth : depth + len(child.tokens)]
        ):
            node, depth = child, depth + len(child.tokens)
        return original(tree, tokens[:depth], salt)

    patch.setattr(RadixTree, "match", match)


@noticed("sglang", "S4 a split refreshes the rest too")
def leave_the_rest_as_old_as_it_was(patch: Patch) -> None:
    original = RadixTree._split

    def split(tree: RadixTree, node: radix.Node, length: int) -> radix.Node:
        before = list(tree._recency)
        upper = original(tree, node, length)
        tree._recency = OrderedDict.fromkeys([*before, upper])
        return upper

    patch.setattr(RadixTree, "_split", split)


@noticed("sglang", "S6 above page size 1 prefill asks for a page more")
def ask_for_what_prefill_takes(patch: Patch) -> None:
    patch.setattr(RadixCache, "wanted", lambda cache, tokens: tokens)


@noticed("sglang", "S7 leaves go whole")
def evict_page_by_page(patch: Patch) -> None:
    def evict_oldest(tree: RadixTree) -> int:
        leaf = next(node for node in tree._recency if not node.children and not node.locks)
        if len(leaf.tokens) == tree.page_tokens:
            return tree._remove(leaf)
        leaf.tokens = leaf.tokens[: -tree.page_tokens]
        tree.tokens -= tree.page_tokens
        return tree.page_tokens

    patch.setattr(RadixTree, "evict_oldest", evict_oldest)


@noticed("sglang", "S7 the least recent leaf goes")
def evict_the_most_recent(patch: Patch) -> None:
    def evict_newest(tree: RadixTree) -> int:
        return tree._remove(next(node for node in reversed(tree._recency) if not node.children and not node.locks))

    patch.setattr(RadixTree, "evict_oldest", evict_newest)


@noticed("sglang", "S7 a parent left alone is as recent as it was")
def refresh_a_parent_left_alone(patch: Patch) -> None:
    original = RadixTree._remove

    def remove(tree: RadixTree, node: radix.Node) -> int:
        tokens = original(tree, node)
        if node.parent and node.parent in tree._recency:
            tree._recency.move_to_end(node.parent)
        return tokens

    patch.setattr(RadixTree, "_remove", remove)


@noticed("sglang", "S8 insertion refreshes the nodes on the way")
def refresh_nothing_by_insertion(patch: Patch) -> None:
    original = RadixTree.insert

    def insert(tree: RadixTree, tokens: radix.Tokens, salt: str | None = None) -> radix.Node:
        before = list(tree._recency)
        node = original(tree, tokens, salt)
        tree._recency = OrderedDict.fromkeys([*before, *tree._recency])
        return node

    patch.setattr(RadixTree, "insert", insert)


@noticed("sglang", "S8 what is new becomes one leaf")
def add_two_leaves(patch: Patch) -> None:
    original = RadixTree.insert

    def insert(tree: RadixTree, tokens: radix.Tokens, salt: str | None = None) -> radix.Node:
        half = len(tokens) // 2 // tree.page_tokens * tree.page_tokens
        original(tree, tokens[:half], salt)
        return original(tree, tokens, salt)

    patch.setattr(RadixTree, "insert", insert)


@noticed("sglang", "S9 the output is inserted")
def insert_only_the_prompt(patch: Patch) -> None:
    original = RadixLease.finish

    def finish(lease: RadixLease, stopped: bool = False) -> None:
        lease._stored = len(lease._prompt)
        original(lease)

    patch.setattr(RadixLease, "finish", finish)


@noticed("sglang", "S9 the prompt is inserted again")
def insert_once(patch: Patch) -> None:
    patch.setattr(RadixLease, "_insert_prompt_again", lambda lease, inserted: None)


@noticed("sglang", "S10 long prefills are chunked")
def prefill_at_once(patch: Patch) -> None:
    patch.setattr(RadixLease, "_prefill", lambda lease: lease._extend(len(lease._prompt)))


@noticed("sglang", "D1 the prompt is inserted after prefill")
def insert_no_prompt_before_the_end(patch: Patch) -> None:
    original = RadixLease._publish
    patch.setattr(RadixLease, "_publish", lambda lease, length: lease._output or original(lease, length))


@noticed("sglang", "D1 the last token is not stored")
def store_the_last_token(patch: Patch) -> None:
    patch.setattr(RadixLease, "_is_step_ahead", lambda lease, stopped: bool(lease._output))


@noticed("sglang", "D2 every decode step asks for a page")
def ask_when_a_page_is_crossed(patch: Patch) -> None:
    original = RadixCache.make_room

    def step(lease: RadixLease) -> None:
        if lease._stored % lease._cache.page_tokens == 0:
            original(lease._cache, lease._cache.page_tokens)
        lease._store(lease._stored + 1)

    patch.setattr(RadixLease, "_step", step)


@noticed("sglang", "D3 a stop token is stored by the step ahead")
def see_the_stop_token_in_time(patch: Patch) -> None:
    patch.setattr(RadixLease, "_is_step_ahead", lambda lease, stopped: False)


@noticed("sglang", "D3 but not at max_tokens")
def step_ahead_of_max_tokens(patch: Patch) -> None:
    patch.setattr(RadixLease, "_is_step_ahead", lambda lease, stopped: stopped)


@pytest.mark.parametrize(("engine", "mutation"), NOTICED)
def test_a_recording_fails_without_the_rule(
    engine: str, mutation: Mutation, recordings: dict[str, Recording], monkeypatch: Patch
) -> None:
    mutation(monkeypatch)
    tapes = [tape for tape in recordings.values() if tape.engine == engine]
    assert any(not compare(tape, builder(tape)).agrees for tape in tapes)


# --- What the recordings do not show ---------------------------------------------------------------


def outcome(begin: Callable[[], Any]) -> str:
    try:
        begin()
    except PoolFullError:
        return "full"
    return "begun"


def hole_at_the_first_block() -> int:
    """Three blocks hold keys 1, 2 and 3; the first is reused, so a request for 1, 2, 3 finds nothing."""
    pool = BlockPool(num_blocks=4)
    blocks = pool.take(3)
    pool.name(blocks, [1, 2, 3])
    for block in blocks:
        pool.release([block])
    pool.release(pool.take(1))
    return len(pool.longest_hit([1, 2, 3]))


@worked_out("V3 the run is unbroken from the first block on", hole_at_the_first_block, 0)
def count_beyond_holes(patch: Patch) -> None:
    patch.setattr(
        BlockPool,
        "longest_hit",
        lambda pool, keys: [pool._blocks_of[key][0] for key in keys if key in pool._blocks_of],
    )


def admission_of_a_hit_in_a_full_pool() -> str:
    """4 usable blocks of 2: 2 in use, and the 2 that are free are the very ones the request would hit.

    It needs a third for its last token, so it waits.
    """
    cache = PagedCache(num_blocks=5, block_tokens=2)
    serve(cache, Prompt((1, 2, 3, 4, 5)))
    cache.begin(Prompt((7, 8, 9)))
    try:
        return outcome(lambda: cache.begin(Prompt((1, 2, 3, 4, 6))))
    except KeyError:
        return "took a block that was not there"


@worked_out("V5 hits in the free queue count", admission_of_a_hit_in_a_full_pool, "full")
def count_only_new_blocks(patch: Patch) -> None:
    patch.setattr(BlockPool, "count_free", lambda pool, blocks: 0)


def a_shared_block_after_one_of_its_users() -> int:
    """Two running requests share a block; when one ends the block is still in use: 5 - 1 null - 2 = 2 free."""
    cache = PagedCache(num_blocks=5, block_tokens=2)
    first, _second = (cache.begin(Prompt((1, 2, 3))) for _ in range(2))
    first.finish()
    return cache.pool.free_blocks


@worked_out("V6 a block may have several users", a_shared_block_after_one_of_its_users, 2)
def free_with_the_first_user(patch: Patch) -> None:
    original = BlockPool.release

    def release(pool: BlockPool, blocks: list[int]) -> None:
        for block in blocks:
            pool._users[block] = 1
        original(pool, blocks)

    patch.setattr(BlockPool, "release", release)


def hits_on_a_running_request() -> int:
    cache = PagedCache(num_blocks=9, block_tokens=2)
    _first, second = (cache.begin(Prompt((1, 2, 3, 4, 5))) for _ in range(2))
    return second.hit_tokens


@worked_out("V8 blocks have their key before they are computed", hits_on_a_running_request, 4)
def give_keys_at_the_end(patch: Patch) -> None:
    name, release = BlockPool.name, BlockPool.release
    waiting: dict[int, int] = {}

    def release_with_keys(pool: BlockPool, blocks: list[int]) -> None:
        name(pool, blocks, [waiting.pop(block) for block in blocks if block in waiting])
        release(pool, blocks)

    patch.setattr(BlockPool, "name", lambda pool, blocks, keys: waiting.update(zip(blocks, keys, strict=False)))
    patch.setattr(BlockPool, "release", release_with_keys)


def paged_hits_after_a_stop_token() -> int:
    """3 prompt tokens and a stop token would fill a block of 4, if the stop token were stored."""
    cache = PagedCache(num_blocks=9, block_tokens=4)
    serve(cache, Prompt((1, 2, 3)), output=(99,), max_tokens=50, stopped=True)
    return serve(cache, Prompt((1, 2, 3, 99, 5))).hit_tokens


@worked_out("V9 nor is a stop token", paged_hits_after_a_stop_token, 0)
def store_the_stop_token(patch: Patch) -> None:
    original = PagedLease.finish

    def finish(lease: PagedLease, stopped: bool = False) -> None:
        if stopped and lease._newest is not None:
            lease._store(lease._newest)
        original(lease, stopped)

    patch.setattr(PagedLease, "finish", finish)


def reset_while_one_runs() -> list[bool]:
    cache = PagedCache(num_blocks=9, block_tokens=4)
    lease = cache.begin(Prompt((1, 2, 3, 4, 5)))
    refused = cache.reset()
    lease.finish()
    return [refused, cache.reset(), cache.resident_tokens == 0]


@worked_out("V11 a reset is refused while a block is in use", reset_while_one_runs, [False, True, True])
def always_reset(patch: Patch) -> None:
    patch.setattr(BlockPool, "reset", lambda pool: pool._key_of.clear() or True)


def admission_beside_a_partial_page() -> str:
    """12 tokens in pages of 4: a running request of 5 holds 8, so one that asks for 1 + a page waits."""
    cache = RadixCache(max_total_tokens=12, page_tokens=4)
    cache.begin(Prompt((1, 2, 3, 4, 5)))
    return outcome(lambda: cache.begin(Prompt((9,))))


@worked_out("S1 held in whole pages", admission_beside_a_partial_page, "full")
def hold_single_tokens(patch: Patch) -> None:
    def store(lease: RadixLease, length: int) -> None:
        lease._stored = length
        lease._hold(length - lease._on_path)

    patch.setattr(RadixLease, "_store", store)


def capacity_of_15_tokens_in_pages_of_4() -> int:
    return RadixCache(max_total_tokens=15, page_tokens=4).capacity_tokens


@worked_out("S1 capacity in whole pages", capacity_of_15_tokens_in_pages_of_4, 12)
def floor_nothing(patch: Patch) -> None:
    patch.setattr(RadixCache, "floor", lambda cache, length: length)


def what_goes_after_a_match() -> list[int]:
    """A match alone makes its path recent: of two leaves the younger, shorter one goes first."""
    tree = RadixTree(page_tokens=1)
    tree.insert((1, 2, 3))
    tree.insert((7, 8))
    tree.match((1, 2, 3))
    return [tree.evict_oldest(), tree.evict_oldest()]


@worked_out("S3 a match makes its path recent", what_goes_after_a_match, [2, 3])
def match_without_a_trace(patch: Patch) -> None:
    original = RadixTree.match

    def match(tree: RadixTree, tokens: radix.Tokens, salt: str | None = None) -> tuple[radix.Node, int]:
        before = list(tree._recency)
        found = original(tree, tokens, salt)
        tree._recency = OrderedDict.fromkeys([*before, *tree._recency])
        return found

    patch.setattr(RadixTree, "match", match)


def hits_on_the_path_of_a_running_request() -> int:
    """10 tokens: 4 on the path of a running request that holds a 5th, 5 of a later one that fill the pool.

    A third request of 5 evicts the later one though the path is older, so the path is still found.
    """
    cache = RadixCache(max_total_tokens=10)
    serve(cache, Prompt((1, 2, 3, 4)))
    cache.begin(Prompt((1, 2, 3, 4, 5)))
    serve(cache, Prompt((21, 22, 23, 24, 25)))
    serve(cache, Prompt((31, 32, 33, 34, 35)))
    return serve(cache, Prompt((1, 2, 3, 4, 9))).hit_tokens


@worked_out("S5 the path of a running request is locked", hits_on_the_path_of_a_running_request, 4)
def lock_nothing(patch: Patch) -> None:
    patch.setattr(RadixTree, "lock", lambda tree, node: None)
    patch.setattr(RadixTree, "unlock", lambda tree, node: None)


def hits_on_a_first_chunk() -> int:
    """Pages of 4, chunks of 6, 5 tokens: ceiled to 8 they are more than a chunk, so the first page is shared."""
    cache = RadixCache(max_total_tokens=100, page_tokens=4, chunk_tokens=6)
    cache.begin(Prompt((1, 2, 3, 4, 5)))
    return cache.begin(Prompt((1, 2, 3, 4, 5))).hit_tokens


@worked_out("S10 the first comparison is of the ceiled length", hits_on_a_first_chunk, 4)
def compare_the_plain_length(patch: Patch) -> None:
    original = RadixLease._prefill

    def prefill(lease: RadixLease) -> None:
        patch.setattr(RadixCache, "ceil", lambda cache, length: length)
        original(lease)

    patch.setattr(RadixLease, "_prefill", prefill)


def refusal_of_what_will_not_fit() -> list[Any]:
    """10 tokens, 5 of them held by a running request: one of 6 is refused, and the 4 in the tree stay."""
    cache = RadixCache(max_total_tokens=10)
    serve(cache, Prompt((1, 2, 3, 4)))
    cache.begin(Prompt((5, 6, 7, 8, 9)))
    refused = outcome(lambda: cache.begin(Prompt((21, 22, 23, 24, 25, 26))))
    return [refused, cache.evicted_tokens, cache.resident_tokens]


@worked_out("S11 nothing is evicted for what will not fit", refusal_of_what_will_not_fit, ["full", 0, 4])
def evict_first(patch: Patch) -> None:
    def make_room(cache: RadixCache, tokens: int) -> None:
        while cache.free_tokens < tokens:
            try:
                cache.evicted_tokens += cache.tree.evict_oldest()
            except LookupError:
                raise PoolFullError("full") from None

    patch.setattr(RadixCache, "require", make_room)


def evicted_by_the_first_decode_step() -> list[int]:
    """8 tokens: (1, 2, 3, 4) and (5, 6, 7) in the tree, then (1, 2, 3, 4) again with two output tokens.

    Prefill takes the one free token. Overlapped, the first step needs another before the prompt's insertion
    frees the duplicate, and (5, 6, 7) goes; without overlap the duplicate is free in time.
    """
    evicted = []
    for overlap in (True, False):
        cache = RadixCache(max_total_tokens=8, overlap=overlap)
        serve(cache, Prompt((1, 2, 3, 4)))
        serve(cache, Prompt((5, 6, 7)))
        evicted.append(serve(cache, Prompt((1, 2, 3, 4)), output=(50, 51)).evicted_tokens)
    return evicted


@worked_out("D2 overlapped, the first step comes before the prompt", evicted_by_the_first_decode_step, [3, 0])
def insert_the_prompt_first(patch: Patch) -> None:
    def first_step(lease: RadixLease) -> None:
        lease._publish(len(lease._prompt))
        lease._step()

    patch.setattr(RadixLease, "_first_step", first_step)


def radix_tokens_after_a_stop_token() -> list[int]:
    """2 prompt tokens + 2 generated, the second a stop token; then at max_tokens; then without overlap."""
    resident = []
    for max_tokens, overlap in ((9, True), (2, True), (9, False)):
        cache = RadixCache(max_total_tokens=100, overlap=overlap)
        serve(cache, Prompt((1, 2)), output=(3, 4), max_tokens=max_tokens, stopped=True)
        resident.append(cache.resident_tokens)
    return resident


@worked_out("D3 only the overlap scheduler is a step ahead", radix_tokens_after_a_stop_token, [4, 3, 3])
def always_be_a_step_ahead(patch: Patch) -> None:
    patch.setattr(
        RadixLease,
        "_is_step_ahead",
        lambda lease, stopped: stopped and len(lease._output) < lease._max_tokens,
    )


@pytest.mark.parametrize(("mutation", "case", "right"), WORKED_OUT)
def test_a_case_worked_out_by_hand_fails_without_the_rule(
    mutation: Mutation, case: Case, right: Any, monkeypatch: Patch
) -> None:
    assert case() == right
    mutation(monkeypatch)
    assert case() != right


# --- Reading and comparing -------------------------------------------------------------------------


def tape_of(**changes: Any) -> bytes:
    """Two requests of 5 tokens to a vLLM with blocks of 4, with changes to the second one's answer."""
    request = {"prompt": [1, 2, 3, 4, 5], "salt": None, "max_tokens": 1, "output": [9], "cached": 0}
    sequence = {
        "requests": [request, request | {"cached": 4} | changes],
        "queries_delta": 10,
        "hits_delta": 4,
    }
    head = {"engine": "vllm", "version": "0.32.0", "block_size": 4, "num_gpu_blocks": 9, "note": "ignored"}
    return json.dumps(head | {"sequences": [sequence]}).encode()


def test_plain_and_gzipped_recordings_read_alike() -> None:
    assert read_recording(tape_of()) == read_recording(gzip.compress(tape_of()))


def test_the_first_difference_is_named() -> None:
    tape = read_recording(tape_of(cached=0))
    result = compare(tape, builder(tape))
    assert (result.requests, result.hits_differ, result.evicted_differ) == (2, 1, 0)
    assert result.first_difference == Difference(
        sequence=0,
        request=1,
        prompt_tokens=5,
        expected_hit_tokens=0,
        got_hit_tokens=4,
        expected_evicted_tokens=None,
        got_evicted_tokens=0,
    )
    assert not result.agrees


def test_an_evicted_total_alone_can_differ(recordings: dict[str, Recording]) -> None:
    tape = recordings["sglang_p16_small"]
    result = compare(tape, lambda: RadixCache(tape.sizes["capacity_tokens"] + 16, tape.sizes["page_size"]))
    assert result.first_difference is not None
    first = result.first_difference
    assert first.expected_hit_tokens == first.got_hit_tokens
    assert first.expected_evicted_tokens != first.got_evicted_tokens
    assert result.evicted_differ > result.hits_differ


def test_counters_that_do_not_add_up_are_counted_apart() -> None:
    tape = read_recording(tape_of().replace(b'"queries_delta": 10', b'"queries_delta": 17'))
    result = compare(tape, builder(tape))
    assert result.agrees
    assert result.counters_differ == 1


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "not a recording"),
        (b"[1, 2]", "not a recording"),
        (b'{"engine": "vllm"}', "missing required field"),
        (tape_of().replace(b'"block_size": 4', b'"block_size": 0'), r">= 1 - at `\$.block_size`"),
        (tape_of(cached="many"), r"\$.sequences\[0\].requests\[1\].cached"),
        (gzip.compress(tape_of())[:-9], "damaged gzip"),
        (b"\x1f\x8bnothing", "damaged gzip"),
    ],
)
def test_what_is_not_a_recording_is_said_to_be_none(data: bytes, says: str) -> None:
    with pytest.raises(InputError, match=says):
        read_recording(data)


@pytest.mark.parametrize(
    ("engine", "sizes"),
    [("vllm", ("block_size", "num_gpu_blocks")), ("sglang", ("page_size", "capacity_tokens"))],
)
def test_a_size_that_is_missing_is_named(engine: str, sizes: tuple[str, ...]) -> None:
    for missing in sizes:
        said: dict[str, Any] = {name: 16 for name in sizes if name != missing}
        tape = Recording(engine=engine, version="1", sequences=(), **said)
        with pytest.raises(InputError) as raised:
            recorded_facts(tape, families.engine(engine))
        assert str(raised.value) == f"this {engine} recording has no {missing}; record it again"


def test_a_pool_too_small_for_what_was_served_is_an_error_that_names_the_request() -> None:
    tape = read_recording(tape_of().replace(b'"num_gpu_blocks": 9', b'"num_gpu_blocks": 2'))
    with pytest.raises(InputError, match="sequence 0, request 0"):
        compare(tape, builder(tape))


# --- The command -----------------------------------------------------------------------------------


def hitlab_model(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        cli.main(["model", *arguments])
    out, err = capsys.readouterr()
    return int(left.value.code or 0), out, err


def test_model_says_what_differs_and_leaves_with_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "tape.json"
    file.write_bytes(tape_of(cached=0))
    status, out, _ = hitlab_model([str(file)], capsys)
    assert status == 3
    assert "sequence 0, request 1 (5 prompt tokens)" in out
    assert "engine 0, model 4" in out


def test_model_leaves_with_4_when_only_the_counters_disagree(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "tape.json"
    file.write_bytes(tape_of().replace(b'"hits_delta": 4', b'"hits_delta": 8'))
    status, out, _ = hitlab_model([str(file)], capsys)
    assert status == 4
    assert "counters differ  1" in out


def test_model_prints_one_json_document(shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = shared / "recordings" / "vllm_b64.json.gz"
    status, out, err = hitlab_model([str(file), "--json"], capsys)
    assert (status, err) == (0, "")
    assert json.loads(out) == {
        "engine": "vllm",
        "version": "0.32.0",
        "requests": 840,
        "hits_differ": 0,
        "evicted_differ": 0,
        "counters_differ": 0,
        "first_difference": None,
    }


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (None, "No such file"),
        (b"{}", "not a recording"),
        (tape_of().replace(b"vllm", b"tgi"), "no engine named 'tgi'"),
    ],
)
def test_model_answers_bad_input_in_one_line(
    data: bytes | None, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "tape.json"
    if data is not None:
        file.write_bytes(data)
    status, out, err = hitlab_model([str(file)], capsys)
    assert (status, out) == (1, "")
    assert says in err
    assert str(file) in err
    assert err.count("\n") == 1
