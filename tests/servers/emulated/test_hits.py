"""Hits of emulated engines are those that were measured on the real ones."""

from collections.abc import Callable
from typing import Any

import pytest
from servers.emulated.callers import Prompts, running


@pytest.mark.parametrize(
    ("name", "block_tokens", "cold", "warm", "again"),
    [
        ("vllm", 16, 62_496, 63_488, 75_776),
        ("vllm", 32, 62_496, 63_488, 75_776),
        ("vllm", 64, 60_480, 61_440, 73_728),
        ("vllm", 96, 60_480, 61_440, 73_728),
        ("vllm", 128, 56_448, 57_344, 73_728),
        ("vllm", 256, 48_384, 49_152, 65_536),
        ("sglang", 1, 63_000, 64_000, 64 * 1199),
        ("sglang", 16, 62_496, 63_488, 64 * 1184),
    ],
)
def test_hit_tokens_from_cold_with_a_warm_prefix_and_of_identical_prompts(
    name: str, block_tokens: int, cold: int, warm: int, again: int, prompts: Prompts
) -> None:
    prefix = prompts.draw(1000)
    fresh = prompts.requests(prefix)
    with running(name, block_tokens=block_tokens) as caller:
        before = caller.counted()
        assert sum(map(caller.cached, prompts.requests(prefix))) == cold
        assert sum(map(caller.cached, fresh)) == warm
        assert sum(map(caller.cached, fresh)) == again
        queried, hit = caller.counted()
    assert (queried - before[0], hit - before[1]) == (3 * 76_800, cold + warm + again)


@pytest.mark.parametrize(
    ("name", "block_tokens", "length", "hit_tokens"),
    [
        *(("vllm", block, 1024, hit) for block, hit in ((16, 1008), (32, 992), (64, 960), (128, 896), (256, 768))),
        *(("vllm", 16, length, hit) for length, hit in ((1, 0), (16, 0), (17, 16), (96, 80), (97, 96))),
        *(("sglang", 1, length, hit) for length, hit in ((1, 0), (2, 1), (1024, 1023))),
        *(("sglang", 16, length, hit) for length, hit in ((16, 0), (1024, 1008), (1025, 1024))),
    ],
)
def test_the_last_token_of_a_repeated_prompt_is_computed(
    name: str, block_tokens: int, length: int, hit_tokens: int, prompts: Prompts
) -> None:
    prompt = prompts.draw(length)
    with running(name, block_tokens=block_tokens) as caller:
        assert [caller.cached(prompt) for _ in range(2)] == [0, hit_tokens]


def test_a_prompt_below_one_block_never_hits(prompts: Prompts) -> None:
    with running("vllm") as caller:
        assert sum(map(caller.cached, prompts.requests(prompts.draw(12), suffix=500))) == 0


@pytest.mark.parametrize(
    ("name", "block_tokens", "index", "hit_tokens"),
    [
        *(("vllm", 16, index, hit) for index, hit in ((3, 0), (400, 25_600), (992, 63_488), (999, 63_488))),
        ("vllm", 32, 400, 24_576),
        ("vllm", 128, 400, 24_576),
        *(("sglang", 1, index, 64 * index) for index in (3, 400, 992, 999)),
        *(("sglang", 16, index, hit) for index, hit in ((3, 0), (400, 25_600), (992, 63_488), (999, 63_488))),
    ],
)
def test_another_token_in_every_request_leaves_what_was_before_it(
    name: str, block_tokens: int, index: int, hit_tokens: int, prompts: Prompts
) -> None:
    prefix = prompts.draw(1000)
    broken = [[*prefix[:index], 100 + n, *request[index + 1 :]] for n, request in enumerate(prompts.requests(prefix))]
    with running(name, block_tokens=block_tokens) as caller:
        caller.cached(prefix + prompts.draw(200))
        assert sum(map(caller.cached, broken)) == hit_tokens


def test_salts_are_namespaces_of_their_own(prompts: Prompts) -> None:
    prefix = prompts.draw(1000)
    with running("vllm") as caller:
        salts: tuple[Callable[[int], str], ...] = (lambda n: "a", lambda n: "a", lambda n: f"fresh {n}")
        passes = [
            sum([caller.cached(request, cache_salt=salt(n)) for n, request in enumerate(prompts.requests(prefix))])
            for salt in salts
        ]
        assert passes == [62_496, 63_488, 0]
        assert sum(map(caller.cached, prompts.requests(prefix))) == 62_496
    with running("sglang") as caller:
        request = prompts.draw(100)
        keys: list[dict[str, Any]] = [{}, {"cache_salt": "a"}, {"cache_salt": "b"}, {"cache_salt": "a"}]
        keys += [{"extra_key": "a"}, {"extra_key": "a", "cache_salt": "a"}, {"cache_salt": ""}]
        assert [caller.cached(request, **key) for key in keys] == [0, 0, 0, 99, 0, 0, 99]
    with running("sglang", version="0.5.5") as caller:
        assert [caller.cached(request, extra_key=key) for key in "ab"] == [0, 99]


@pytest.mark.parametrize(("name", "blocks", "full_hit"), [("vllm", 2048, 992), ("sglang", 32_768, 1000)])
def test_after_a_flood_only_the_first_request_misses(name: str, blocks: int, full_hit: int, prompts: Prompts) -> None:
    prefix = prompts.draw(1000)
    with running(name, blocks=blocks) as caller:
        for floods, first in ((7, full_hit), (8, 0)):
            caller.reset()
            caller.cached(prefix + prompts.draw(200))
            for _ in range(floods):
                caller.cached(prompts.draw(4096))
            hits = [caller.cached(request) for request in prompts.requests(prefix, count=3)]
            assert hits == [first, full_hit, full_hit]


@pytest.mark.parametrize(("name", "hit_tokens"), [("vllm", 61_504), ("sglang", 62_000)])
def test_cold_request_of_each_rank_misses(name: str, hit_tokens: int, prompts: Prompts) -> None:
    with running(name, ranks=2) as caller:
        before = caller.counted()
        requests = prompts.requests(prompts.draw(1000))
        assert sum(map(caller.cached, requests)) == hit_tokens
        queried, hit = caller.counted()
        assert (queried - before[0], hit - before[1]) == (76_800, hit_tokens)
        hits, label = {
            "vllm": ("vllm:prefix_cache_hits_total", "engine"),
            "sglang": ("sglang:prefill_effective_tokens_total", "dp_rank"),
        }[name]
        mode = {"mode": "device_hit"} if name == "sglang" else {}
        assert [caller.total(hits, **{label: rank}, **mode) for rank in "01"] == [hit_tokens / 2] * 2


@pytest.mark.parametrize(
    ("name", "block_tokens", "prefix", "suffix", "hit_tokens"),
    [
        ("vllm", 16, 1000, 200, 62_496),
        ("sglang", 1, 1000, 200, 60_000),
        ("sglang", 16, 1000, 200, 59_520),
        ("sglang", 1, 50, 20, 250),
    ],
)
def test_prompts_of_one_post_find_each_other_in_vllm_only(
    name: str, block_tokens: int, prefix: int, suffix: int, hit_tokens: int, prompts: Prompts
) -> None:
    requests = prompts.requests(prompts.draw(prefix), suffix=suffix)
    with running(name, block_tokens=block_tokens) as caller:
        before = caller.counted()
        caller.post(requests).raise_for_status()
        queried, hit = caller.counted()
        assert (queried - before[0], hit - before[1]) == (64 * (prefix + suffix), hit_tokens)


def test_a_prefill_longer_than_a_batch_is_found_by_the_next_batch_as_far_as_it_got(prompts: Prompts) -> None:
    prefix = prompts.draw(5000)
    with running("sglang") as caller:
        assert caller.cached([prefix + prompts.draw(1000), prefix + prompts.draw(10)]) == 4096


def test_generated_tokens_are_cached(prompts: Prompts) -> None:
    prompt, suffix = prompts.draw(100), prompts.draw(50)
    for name, expected in (("vllm", (100 + 40 - 1) // 16 * 16), ("sglang", 100 + 40 - 1)):
        with running(name) as caller:
            output = caller.output(prompt, max_tokens=40)
            assert len(output) == 40
            assert caller.cached(prompt + output + suffix) == expected


def test_generated_tokens_are_the_same_every_time_and_in_a_safe_range(prompts: Prompts) -> None:
    prompt = prompts.draw(30)
    outputs = []
    for name in ("vllm", "sglang"):
        with running(name, vocab_size=32_000) as caller:
            outputs += [caller.output(prompt, 50), caller.output(prompt, 50)]
    assert all(output == outputs[0] for output in outputs)
    assert all(1000 <= token < 32_000 for token in outputs[0])
    assert len(set(outputs[0])) > 40


def test_a_stop_token_ends_a_request(prompts: Prompts) -> None:
    prompt = prompts.draw(30)
    with running("vllm") as caller:
        output = caller.output(prompt, 8)
        choice = caller.post(prompt, 8, stop_token_ids=[output[2]], return_token_ids=True).json()["choices"][0]
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", output[2])
        assert choice["token_ids"] == output[:3]
    with running("sglang") as caller:
        reply = caller.post(prompt, 8, {"stop_token_ids": [output[2]]}).json()
        assert reply["output_ids"] == output[:3]
        assert reply["meta_info"]["finish_reason"] == {"type": "stop", "matched": output[2]}
