"""What emulated engines do wrong when they are told to."""

import httpx
import pytest
from servers.emulated.callers import Prompts, both, running, shape

from hitlab.errors import UsageError
from hitlab.servers.emulated.config import Faults


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
