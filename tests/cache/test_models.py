"""The cache models on cases worked out by hand and on what was measured.

B is a block or page in tokens, L a prompt's length. Token ids are counted up, so two parts of a prompt are
alike only where the test makes them so.
"""

from collections.abc import Callable

import pytest
from cache.builders import BOTH, ROOM, Build, Ids, N, P, S, hits, paged, radix, shared_prefix

from hitlab.cache.model import CacheModel, PoolFullError, Ranks, Served, serve
from hitlab.cache.paged import BlockPool, PagedCache
from hitlab.cache.radix import RadixCache
from hitlab.errors import InputError
from hitlab.tokens import Prompt

# --- The last token and the block it is in ---------------------------------------------------------


@BOTH
@pytest.mark.parametrize(
    ("block_tokens", "length", "found"),
    [
        *((16, 96, 80), (16, 97, 96), (16, 16, 0), (16, 17, 16), (16, 15, 0), (16, 1, 0)),
        *((16, 1024, 1008), (16, 1025, 1024), (64, 64, 0), (64, 65, 64)),
        *((1, 100, 99), (1, 1024, 1023), (1, 2, 1), (1, 1, 0)),
    ],
)
def test_a_prompt_sent_again_hits_all_whole_blocks_before_its_last_token(
    build: Build, block_tokens: int, length: int, found: int, ids: Ids
) -> None:
    prompt = ids(length)
    assert hits(build(block_tokens), [prompt] * 4) == [0, found, found, found]


@BOTH
def test_a_prompt_that_goes_on_hits_to_the_end_of_the_whole_block(build: Build, ids: Ids) -> None:
    prompt = ids(40)
    assert hits(build(16), [prompt, prompt + ids(3)]) == [0, 32]


@BOTH
def test_the_same_block_after_another_one_is_not_the_same(build: Build, ids: Ids) -> None:
    first, other, second = ids(16), ids(16), ids(17)
    assert hits(build(16), [first + second, other + second]) == [0, 0]


@BOTH
def test_salts_are_namespaces_and_none_is_the_unsalted_one(build: Build, ids: Ids) -> None:
    model, tokens = build(16), ids(97)
    salted = [serve(model, Prompt(tokens, salt)).hit_tokens for salt in ("a", "a", "b", "", None)]
    assert salted == [0, 96, 0, 0, 96]


# --- 64 requests that share 1,000 of 1,200 tokens: what both engines were measured to do -------------

MEASURED = {  # block: (cold + warm, warm with fresh suffixes, the same prompts again, 1,024 tokens again)
    16: (62_496, 63_488, 75_776, 1008),
    32: (62_496, 63_488, 75_776, 992),
    64: (60_480, 61_440, 73_728, 960),
    96: (60_480, 61_440, 73_728, 960),
    128: (56_448, 57_344, 73_728, 896),
    256: (48_384, 49_152, 65_536, 768),
}


@pytest.mark.parametrize("block_tokens", MEASURED)
def test_paged_hits_are_those_measured_on_vllm(block_tokens: int, ids: Ids) -> None:
    model, prefix, other = paged(block_tokens), ids(P), ids(1024)
    cold_and_warm, warm, again, other_again = MEASURED[block_tokens]
    prompts = shared_prefix(prefix, ids)
    assert sum(hits(model, prompts)) == cold_and_warm
    assert sum(hits(model, shared_prefix(prefix, ids))) == warm
    assert sum(hits(model, prompts)) == again
    assert hits(model, [other] * 3) == [0, other_again, other_again]
    assert sum(hits(model, shared_prefix(ids(12), ids, suffix=500))) == 0


@pytest.mark.parametrize(("page_tokens", "found"), [(1, 63_000), (16, 62_496)])
def test_radix_hits_are_those_measured_on_sglang(page_tokens: int, found: int, ids: Ids) -> None:
    assert sum(hits(radix(page_tokens), shared_prefix(ids(P), ids))) == found


BROKEN = {  # (model, block): {index of the changed token: hits of a pass on a warm prefix}
    (paged, 16): {3: 0, 400: 25_600, 992: 63_488, 999: 63_488},
    (paged, 32): {3: 0, 400: 24_576, 992: 63_488, 999: 63_488},
    (paged, 128): {3: 0, 400: 24_576, 992: 57_344},
    (radix, 1): {3: 192, 400: 25_600, 992: 63_488, 999: 63_936},
    (radix, 16): {3: 0, 400: 25_600, 992: 63_488, 999: 63_488},
}


@pytest.mark.parametrize(("build", "block_tokens"), BROKEN)
def test_a_token_changed_in_every_request_keeps_the_blocks_before_it(build: Build, block_tokens: int, ids: Ids) -> None:
    for index, found in BROKEN[build, block_tokens].items():
        model, prefix = build(block_tokens), ids(P)
        hits(model, shared_prefix(prefix, ids, 1))
        broken = [prefix[:index] + ids(1) + prefix[index + 1 :] + ids(S) for _ in range(N)]
        assert sum(hits(model, broken)) == found


@BOTH
@pytest.mark.parametrize("index", [3, 400, 999])
def test_a_token_changed_once_for_all_is_a_prefix_of_its_own(build: Build, index: int, ids: Ids) -> None:
    """f(i) for the first request and the whole prefix for the others: at B = 16, 16 * floor(i/16) + 63 * 992."""
    model, prefix = build(16), ids(P)
    hits(model, shared_prefix(prefix, ids, 1))
    broken = shared_prefix(prefix[:index] + ids(1) + prefix[index + 1 :], ids)
    assert sum(hits(model, broken)) == min(992, index // 16 * 16) + 63 * 992


@BOTH
def test_a_fixed_salt_is_a_namespace_and_a_fresh_salt_a_request_finds_nothing(build: Build, ids: Ids) -> None:
    model, prefix = build(16), ids(P)
    passes = [sum(hits(model, shared_prefix(prefix, ids), salt)) for salt in ("a", "a", None)]
    assert passes == [62_496, 63_488, 62_496]
    fresh = [serve(model, Prompt(prefix, f"salt {i}")).hit_tokens for i in range(N)]
    assert sum(fresh) == 0


@pytest.mark.parametrize(
    ("build", "block_tokens", "found"), [(paged, 16, 61_504), (radix, 1, 62_000), (radix, 16, 61_504)]
)
def test_each_of_two_ranks_has_its_own_cold_request(build: Build, block_tokens: int, found: int, ids: Ids) -> None:
    model = Ranks(build(block_tokens) for _ in range(2))
    each = hits(model, shared_prefix(ids(P), ids))
    assert each[:2] == [0, 0]
    assert all(each[2:])
    assert sum(each) == found


# --- Decode ----------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("block_tokens", [1, 16, 64])
@pytest.mark.parametrize("prompt_tokens", [15, 16, 100])
@pytest.mark.parametrize("output_tokens", [1, 2, 13, 29, 64])
def test_the_next_turn_hits_the_prompt_and_all_output_but_its_last_token(
    build: Build, block_tokens: int, prompt_tokens: int, output_tokens: int, ids: Ids
) -> None:
    model, prompt, output = build(block_tokens), ids(prompt_tokens), ids(output_tokens)
    serve(model, Prompt(prompt), output)
    found = block_tokens * ((prompt_tokens + output_tokens - 1) // block_tokens)
    assert hits(model, [prompt + output + ids(5)]) == [found]


def test_sglang_stores_the_last_token_too_when_a_stop_token_ended_the_request(ids: Ids) -> None:
    model, prompt, output = radix(1), ids(100), ids(7)
    serve(model, Prompt(prompt), output, max_tokens=50, stopped=True)
    assert hits(model, [prompt + output + ids(5)]) == [107]


@BOTH
def test_what_decode_stored_belongs_to_the_salt_of_its_prompt(build: Build, ids: Ids) -> None:
    model, prompt, output = build(16), ids(10), ids(30)
    serve(model, Prompt(prompt, "a"), output)
    longer = [prompt + output + ids(5)]
    assert (hits(model, longer, "b"), hits(model, longer, "a")) == ([0], [32])


# --- Eviction --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("floods", "found"), [(0, P), (7, P), (8, 0)])
def test_a_prefix_in_32768_tokens_survives_7_floods_of_4096_and_is_gone_at_8(floods: int, found: int, ids: Ids) -> None:
    """64 requests leave 1,000 + 64 * 200 tokens; with 8 floods 13,800 must go, which is all of them."""
    model, prefix = radix(1, 32_768), ids(P)
    hits(model, shared_prefix(prefix, ids))
    hits(model, [ids(4096) for _ in range(floods)])
    assert hits(model, shared_prefix(prefix, ids, 2)) == [found, P]


def test_a_prefix_touched_between_floods_survives(ids: Ids) -> None:
    model, prefix = radix(1, 32_768), ids(P)
    hits(model, shared_prefix(prefix, ids))
    for _ in range(10):
        hits(model, [ids(4096) for _ in range(4)])
        assert hits(model, shared_prefix(prefix, ids, 1)) == [P]


def test_after_a_flood_the_first_request_misses_and_only_it(ids: Ids) -> None:
    """2,048 blocks of 16 and 10 floods of 4,096: a pass scores as from cold, the next as from warm."""
    model, prefix = paged(16, 2048 * 16), ids(P)
    hits(model, shared_prefix(prefix, ids))
    hits(model, [ids(4096) for _ in range(10)])
    first_pass = hits(model, shared_prefix(prefix, ids))
    assert (first_pass[0], sum(first_pass)) == (0, 62_496)
    assert sum(hits(model, shared_prefix(prefix, ids))) == 63_488


def test_a_salted_pass_larger_than_the_pool_evicts_the_prefix(ids: Ids) -> None:
    """Each of 64 salted requests takes 75 blocks and 2,048 are all there are."""
    model, prefix = paged(16, 2048 * 16), ids(P)
    hits(model, shared_prefix(prefix, ids))
    for number in range(N):
        serve(model, Prompt(prefix + ids(S), f"salt {number}"))
    assert hits(model, shared_prefix(prefix, ids, 1)) == [0]


def test_a_flood_eats_a_prompt_from_its_tail(ids: Ids) -> None:
    """100 blocks of 16; a prompt of 40 blocks leaves 60 for the flood, and every block more takes one away.

    The block with the prompt's last token is never a hit, so 39 blocks are all there is to find.
    """
    prompt, found = ids(640), []
    for flood_blocks in (60, 61, 62, 80, 98, 99, 100):
        model = paged(16, 1600)
        hits(model, [prompt, ids(flood_blocks * 16)])
        found += [tokens // 16 for tokens in hits(model, [prompt])]
    assert found == [39, 39, 38, 20, 2, 1, 0]


def test_finished_blocks_are_reused_tail_first() -> None:
    """3 blocks: request 1, 2, 3, then 9, then 1, 2, 3 finds 2; access order would have evicted 1 and found 0."""
    pool = BlockPool(num_gpu_blocks=4)
    found = []
    for keys in ([1, 2, 3], [9], [1, 2, 3]):
        blocks = pool.find_longest_cache_hit(keys)
        found.append(len(blocks))
        pool.touch(blocks)
        new = pool.get_new_blocks(len(keys) - len(blocks))
        pool.cache_full_blocks(new, keys[len(blocks) :])
        pool.free_blocks((blocks + new)[::-1])
    assert found == [0, 0, 2]


def test_blocks_behind_a_hole_are_no_hit() -> None:
    pool = BlockPool(num_gpu_blocks=4)
    pool.cache_full_blocks(pool.get_new_blocks(2), [2, 3])
    assert pool.find_longest_cache_hit([1, 2, 3]) == []
    assert len(pool.find_longest_cache_hit([2, 3])) == 2


def test_one_token_short_costs_a_whole_leaf(ids: Ids) -> None:
    model, old, recent = radix(1, 1000), ids(600), ids(399)
    hits(model, [old, recent])
    assert serve(model, Prompt(ids(2))) == Served(hit_tokens=0, evicted_tokens=600)


def test_above_page_size_1_a_page_too_many_is_asked_for(ids: Ids) -> None:
    """112 tokens in pages of 16, 48 of them free: a prompt of 48 fits, but asks for 64 and evicts."""
    model = radix(16, 112)
    hits(model, [ids(64)])
    assert serve(model, Prompt(ids(48))).evicted_tokens == 64


def test_a_prompt_of_whole_blocks_leaves_its_last_block_twice(ids: Ids) -> None:
    model, prompt = paged(16), ids(64)
    hits(model, [prompt, prompt])
    assert model.resident_tokens == 64 + 16


# --- Several at once -------------------------------------------------------------------------------


def test_prompts_that_run_at_once_share_on_vllm_and_not_on_sglang(ids: Ids) -> None:
    prompts = [Prompt(prompt) for prompt in shared_prefix(ids(P), ids, 3)]
    assert [paged_lease.hit_tokens for paged_lease in map(paged(16).begin, prompts)][1:] == [992, 992]
    assert [radix_lease.hit_tokens for radix_lease in map(radix(16).begin, prompts)] == [0, 0, 0]


@BOTH
def test_one_that_does_not_fit_leaves_no_trace_and_fits_later(build: Build, ids: Ids) -> None:
    model, kept = build(16, 320), ids(33)
    hits(model, [kept])
    lease = model.begin(Prompt(ids(160)))
    before = (model.resident_tokens, model.evicted_tokens)
    with pytest.raises(PoolFullError, match="are needed"):
        model.begin(Prompt(ids(300)))
    assert (model.resident_tokens, model.evicted_tokens) == before
    lease.finish()
    assert hits(model, [kept]) == [32]
    assert serve(model, Prompt(ids(300))).hit_tokens == 0


@BOTH
def test_a_token_that_does_not_fit_can_be_decoded_later(build: Build, ids: Ids) -> None:
    model, prompt, output = build(16, 96), ids(32), ids(40)
    lease, other = model.begin(Prompt(prompt), max_tokens=40), model.begin(Prompt(ids(32)), max_tokens=1)
    waited = 0
    for token in output:
        try:
            lease.decode(token)
        except PoolFullError:
            waited += 1
            other.finish()
            lease.decode(token)
    lease.finish()
    assert waited == 1
    assert hits(model, [prompt + output[:-1] + ids(1)]) == [64]


@BOTH
def test_reset_is_refused_while_a_request_runs_and_keeps_the_evicted_count(build: Build, ids: Ids) -> None:
    model, prompt = build(16, 160), ids(97)
    hits(model, [ids(144), prompt])
    evicted = model.evicted_tokens
    assert evicted > 0
    lease = model.begin(Prompt(prompt))
    assert not model.reset()
    assert lease.hit_tokens == 96
    lease.finish()
    assert model.reset()
    assert (model.resident_tokens, model.evicted_tokens) == (0, evicted)
    assert hits(model, [prompt]) == [0]


def test_ranks_add_up_and_reset_together(ids: Ids) -> None:
    ranks = Ranks([paged(16, 160), paged(16, 160)])
    prompt = ids(97)
    assert (hits(ranks, [prompt]), ranks.turn) == ([0], 1)
    lease = ranks.begin(Prompt(prompt))
    assert (ranks.turn, ranks.capacity_tokens, ranks.resident_tokens) == (0, 320, 192)
    assert not ranks.reset()
    lease.finish()
    assert ranks.reset()
    assert ranks.resident_tokens == 0


def test_a_rank_that_is_full_keeps_its_turn(ids: Ids) -> None:
    ranks = Ranks([paged(16, 160), paged(16, 160)])
    with pytest.raises(PoolFullError):
        ranks.begin(Prompt(ids(161)))
    assert ranks.turn == 0


def test_serve_gives_the_room_back_when_decode_fails(ids: Ids) -> None:
    model = paged(16, 32)
    with pytest.raises(PoolFullError):
        serve(model, Prompt(ids(30)), ids(10))
    assert model.reset()


@pytest.mark.parametrize(
    "make",
    [
        lambda: PagedCache(num_gpu_blocks=0, block_tokens=16),
        lambda: PagedCache(num_gpu_blocks=8, block_tokens=0),
        lambda: RadixCache(max_total_num_tokens=-1),
        lambda: RadixCache(max_total_num_tokens=100, page_size=0),
        lambda: RadixCache(max_total_num_tokens=100, page_size=16, chunked_prefill_size=15),
    ],
)
def test_sizes_that_no_server_has_are_refused(make: Callable[[], CacheModel]) -> None:
    with pytest.raises(InputError, match=r"no cache has|shorter than a page"):
        make()


def test_a_chunk_size_of_minus_1_is_sglangs_way_to_say_none(ids: Ids) -> None:
    model, prompt = RadixCache(ROOM, chunked_prefill_size=-1), ids(500)
    assert hits(model, [prompt, prompt]) == [0, 499]
