"""What emulated engines count, and what not, as the real ones do."""

from typing import Any

from servers.emulated.callers import Prompts, running


def test_prompt_logprobs_count_nothing_and_store_blocks(prompts: Prompts) -> None:
    skipping: list[dict[str, Any]] = [{"prompt_logprobs": 0}, {"echo": True, "logprobs": 1}]
    for fields in skipping:
        prompt = prompts.draw(39)
        with running("vllm") as caller:
            assert [caller.cached(prompt, **fields) for _ in range(2)] == [0, 0]
            assert caller.counted() == (0, 0)
            assert caller.cached(prompt, logprobs=1) == 32
            assert caller.counted() == (39, 32)
            assert caller.total("vllm:prompt_tokens_total") == 3 * 39


def test_several_outputs_of_one_prompt_count_again(prompts: Prompts) -> None:
    with running("vllm") as caller:
        document = caller.post(prompts.draw(100), n=2).json()
        assert len(document["choices"]) == 2
        assert document["usage"]["prompt_tokens"] == 100
        assert caller.counted() == (200, 96)
    with running("sglang") as caller:
        queried = caller.counted()[0]
        assert len(caller.post(prompts.draw(100), sampling={"n": 2}).json()) == 2
        assert caller.counted() == (queried + 300, 2 * 99)


def test_of_several_prompts_vllm_reports_the_last_ones_cached_tokens(prompts: Prompts) -> None:
    long, short = prompts.draw(100), prompts.draw(5)
    with running("vllm") as caller:
        caller.cached(long)
        assert caller.cached([long, short]) == 0
        assert caller.cached([short, long]) == 96


def test_sglang_counts_three_tokens_at_start_and_one_a_health_check() -> None:
    with running("sglang") as caller:
        assert caller.counted() == (3, 0)
        assert caller.total("sglang:prompt_tokens_total") == 3
        assert caller.total("sglang:generation_tokens_total") == 8
        realtime = {labels["mode"]: value for labels, value in caller.samples()["sglang:realtime_tokens_total"]}
        assert realtime == {"prefill_compute": 3, "decode": 7}
        caller.http.get("/health")
        caller.http.get("/model_info")
        assert caller.counted() == (4, 0)
        assert caller.total("sglang:prompt_tokens_total") == 3


def test_sglang_hit_and_eviction_counters_are_absent_before_they_count(prompts: Prompts) -> None:
    with running("sglang", blocks=3000) as caller:
        caller.cached(prompts.draw(1000))
        absent = {"sglang:cached_tokens_total", "sglang:evicted_tokens_total", "sglang:num_retracted_requests_total"}
        assert not absent & set(caller.samples())
        caller.cached(prompts.draw(1000) * 2)
        caller.cached(prompts.draw(1000) * 2)
        assert caller.total("sglang:evicted_tokens_total", cache_type="UnifiedRadixCache", dp_rank="0") > 0
        assert caller.cached(prompts.draw(3)) == 0
        prompt = prompts.draw(100)
        assert caller.cached(prompt) + caller.cached(prompt) == 99
        assert caller.total("sglang:cached_tokens_total", cache_source="device") == 99
        assert caller.total("sglang:cache_hit_rate") == 0.99  # of the last request alone


def test_with_caching_off_nothing_hits(prompts: Prompts) -> None:
    prompt = prompts.draw(100)
    with running("vllm", caching_on=False) as caller:
        assert [caller.cached(prompt) for _ in range(3)] == [0, 0, 0]
        assert caller.counted() == (0, 0)
        (labels, _), *_ = caller.samples()["vllm:cache_config_info"]
        assert labels["enable_prefix_caching"] == "False"
    with running("sglang", caching_on=False) as caller:
        assert [caller.cached(prompt) for _ in range(3)] == [0, 0, 0]
        assert caller.counted() == (303, 0)
        assert caller.http.get("/server_info").json()["disable_radix_cache"] is True
