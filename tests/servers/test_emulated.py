"""Emulated engines over real sockets, against what the real ones answered when they were measured."""

import gc
import random
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from hitlab import families
from hitlab.cache.sizes import CacheSizes
from hitlab.client.dialect import Reply
from hitlab.client.metrics_page import read_page
from hitlab.errors import LaunchError, UsageError
from hitlab.servers.emulated import server as emulate
from hitlab.servers.emulated.config import EMULATED_HEADER, EmulatedConfig, Faults
from hitlab.servers.emulated.scheduler import Generation, Scheduler
from hitlab.tokens import Prompt

Ids = list[int]
Sampling = Mapping[str, Any]


class Caller:
    """A client of one emulated server, in the words of its engine; what it asks for is one token."""

    def __init__(self, name: str, server: emulate.EmulatedServer) -> None:
        self.name = name
        self.server = server
        self.http = httpx.Client(base_url=server.base_url, verify=False)  # reading certificates takes its time
        self.path = {"vllm": "/v1/completions", "sglang": "/generate"}[name]

    def post(self, prompt: Any, max_tokens: int = 1, sampling: Sampling | None = None, **fields: Any) -> httpx.Response:
        """One POST; `sampling` are sampling parameters, `fields` other fields of the body."""
        return self.http.post(self.path, json=self.body(prompt, max_tokens, sampling, **fields))

    def body(self, prompt: Any, max_tokens: int = 1, sampling: Sampling | None = None, **fields: Any) -> dict[str, Any]:
        """What a POST carries."""
        if self.name == "vllm":
            return {"prompt": prompt, "max_tokens": max_tokens, "temperature": 1, **(sampling or {}), **fields}
        params = {"max_new_tokens": max_tokens, "temperature": 1, **(sampling or {})}
        return {"input_ids": prompt, "sampling_params": params, **fields}

    def cached(self, prompt: Any, max_tokens: int = 1, sampling: Sampling | None = None, **fields: Any) -> int:
        """The cached tokens a POST reports."""
        document = self.post(prompt, max_tokens, sampling, **fields).raise_for_status().json()
        if self.name == "vllm":
            return int(document["usage"]["prompt_tokens_details"]["cached_tokens"])
        replies = document if isinstance(document, list) else [document]
        return sum(reply["meta_info"]["cached_tokens"] for reply in replies)

    def output(self, prompt: Ids, max_tokens: int, **fields: Any) -> Ids:
        """The generated ids."""
        if self.name == "vllm":
            fields["return_token_ids"] = True
        reply = self.post(prompt, max_tokens, **fields)
        document = reply.raise_for_status().json()
        ids: Ids = document["choices"][0]["token_ids"] if self.name == "vllm" else document["output_ids"]
        return ids

    def samples(self) -> dict[str, list[tuple[dict[str, str], float]]]:
        """The metrics page by sample name."""
        page: dict[str, list[tuple[dict[str, str], float]]] = {}
        for family in text_string_to_metric_families(self.http.get("/metrics").raise_for_status().text):
            for sample in family.samples:
                page.setdefault(sample.name, []).append((sample.labels, sample.value))
        return page

    def total(self, name: str, **labels: str) -> float:
        """The sum of the samples of that name with these labels."""
        samples = self.samples().get(name, [])
        return sum(value for have, value in samples if labels.items() <= have.items())

    def counted(self) -> tuple[float, float]:
        """Queried and hit tokens, as the engine's own counters have them."""
        if self.name == "vllm":
            return self.total("vllm:prefix_cache_queries_total"), self.total("vllm:prefix_cache_hits_total")
        hit = self.total("sglang:prefill_effective_tokens_total", mode="device_hit")
        return self.total("sglang:prefill_effective_tokens_total", mode="input") + hit, hit

    def reset(self) -> httpx.Response:
        """Empty the cache."""
        return self.http.post("/reset_prefix_cache" if self.name == "vllm" else "/flush_cache")


@contextmanager
def running(
    name: str, faults: Faults | None = None, blocks: int | None = None, block_tokens: int | None = None, **changes: Any
) -> Iterator[Caller]:
    """A server and its client."""
    config = emulate.settings(name, CacheSizes(block_tokens=block_tokens, capacity_blocks=blocks)).but(**changes)
    with emulate.start(name, config, faults) as server:
        caller = Caller(name, server)
        with caller.http:
            yield caller


class Prompts:
    """Token ids, no two draws of which begin alike."""

    def __init__(self) -> None:
        self._random = random.Random(5)
        self._first = 1000

    def draw(self, length: int) -> Ids:
        self._first += 1
        return [self._first, *(self._random.randrange(1000, 32_000) for _ in range(length - 1))][:length]

    def requests(self, prefix: Ids, count: int = 64, suffix: int = 200) -> list[Ids]:
        return [prefix + self.draw(suffix) for _ in range(count)]


@pytest.fixture
def prompts() -> Prompts:
    return Prompts()


# -- right values: hit tokens of 64 requests, P=1000 S=200, as measured ----------------------------------------


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


# -- what is counted -------------------------------------------------------------------------------------------


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


# -- metrics pages beside real ones ----------------------------------------------------------------------------

Shape = dict[str, tuple[str, frozenset[str]]]


def shape(text: str) -> Shape:
    """Of each sample name: its family's type and its labels."""
    return {
        sample.name: (family.type, frozenset(sample.labels))
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


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
    engine = families.engine(name)
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


# -- the dialects' errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "status", "says"),
    [
        ({"model": "nope"}, 404, "NotFoundError"),
        ({"prompt": [7] * 101}, 400, "maximum context length is 100 tokens"),
        ({"prompt": [7] * 100}, 400, "max_tokens must be at least 1"),
        ({"prompt": []}, 400, "at least one prompt"),
        ({"prompt": [[]]}, 400, "cannot be empty"),
        ({"prompt": [[5], []]}, 400, "cannot be empty"),
        ({"prompt": None}, 400, "must be provided"),
        ({"prompt": "hello"}, 400, "Tokenizer not available"),
        ({"prompt": [1.5]}, 400, "validation error"),
        ({"prompt": [-1, 5]}, 400, "greater than or equal to 0"),
        ({"cache_salt": ""}, 400, "cache_salt"),
        ({"cache_salt": 3}, 400, "cache_salt"),
        ({"max_tokens": 0}, 400, "max_tokens must be at least 1"),
        ({"max_tokens": 1.5}, 400, "validation error"),
        ({"temperature": -1}, 400, "temperature"),
        ({"n": 2, "temperature": 0}, 400, "greedy"),
        ({"n": 0}, 400, "n must be at least 1"),
        ({"stream": True}, 400, "does not stream"),
    ],
)
def test_vllm_refuses_in_openais_form_and_counts_nothing(fields: dict[str, Any], status: int, says: str) -> None:
    with running("vllm", max_model_tokens=100) as caller:
        reply = caller.http.post("/v1/completions", json={"prompt": [5, 6], "max_tokens": 1, **fields})
        error = reply.json()["error"]
        assert (reply.status_code, error["code"]) == (status, status)
        assert error.keys() == {"message", "type", "param", "code"}
        assert says in f"{error['type']} {error['message']}"
        assert caller.counted() == (0, 0)


def test_vllm_cuts_the_output_to_what_the_models_length_leaves() -> None:
    with running("vllm", max_model_tokens=100) as caller:
        usage = caller.post([7] * 92, max_tokens=20).json()["usage"]
        assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (92, 8, 100)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"input_ids": []}, "cannot be empty"),
        ({}, "should be provided"),
        ({"text": "hello"}, "cannot accept text"),
        ({"input_ids": [7] * 995}, "Input length (995 tokens) exceeds the maximum allowed length (994 tokens)"),
        ({"input_ids": [7] * 2000}, "longer than the model's context length"),
        ({"input_ids": [7] * 900, "sampling_params": {"max_new_tokens": 1101}}, "exceeds the model's maximum context"),
        ({"input_ids": [5], "sampling_params": {"max_new_tokens": -1}}, "at least 0"),
        ({"input_ids": [5], "sampling_params": {"temperature": -1}}, "temperature"),
        ({"input_ids": [5], "stream": True}, "does not stream"),
        ({"input_ids": [[5]], "sampling_params": [{}, {}]}, "batch size"),
        ({"input_ids": [[5]], "cache_salt": ["a", "b"]}, "batch size"),
    ],
)
def test_sglang_refuses_with_a_message(body: dict[str, Any], says: str) -> None:
    with running("sglang", blocks=1000, max_model_tokens=2000) as caller:
        reply = caller.http.post("/generate", json=body)
        assert reply.status_code == 400
        assert says in reply.json()["error"]["message"]
        assert caller.counted() == (3, 0)


def test_sglang_cuts_the_output_to_what_the_pool_leaves() -> None:
    with running("sglang", blocks=1000, max_model_tokens=2000) as caller:
        assert len(caller.output([7] * 900, max_tokens=1000)) == 98
        assert len(caller.http.post("/generate", json={"input_ids": [7]}).json()["output_ids"]) == 128


def test_sglang_takes_lists_of_parameters_and_salts_and_no_new_tokens(prompts: Prompts) -> None:
    prompt = prompts.draw(100)
    with running("sglang") as caller:
        assert caller.post(prompt, max_tokens=0).json()["output_ids"] == []
        body = {
            "input_ids": [prompt, prompt],
            "sampling_params": [{"max_new_tokens": 1}, {"max_new_tokens": 2}],
            "cache_salt": [None, "b"],
        }
        replies = caller.http.post("/generate", json=body).json()
        assert [len(reply["output_ids"]) for reply in replies] == [1, 2]
        assert [reply["meta_info"]["cached_tokens"] for reply in replies] == [99, 0]
        assert caller.http.post("/generate", json={"input_ids": [5], "cache_salt": 3}).status_code == 400


@pytest.mark.parametrize("path", ["/v1/completions", "/nosuch", "/reset_prefix_cache"])
def test_paths_and_methods_that_are_not_there(path: str) -> None:
    with running("vllm") as caller:
        reply = caller.http.get(path)
        expected = (404, "Not Found") if path == "/nosuch" else (405, "Method Not Allowed")
        assert (reply.status_code, reply.json()["detail"]) == expected


@pytest.mark.parametrize(
    ("name", "prompt"), [("vllm", [5, 32_000]), ("sglang", [5, 32_000]), ("sglang", [5, -6]), ("sglang", [[5], []])]
)
def test_a_token_that_the_model_does_not_have_kills_the_server(name: str, prompt: list[Any]) -> None:
    with running(name) as caller, httpx.Client(base_url=caller.server.base_url) as other:
        other.get("/health").raise_for_status()
        if name == "vllm":
            assert caller.post(prompt).status_code == 500
        else:
            with pytest.raises(httpx.RemoteProtocolError):
                caller.post(prompt)
        assert _is_gone(caller.http)
        assert _eventually(partial(_is_gone, other))


def _is_gone(client: httpx.Client) -> bool:
    try:
        client.get("/health")
    except httpx.TransportError:
        return True
    return False


def test_a_request_that_the_pool_can_never_hold_is_given_up() -> None:
    scheduler = Scheduler(
        emulate.settings("vllm", CacheSizes(capacity_blocks=4)), Faults(), _dialect("vllm").build_cache
    )
    generation = Generation(Prompt(tuple(range(49))))
    scheduler.submit([generation])
    while scheduler.step():
        pass
    assert generation.finish_reason == "error"
    assert scheduler.idle


# -- resets and keys -------------------------------------------------------------------------------------------


def test_vllm_resets_when_idle_and_says_false_while_blocks_are_held(prompts: Prompts) -> None:
    prompt = prompts.draw(100)
    with running("vllm", Faults(hang_post=2)) as caller, ThreadPoolExecutor() as pool:
        assert caller.cached(prompt) == 0
        held = pool.submit(caller.cached, prompt)
        assert caller.server.hanging.wait(10)
        reply = caller.reset()
        assert (reply.status_code, reply.json()) == (200, {"success": False})
        caller.server.release()
        assert held.result(10) == 96
        assert not caller.server.hanging.is_set()
        assert caller.reset().json() == {"success": True}
        assert caller.cached(prompt) == 0
        assert caller.counted() == (300, 96)


def test_sglang_flushes_when_idle_refuses_when_busy_and_waits_when_asked(prompts: Prompts) -> None:
    prompt = prompts.draw(100)
    with running("sglang", Faults(hang_post=2)) as caller, ThreadPoolExecutor() as pool:
        assert caller.cached(prompt) == 0
        held = pool.submit(caller.cached, prompt)
        assert caller.server.hanging.wait(10)
        assert (caller.reset().status_code, caller.reset().text) == (400, "Flush cache failed.\n")
        assert "Timed out" in caller.http.post("/flush_cache?timeout=0.001").text
        with httpx.Client(base_url=caller.server.base_url) as other:
            other.get("/model_info")  # so that the server reads the flush before the calls below
            waiting = pool.submit(other.get, "/flush_cache?timeout=10")
            assert _eventually(lambda: caller.total("sglang:http_requests_total", endpoint="/flush_cache") == 4)
            caller.server.release()
            assert held.result(10) == 99
            assert waiting.result(10).status_code == 200
        assert caller.http.post("/flush_cache?timeout=x").status_code == 400
        assert caller.cached(prompt) == 0


def test_without_development_mode_vllm_has_no_reset_and_no_server_info() -> None:
    with running("vllm", dev_mode=False) as caller:
        assert [caller.reset().status_code, caller.http.get("/server_info").status_code] == [404, 404]
    with running("vllm") as caller:
        info = caller.http.get("/server_info", params={"config_format": "json"}).json()
        assert info["vllm_config"]["cache_config"]["block_size"] == 16
        assert isinstance(caller.http.get("/server_info").json()["vllm_config"], str)


def test_before_0_26_a_reset_does_not_say_whether_it_happened() -> None:
    with running("vllm", version="0.25.1") as caller:
        assert (caller.reset().status_code, caller.reset().content) == (200, b"")


def test_sglang_0_5_5_says_flushed_also_when_it_refuses() -> None:
    with running("sglang", Faults(reset="busy"), version="0.5.5") as caller:
        assert (caller.reset().status_code, caller.reset().text) == (400, "Cache flushed.\n")


@pytest.mark.parametrize(
    ("name", "path", "open_to"),
    [
        ("vllm", "/v1/models", {"api"}),
        ("vllm", "/metrics", {None, "api", "admin"}),
        ("vllm", "/reset_prefix_cache", {None, "api", "admin"}),
        ("sglang", "/server_info", {"api"}),
        ("sglang", "/nosuch", {"api"}),
        ("sglang", "/flush_cache", {"admin"}),
        ("sglang", "/health", {None, "api", "admin"}),
        ("sglang", "/metrics", {None, "api", "admin"}),
    ],
)
def test_who_needs_which_key(name: str, path: str, open_to: set[str | None]) -> None:
    with running(name, api_key="api", admin_key="admin") as caller:
        for key in (None, "api", "admin"):
            headers = {"authorization": f"Bearer {key}"} if key else {}
            reply = caller.http.request("POST" if "reset" in path else "GET", path, headers=headers)
            assert (reply.status_code != 401) == (key in open_to)
            if reply.status_code == 401:
                assert reply.json() == {"error": "Unauthorized"}


def test_a_flush_takes_the_api_key_where_there_is_no_admin_key() -> None:
    with running("sglang", api_key="api") as caller:
        assert caller.reset().status_code == 401
        assert caller.http.post("/flush_cache", headers={"authorization": "Bearer api"}).status_code == 200


def test_keys_are_in_no_repr() -> None:
    assert "secret" not in repr(EmulatedConfig(16, 100, "1.0", api_key="secret", admin_key="secret"))


# -- nobody takes it for the real thing ------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_every_response_says_that_it_is_emulated(name: str, prompts: Prompts) -> None:
    with running(name, Faults(fail_post=2), api_key="key") as caller:
        caller.http.headers["authorization"] = "Bearer key"
        replies = [caller.post(prompts.draw(20)), caller.post(prompts.draw(20)), caller.post([]), caller.reset()]
        replies += [caller.http.get(path) for path in ("/metrics", "/health", "/nosuch", "/v1/models")]
        replies += [caller.http.get("/v1/models", headers={"authorization": "no"})]
        assert [reply.status_code for reply in replies] == [200, 500, 400, 200, 200, 200, 404, 200, 401]
        assert {reply.headers.get(EMULATED_HEADER) for reply in replies} == {"1"}
        assert {reply.headers["server"] for reply in replies} == {"hitlab-emulated"}
        assert replies[-2].json()["data"][0]["owned_by"] == "hitlab-emulated"


def test_versions_end_in_emulated(prompts: Prompts) -> None:
    with running("vllm") as caller:
        assert caller.http.get("/version").json() == {"version": "0.32.0+emulated"}
        assert caller.post(prompts.draw(5)).json()["system_fingerprint"] == "hitlab-emulated"
    with running("sglang") as caller:
        assert caller.http.get("/server_info").json()["version"] == "0.5.23+emulated"


# -- faults ----------------------------------------------------------------------------------------------------

both = pytest.mark.parametrize("name", ["vllm", "sglang"])


@both
def test_lagging_counters_show_what_was_some_scrapes_ago(name: str, prompts: Prompts) -> None:
    with running(name, Faults(lag_scrapes=2)) as caller:
        start = caller.http.get("/metrics").text
        caller.cached(prompts.draw(50))
        pages = [caller.http.get("/metrics").text for _ in range(3)]
        names = ("prefix_cache_queries_total", "effective_tokens_total")
        values = [
            [line for line in page.splitlines() if any(part in line for part in names)] for page in (start, *pages)
        ]
        assert values[0] == values[1] == values[2] != values[3]


@both
def test_a_reset_that_lies_keeps_the_cache(name: str, prompts: Prompts) -> None:
    prompt = prompts.draw(97)
    with running(name, Faults(reset="lies")) as caller:
        caller.cached(prompt)
        assert caller.reset().status_code == 200
        assert caller.cached(prompt) == 96
    with running("vllm", Faults(reset="lies")) as caller:
        assert caller.reset().json() == {"success": True}


@both
def test_a_reset_that_is_always_refused(name: str) -> None:
    with running(name, Faults(reset="busy")) as caller:
        reply = caller.reset()
        assert (reply.status_code == 400) if name == "sglang" else (reply.json() == {"success": False})


@both
def test_a_mute_reset_empties_the_cache(name: str, prompts: Prompts) -> None:
    prompt = prompts.draw(97)
    with running(name, Faults(reset="mute")) as caller:
        caller.cached(prompt)
        assert (caller.reset().status_code, caller.reset().content) == (200, b"")
        assert caller.cached(prompt) == 0


@both
def test_foreign_traffic_is_counted_and_in_no_response(name: str, prompts: Prompts) -> None:
    with running(name, Faults(foreign_every=2, foreign_tokens=70)) as caller:
        before = caller.counted()[0]
        assert sum(caller.cached(prompts.draw(50)) for _ in range(4)) == 0
        assert caller.cached([*range(1000, 1050)]) == 0  # its ids are below those of a safe range
        queried, hit = caller.counted()
        assert queried - before == 5 * 50 + 2 * 70
        assert hit == {"vllm": 64, "sglang": 69}[name]


@both
def test_a_restart_empties_cache_and_counters(name: str, prompts: Prompts) -> None:
    prompt = prompts.draw(97)
    with running(name, Faults(restart_after=2)) as caller:
        fresh = caller.counted()
        assert [caller.cached(prompt), caller.cached(prompt)] == [0, 96]
        assert caller.counted() == fresh
        assert [caller.cached(prompt), caller.cached(prompt)] == [0, 96]
        assert caller.counted() == (fresh[0] + 2 * 97, 96)


def test_a_restart_makes_vllms_counters_anew(prompts: Prompts) -> None:
    with running("vllm", Faults(restart_after=1)) as caller:
        before = caller.total("vllm:prefix_cache_queries_created")
        caller.cached(prompts.draw(5))
        assert caller.total("vllm:prefix_cache_queries_created") > before


def test_preemption_counts_twice_and_says_so(prompts: Prompts) -> None:
    with running("vllm", Faults(recount_every=2)) as caller:
        for _ in range(4):
            caller.cached(prompts.draw(100))
        assert caller.counted() == (600, 2 * 96)
        assert caller.total("vllm:num_preemptions_total") == 2
    with running("sglang", Faults(recount_every=2)) as caller:
        before = caller.counted()[0]
        for _ in range(3):
            caller.cached(prompts.draw(100))
        assert caller.counted() == (before + 300, 0)
        assert caller.total("sglang:num_retracted_requests_total") == 2
        assert caller.total("sglang:realtime_tokens_total", mode="prefill_cache") > 0


@both
def test_a_failed_post_counts_nothing(name: str, prompts: Prompts) -> None:
    with running(name, Faults(fail_post=2)) as caller:
        before = caller.counted()
        assert [caller.post(prompts.draw(50)).status_code for _ in range(3)] == [200, 500, 200]
        assert caller.counted()[0] - before[0] == 100


@both
def test_a_server_that_dies_answers_nothing_more(name: str, prompts: Prompts) -> None:
    with running(name, Faults(die_post=2)) as caller:
        caller.cached(prompts.draw(50))
        with pytest.raises(httpx.RemoteProtocolError):
            caller.post(prompts.draw(50))
        with pytest.raises(httpx.TransportError):
            caller.post(prompts.draw(50))


@both
def test_what_a_metrics_page_can_be_instead(name: str) -> None:
    with running(name, Faults(metrics="html")) as caller:
        reply = caller.http.get("/metrics")
        assert reply.text.startswith("<!DOCTYPE html>")
        assert reply.headers["content-type"].startswith("text/html")
    with running(name, Faults(metrics="redirect")) as caller:
        reply = caller.http.get("/metrics")
        assert (reply.status_code, reply.headers["location"]) == (307, "/metrics/")
        assert shape(caller.http.get("/metrics", follow_redirects=True).text)
    with running(name, Faults(metrics="twice")) as caller:
        lines = caller.http.get("/metrics").text.splitlines()
        assert all(lines.count(line) == 2 for line in lines if not line.startswith("#"))


def test_cached_tokens_can_be_missing_or_null(prompts: Prompts) -> None:
    with running("vllm", prompt_tokens_details=False) as caller:
        assert caller.post(prompts.draw(9)).json()["usage"]["prompt_tokens_details"] is None
    with running("vllm", Faults(cached_tokens="null")) as caller:
        assert caller.post(prompts.draw(9)).json()["usage"]["prompt_tokens_details"] is None
    with running("vllm", Faults(cached_tokens="missing")) as caller:
        assert "cached_tokens" not in caller.post(prompts.draw(9)).json()["usage"]["prompt_tokens_details"]
    with running("sglang", Faults(cached_tokens="null")) as caller:
        assert caller.post(prompts.draw(9)).json()["meta_info"]["cached_tokens"] is None
    with running("sglang", Faults(cached_tokens="missing")) as caller:
        assert "cached_tokens" not in caller.post(prompts.draw(9)).json()["meta_info"]


@both
def test_a_token_of_the_servers_own_makes_prompts_longer(name: str) -> None:
    with running(name, Faults(extra_bos=True)) as caller:
        before = caller.counted()[0]
        document = caller.post([1000] * 97).json()
        prompt_tokens = document.get("usage", document.get("meta_info"))["prompt_tokens"]
        assert (prompt_tokens, caller.counted()[0] - before) == (98, 98)


def test_an_offload_tier_survives_a_reset(prompts: Prompts) -> None:
    prompt = prompts.draw(64)
    with running("vllm", Faults(offload_tier=True)) as caller:
        assert caller.cached(prompt) == 0
        assert caller.reset().json() == {"success": True}
        assert caller.cached(prompt) == 48
        assert caller.counted() == (128, 0)
        assert caller.total("vllm:external_prefix_cache_queries_total") == 128
        assert caller.total("vllm:external_prefix_cache_hits_total") == 48
        assert caller.cached(prompt) == 48
        assert caller.counted() == (192, 48)
        assert caller.total("vllm:external_prefix_cache_queries_total") == 128 + 16
    with running("sglang", Faults(offload_tier=True)) as caller:
        caller.cached(prompt)
        caller.reset()
        assert caller.cached(prompt) == 63
        assert caller.total("sglang:prefill_effective_tokens_total", mode="host_hit") == 63
        assert caller.total("sglang:cached_tokens_total", cache_source="host") == 63


@both
def test_a_server_can_announce_another_block_size_than_it_has(name: str, prompts: Prompts) -> None:
    prompt = prompts.draw(100)
    with running(name, Faults(announced_block_tokens=64), block_tokens=16) as caller:
        if name == "vllm":
            (labels, _), *_ = caller.samples()["vllm:cache_config_info"]
            assert labels["block_size"] == "64"
        else:
            assert caller.http.get("/server_info").json()["page_size"] == 64
            assert caller.total("sglang:page_size") == 64
        assert [caller.cached(prompt) for _ in range(2)] == [0, 96]


def test_faults_of_a_command_line() -> None:
    assert Faults.parse([]) == Faults()
    assert Faults.parse(["hang-post", "offload-tier=false"]) == Faults(hang_post=1)
    assert Faults.parse(["metrics=html", "announced_block_tokens=32"]) == Faults(
        metrics="html", announced_block_tokens=32
    )
    for word in ("reset", "reset=maybe", "lag-scrapes=x", "nosuch", "extra-bos=2"):
        with pytest.raises(UsageError, match=r"choose from lag-scrapes=N, reset=lies\|busy\|mute"):
            Faults.parse([word])


# -- requests beside each other --------------------------------------------------------------------------------


def _dialect(name: str) -> Any:
    return families.emulated_engine(name)


def test_requests_run_beside_each_other_in_order_of_arrival() -> None:
    scheduler = Scheduler(emulate.settings("vllm"), Faults(), _dialect("vllm").build_cache)
    finished: list[int] = []
    for number, max_tokens in enumerate((3, 1, 3)):
        generation = Generation(Prompt((number,) * 20), max_tokens)
        generation.on_finish = lambda generation: finished.append(generation.prompt.tokens[0])
        scheduler.submit([generation])
    assert scheduler.step()
    assert [len(generation.output) for generation in scheduler.ranks[0].running] == [1, 1]
    assert not scheduler.reset()
    while scheduler.step():
        pass
    assert finished == [1, 0, 2]
    assert scheduler.reset()


def test_a_full_pool_preempts_the_last_request_and_counts_it_once() -> None:
    # 6 usable blocks of 4: two prompts of 8 take 4, and each needs 3 and more to end.
    config = EmulatedConfig(block_tokens=4, capacity_blocks=7, version="0.32.0")
    scheduler = Scheduler(config, Faults(), _dialect("vllm").build_cache)
    generations = [Generation(Prompt(tuple(range(10 * n, 10 * n + 8))), max_tokens=12) for n in (1, 2)]
    generations += [Generation(Prompt(tuple(range(100, 112))))]
    finished: list[Generation] = []
    for generation in generations:
        generation.on_finish = finished.append
    scheduler.submit(generations)
    while scheduler.step():
        pass
    assert finished == generations  # the preempted one goes before the one that has not begun
    (counters,) = scheduler.scrape()
    assert [generation.finish_reason for generation in generations] == ["length"] * 3
    assert [generation.preemptions for generation in generations] == [0, 1, 0]
    assert counters.preempted_requests == 1
    assert counters.queried_tokens == 8 + 8 + 12
    alone = Generation(generations[1].prompt, max_tokens=12)
    scheduler.submit([alone])
    while scheduler.step():
        pass
    assert alone.output == generations[1].output


def test_a_reset_with_one_busy_rank_empties_none() -> None:
    config = emulate.settings("vllm", CacheSizes(ranks=2))
    scheduler = Scheduler(config, Faults(hang_post=2), _dialect("vllm").build_cache)
    prompt = Prompt(tuple(range(100)))
    for _ in range(2):
        scheduler.submit([Generation(prompt)])
        scheduler.step()
    assert not scheduler.reset()
    again = Generation(prompt)
    scheduler.submit([again])
    scheduler.step()
    assert again.hit_tokens == 96


def test_requests_over_sockets_overlap(prompts: Prompts) -> None:
    with running("sglang", blocks=20_000) as caller:
        with ThreadPoolExecutor(8) as pool:
            lengths = list(pool.map(lambda n: len(caller.output([1000 + n] * 50, max_tokens=60)), range(40)))
        assert lengths == [60] * 40
        assert caller.total("sglang:num_running_reqs") == 0
        assert caller.total("sglang:num_requests_total") == 41
        assert caller.reset().status_code == 200


@both
def test_a_client_that_goes_away_frees_its_blocks_and_has_been_counted(name: str, prompts: Prompts) -> None:
    with running(name, Faults(hang_post=1)) as caller:
        before = caller.counted()[0]
        body = caller.http.build_request("POST", caller.path, json=caller.body(prompts.draw(100)))
        with socket.create_connection((body.url.host, body.url.port or 0)) as line:
            line.sendall(b"POST %b HTTP/1.1\r\nhost: x\r\n" % body.url.raw_path)
            line.sendall(b"content-length: %d\r\n\r\n%b" % (len(body.content), body.content))
            assert caller.server.hanging.wait(10)
        assert _eventually(lambda: _is_reset(caller.reset()))
        assert caller.counted()[0] - before == 100


def _is_reset(reply: httpx.Response) -> bool:
    return reply.status_code == 200 and "false" not in reply.text


def _eventually(holds: Callable[[], bool]) -> bool:
    return any(holds() for _ in range(1000))


def test_a_mistake_in_the_emulator_is_an_answer_and_not_a_wait(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def mistaken() -> bool:
        raise ZeroDivisionError

    with running("vllm") as caller:
        monkeypatch.setattr(caller.server.engine.scheduler, "step", mistaken)
        assert caller.post([5]).status_code == 500
    assert "ZeroDivisionError" in caplog.text


# -- starting and stopping -------------------------------------------------------------------------------------


def test_a_stopped_server_is_gone_and_leaves_nothing_behind(prompts: Prompts) -> None:
    threads = threading.active_count()
    server = emulate.start("vllm")
    with httpx.Client(base_url=server.base_url) as http:
        http.get("/health").raise_for_status()
        server.stop()
        server.stop()
        with pytest.raises(httpx.TransportError):
            http.get("/health")
    assert threading.active_count() == threads
    gc.collect()  # an unclosed socket or loop would warn, and warnings are errors


def test_stopping_cuts_off_a_request_that_hangs(prompts: Prompts) -> None:
    with ThreadPoolExecutor() as pool:
        with running("vllm", Faults(hang_post=1)) as caller:
            hanging = pool.submit(httpx.post, f"{caller.server.base_url}/v1/completions", json={"prompt": [5]})
            assert caller.server.hanging.wait(10)
        with pytest.raises(httpx.TransportError):
            hanging.result(10)
    gc.collect()


def test_a_port_that_is_taken_is_one_clear_error() -> None:
    with emulate.start("vllm") as server:
        port = int(server.base_url.rpartition(":")[2])
        with pytest.raises(LaunchError, match=rf"127\.0\.0\.1:{port}: cannot listen .*; choose another `port`"):
            emulate.start("sglang", port=port)
    gc.collect()


def test_a_response_does_not_wait_for_acknowledgements() -> None:
    # asyncio turns Nagle's algorithm off for sockets that are TCP by name; without, each response takes 40 ms.
    with emulate.listen("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP


def test_ctrl_c_ends_a_served_engine_with_one_word(root: Path) -> None:
    command = [sys.executable, "run.py", "serve", "--engine", "vllm", "--emulate", "--port", "0"]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout
        assert child.stderr
        assert child.stdout.readline().startswith("EMULATED vllm serves at http://127.0.0.1:")
        url = child.stdout.readline().split()[-1]  # the command that measures it ends with the address
        assert httpx.get(f"{url}/version").json()["version"].endswith("+emulated")
        child.send_signal(signal.SIGINT)
        assert child.wait(10) == 0
        assert child.stdout.read() + child.stderr.read() == "stopped\n"


def test_settings_that_no_server_has_are_refused() -> None:
    for sizes in ({"block_tokens": 0}, {"capacity_blocks": 1}, {"ranks": 0}):
        with pytest.raises(UsageError, match=next(iter(sizes))):
            emulate.settings("vllm", CacheSizes(**sizes))
    with pytest.raises(UsageError, match="choose from sglang, vllm"):
        emulate.settings("nosuch")


def test_sizes_are_counted_as_the_engines_own_options_count_them() -> None:
    sizes: Sequence[tuple[str, int, int]] = (("vllm", 16, 99 * 16), ("sglang", 16, 100 * 16))
    for name, block_tokens, usable in sizes:
        config = emulate.settings(name, CacheSizes(block_tokens=block_tokens, capacity_blocks=100))
        assert _dialect(name).build_cache(config).capacity_tokens == usable
