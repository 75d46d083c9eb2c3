"""Metrics pages of emulated engines beside those of real ones."""

from pathlib import Path

import pytest
from servers.emulated.callers import Prompts, running, shape

from hitlab.client.dialect import Reply, load_engine
from hitlab.client.metrics_page import read_page


@pytest.mark.parametrize(
    ("name", "ranks", "golden"),
    [
        ("vllm", 1, "vllm/bs32tok_after.prom"),
        ("vllm", 2, "vllm/dp2.prom"),
        ("sglang", 1, "sglang/p1_a_after.prom"),
        ("sglang", 2, "sglang/dp2_p1_after.prom"),
    ],
)
def test_names_types_and_labels_are_those_of_a_real_page(
    name: str, ranks: int, golden: str, data: Path, prompts: Prompts
) -> None:
    with running(name, ranks=ranks) as caller:
        for prompt in (prompts.draw(100), prompts.draw(200)):
            for _ in range(2 * ranks):
                caller.cached(prompt)
        ours = shape(caller.http.get("/metrics").text)
    real = shape((data / "golden" / golden).read_text())
    assert {sample: real.get(sample) for sample in ours} == ours


def test_every_series_that_hitlab_reads_or_must_not_confuse_is_on_the_page(data: Path) -> None:
    wanted = {
        "vllm": ("prefix_cache_", "mm_cache_", ":num_preemptions", "cache_config_info", "prompt_tokens_total"),
        "sglang": ("prefill_effective", "prompt_tokens_total", "max_total", "page_size", "cache_hit_rate", "num_retr"),
    }
    golden = {"vllm": "vllm/bs32_fresh.prom", "sglang": "sglang/p1_fresh.prom"}
    for name, parts in wanted.items():
        with running(name) as caller:
            ours = set(caller.samples())
        real = {
            sample
            for sample in shape((data / "golden" / golden[name]).read_text())
            if any(part in sample for part in parts)
        }
        assert real - ours == set()
        assert len(real) > 5


def test_created_samples_are_there_with_one_rank_and_not_with_two() -> None:
    for ranks, there in ((1, True), (2, False)):
        with running("vllm", ranks=ranks) as caller:
            assert any(sample.endswith("_created") for sample in caller.samples()) is there
    with running("sglang") as caller:
        assert not any(sample.endswith("_created") for sample in caller.samples())


def test_vllm_adds_up_the_blocks_of_its_ranks_and_not_their_tokens() -> None:
    with running("vllm", block_tokens=32, blocks=2048, ranks=2) as caller:
        infos = [labels for labels, _ in caller.samples()["vllm:cache_config_info"]]
        assert [info["engine"] for info in infos] == ["0", "1"]
        for info in infos:
            assert (info["num_gpu_blocks"], info["num_gpu_blocks_override"]) == ("4096", "2048")
            assert (info["block_size"], info["kv_cache_size_tokens"]) == ("32", "65536")


def test_a_histogram_counts_prompts_up_to_each_bound(prompts: Prompts) -> None:
    with running("vllm") as caller:
        for length in (100, 101, 30_000):
            caller.cached(prompts.draw(length))
        samples = caller.samples()
        buckets = {labels["le"]: value for labels, value in samples["vllm:request_prompt_tokens_bucket"]}
        assert [buckets[end] for end in ("50.0", "100.0", "200.0", "20000.0", "+Inf")] == [0, 1, 2, 2, 3]
        assert caller.total("vllm:request_prompt_tokens_count") == 3
        assert caller.total("vllm:request_prompt_tokens_sum") == 30_201


def test_without_stats_vllm_has_a_page_without_vllm_series_and_sglang_has_none() -> None:
    with running("vllm", metrics_on=False) as caller:
        caller.http.get("/version")
        assert "http_requests_total" in caller.samples()
        assert not any(sample.startswith("vllm") for sample in caller.samples())
    with running("sglang", metrics_on=False) as caller:
        assert caller.http.get("/metrics").status_code == 404


def test_around_0_10_vllm_has_the_pair_under_both_names(prompts: Prompts) -> None:
    with running("vllm", version="0.10.1") as caller:
        caller.cached(prompts.draw(50))
        assert caller.total("vllm:gpu_prefix_cache_queries_total") == caller.counted()[0] == 50
    with running("vllm") as caller:
        assert "vllm:gpu_prefix_cache_queries_total" not in caller.samples()


def test_old_sglang_has_no_effective_counters_and_the_old_paths(prompts: Prompts) -> None:
    with running("sglang", version="0.5.5") as caller:
        samples = caller.samples()
        assert not {"sglang:prefill_effective_tokens_total", "sglang:page_size"} & set(samples)
        assert samples["sglang:prompt_tokens_total"][0][0].keys() == {"engine_type", "model_name"}
        assert caller.http.get("/server_info").status_code == 404
        assert caller.http.get("/get_server_info").json()["version"] == "0.5.5+emulated"


def test_sglang_negotiates_openmetrics_and_vllm_does_not() -> None:
    accept = {"accept": "application/openmetrics-text"}
    with running("sglang") as caller:
        reply = caller.http.get("/metrics", headers=accept)
        assert reply.headers["content-type"].startswith("application/openmetrics-text")
        assert reply.text.endswith("# EOF\n")
        assert "sglang_max_total_num_tokens{" in reply.text
        assert "sglang:max_total_num_tokens{" in caller.http.get("/metrics", headers={"accept": "text/plain"}).text
    with running("vllm") as caller:
        reply = caller.http.get("/metrics", headers=accept)
        assert reply.headers["content-type"].startswith("text/plain")


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_the_engines_own_file_reads_back_how_the_server_was_started(name: str, prompts: Prompts) -> None:
    engine = load_engine(name)
    with running(name, block_tokens=32, blocks=500, ranks=2) as caller:
        replies = {}
        for path in (path for paths in engine.FACT_PATHS for path in paths):
            got = caller.http.get(path)
            replies[path] = Reply(got.status_code, got.content)
        page = read_page(caller.http.get("/metrics").text)
        facts = engine.read_facts(replies, page)
    assert facts.emulated
    assert (facts.block_tokens, facts.ranks, facts.caching) == (32, 2, True)
    assert facts.capacity_tokens == {"vllm": 499 * 32, "sglang": 500 * 32}[name]
    assert facts.model == "hitlab-emulated"
    assert engine.cache_model(facts).capacity_tokens == 2 * facts.capacity_tokens
