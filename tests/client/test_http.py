"""What is sent to an engine and what its answers say, on bodies that real servers sent; resets and keys that fail."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
import respx
from client.callers import PROMPT, URL, ask, lifetime
from hypothesis import example, given
from hypothesis import strategies as st

from hitlab.client.dialect import Completion
from hitlab.client.http import Keys
from hitlab.errors import (
    HitlabError,
    KeyRefusedError,
    MetricsError,
    RequestRefusedError,
    ResetRefusedError,
    ServerError,
    UnreachableError,
    UsageError,
)
from hitlab.tokens import Prompt, Tally

pytestmark = pytest.mark.usefixtures("server", "no_waiting")


def test_vllm_gets_token_ids_and_one_output_token(server: respx.Router) -> None:
    route = server.post("/v1/completions").respond(json={"choices": [{"text": ""}], "usage": {"prompt_tokens": 97}})
    ask(lambda client: client.complete(Prompt(PROMPT.tokens, "tenant")))
    body = json.loads(route.calls.last.request.content)
    assert body["prompt"] == list(PROMPT.tokens)
    assert (body["max_tokens"], body["cache_salt"]) == (1, "tenant")
    assert body.keys().isdisjoint({"logprobs", "prompt_logprobs", "echo", "n"})


def test_sglang_gets_token_ids_and_no_salt_where_there_is_none(server: respx.Router) -> None:
    route = server.post("/generate").respond(json={"meta_info": {"prompt_tokens": 97, "cached_tokens": 96}})
    answer = ask(lambda client: client.complete(PROMPT), engine="sglang")
    body = json.loads(route.calls.last.request.content)
    assert body["input_ids"] == list(PROMPT.tokens)
    assert body["sampling_params"]["max_new_tokens"] == 1
    assert "cache_salt" not in body
    assert answer.completion == Completion(prompt_tokens=97, cached_tokens=96)


@pytest.mark.parametrize(
    ("usage", "cached"),
    [
        ({"prompt_tokens": 97, "prompt_tokens_details": None}, None),
        ({"prompt_tokens": 97}, None),
        ({"prompt_tokens": 97, "prompt_tokens_details": {"cached_tokens": 0}}, 0),
        ({"prompt_tokens": 97, "prompt_tokens_details": {"cached_tokens": 96}}, 96),
    ],
)
def test_cached_tokens_are_unknown_zero_or_a_number(
    server: respx.Router, usage: dict[str, Any], cached: int | None
) -> None:
    server.post("/v1/completions").respond(json={"choices": [{"text": ""}], "usage": usage})
    assert ask(lambda client: client.complete(PROMPT)).completion.cached_tokens is cached


def test_refused_prompt_brings_the_engines_own_words(server: respx.Router) -> None:
    server.post("/v1/completions").respond(404, json={"error": {"message": "The model `x` does not exist."}})
    with pytest.raises(RequestRefusedError, match="404: The model `x` does not exist"):
        ask(lambda client: client.complete(PROMPT))


@pytest.mark.parametrize(
    ("status", "body", "done"), [(200, b'{"success":true}', True), (200, b"", None), (200, b"{}", None)]
)
def test_vllm_reset_is_done_or_unverified(server: respx.Router, status: int, body: bytes, done: bool | None) -> None:
    route = server.post("/reset_prefix_cache").respond(status, content=body)
    assert ask(lambda client: client.reset()).done is done
    assert route.calls.last.request.url.params["reset_external"] == "true"


def test_vllm_reset_that_says_no_is_tried_again_and_then_refused(server: respx.Router, no_waiting: list[float]) -> None:
    route = server.post("/reset_prefix_cache").respond(json={"success": False})
    with pytest.raises(ResetRefusedError, match="blocks are in use"):
        ask(lambda client: client.reset())
    assert route.call_count > 1
    assert len(no_waiting) == route.call_count - 1


def test_vllm_reset_that_is_not_there_names_dev_mode_and_cold_by(server: respx.Router) -> None:
    server.post("/reset_prefix_cache").respond(404, json={"detail": "Not Found"})
    with pytest.raises(ResetRefusedError) as caught:
        ask(lambda client: client.reset())
    assert "VLLM_SERVER_DEV_MODE=1" in str(caught.value)
    assert "`cold_by`" in str(caught.value)


@pytest.mark.parametrize("status", [405, 500])
def test_reset_refused_by_a_router_says_to_name_the_engine(server: respx.Router, status: int) -> None:
    server.post("/reset_prefix_cache").respond(status)
    with pytest.raises(ResetRefusedError, match="behind a router"):
        ask(lambda client: client.reset())


def test_sglang_flush_waits_with_a_timeout_and_is_tried_again_after_a_pause(
    server: respx.Router, no_waiting: list[float]
) -> None:
    route = server.post("/flush_cache").mock(
        side_effect=[httpx.Response(400, text="Flush cache failed."), httpx.Response(200, text="Cache flushed.")]
    )
    assert ask(lambda client: client.reset(), engine="sglang").done is True
    assert float(route.calls.last.request.url.params["timeout"]) > 0
    assert len(no_waiting) == 1


def test_busy_flush_of_sglang_0_5_5_is_refused_though_its_body_says_flushed(server: respx.Router) -> None:
    server.post("/flush_cache").respond(400, text="Cache flushed.")
    with pytest.raises(ResetRefusedError):
        ask(lambda client: client.reset(), engine="sglang")


def test_admin_key_opens_the_reset_and_api_key_the_rest(server: respx.Router) -> None:
    def reset(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200 if request.headers["Authorization"] == "Bearer Z" else 401)

    server.post("/flush_cache").mock(side_effect=reset)
    generate = server.post("/generate").respond(json={"meta_info": {"prompt_tokens": 97}})
    keys = Keys(api="A", admin="Z")
    assert ask(lambda client: client.reset(), engine="sglang", keys=keys).done
    ask(lambda client: client.complete(PROMPT), engine="sglang", keys=keys)
    assert generate.calls.last.request.headers["Authorization"] == "Bearer A"


@pytest.mark.parametrize("status", [401, 403])
def test_refused_key_is_named_and_never_printed(server: respx.Router, status: int) -> None:
    server.post("/flush_cache").respond(status)
    with pytest.raises(KeyRefusedError, match="`admin_key_env`") as caught:
        ask(lambda client: client.reset(), engine="sglang", keys=Keys(api="sesame"))
    assert "sesame" not in str(caught.value)
    assert "sesame" not in repr(Keys(api="sesame"))


@given(st.text(st.characters(codec="utf-8")), st.sampled_from(["\r", "\n", "\u00e9", "\x7f", "\0", " "]))
@example("sekr\u00e9t", "\n")
def test_what_no_header_carries_is_no_key_and_is_never_printed(text: str, strange: str) -> None:
    key = f"{text}-sesame{strange}"
    wrong: list[dict[str, Any]] = [{"api": key}, {"admin": key}, {"api": key.encode()}, {"api": [key]}]
    for keys in wrong:
        with pytest.raises(UsageError, match=f"`{next(iter(keys))}_key`") as refused:
            Keys(**keys)
        assert "sesame" not in f"{refused.value!r} {refused.value} {refused.value.__context__!r}"


@given(st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1))
def test_every_printable_key_is_sent_as_it_is(key: str) -> None:
    assert Keys(key, key).api == key
    assert httpx.Request("GET", URL, headers={"Authorization": f"Bearer {key}"}).headers["Authorization"][7:] == key


def test_a_key_that_was_not_set_is_not_taken_for_none() -> None:
    with pytest.raises(UsageError, match="`api_key` is empty; give a key, or leave it out"):
        Keys(api="")
    assert Keys(api=None).api is None


def test_redirect_to_a_trailing_slash_is_followed(server: respx.Router) -> None:
    server.get("/metrics").respond(307, headers={"Location": "/metrics/"})
    server.get("/metrics/").respond(text="vllm:prefix_cache_queries_total 8\nvllm:prefix_cache_hits_total 0\n")
    assert lifetime(ask(lambda client: client.scrape())) == (Tally(8, 0), "vllm:prefix_cache")


def test_metrics_are_asked_for_in_the_format_that_keeps_colons(server: respx.Router) -> None:
    route = server.get("/metrics").respond(text="vllm:prefix_cache_queries_total 8\nvllm:prefix_cache_hits_total 0\n")
    ask(lambda client: client.scrape())
    assert route.calls.last.request.headers["Accept"] == "text/plain;version=0.0.4"


def test_several_metrics_addresses_are_added(server: respx.Router) -> None:
    page = "vllm:prefix_cache_queries_total 8\nvllm:prefix_cache_hits_total 3\n"
    server.get("http://one:9/metrics").respond(text=page)
    server.get("http://two:9/metrics").respond(text=page)
    found = ask(lambda client: client.scrape(), metrics_urls=["http://one:9/metrics", "two:9"])
    assert lifetime(found) == (Tally(16, 6), "vllm:prefix_cache")


@pytest.mark.parametrize(("engine", "flag"), [("vllm", "--disable-log-stats"), ("sglang", "--enable-metrics")])
def test_metrics_that_are_off_name_the_flag(server: respx.Router, engine: str, flag: str) -> None:
    server.get("/metrics").respond(404, text="Not Found")
    with pytest.raises(MetricsError, match=flag):
        ask(lambda client: client.scrape(), engine=engine)


def test_login_page_in_place_of_metrics_is_named(server: respx.Router) -> None:
    server.get("/metrics").respond(html="<html>login</html>")
    with pytest.raises(MetricsError, match=r"not a metrics page.*<html>login"):
        ask(lambda client: client.scrape())


@pytest.mark.parametrize(
    "error", [httpx.ConnectError("refused"), httpx.ReadTimeout("slow"), httpx.RemoteProtocolError("x")]
)
def test_server_that_does_not_answer_is_one_line(server: respx.Router, error: Exception) -> None:
    server.get("/version").mock(side_effect=error)
    with pytest.raises(UnreachableError) as caught:
        ask(lambda client: client.facts())
    assert "\n" not in str(caught.value)
    assert URL in str(caught.value)


def test_server_of_another_kind_is_named_so(server: respx.Router) -> None:
    server.route().respond(404, html="<html>nginx</html>")
    with pytest.raises(ServerError, match="nothing there answers as vLLM does"):
        ask(lambda client: client.facts())


def test_vllm_facts_are_the_effective_values_of_a_real_page(server: respx.Router, data: Path) -> None:
    server.get("/version").respond(json={"version": "0.32.0"})
    server.get("/v1/models").respond(json={"data": [{"id": "tiny", "max_model_len": 16_384}]})
    server.get("/metrics").respond(text=(data / "golden/vllm/dp2.prom").read_text())
    facts = ask(lambda client: client.facts())
    assert (facts.version, facts.model, facts.max_model_tokens) == ("0.32.0", "tiny", 16_384)
    assert (facts.block_tokens, facts.ranks, facts.caching) == (32, 2, True)
    assert facts.capacity_tokens == 2047 * 32  # one rank's pool, without its null block


def test_vllm_says_when_caching_is_off(server: respx.Router, data: Path) -> None:
    server.get("/metrics").respond(text=(data / "golden/vllm/pcoff.prom").read_text())
    server.route().respond(404)
    assert ask(lambda client: client.facts()).caching is False


@pytest.mark.parametrize("path", ["/server_info", "/get_server_info"])
def test_sglang_facts_come_from_the_old_path_too(server: respx.Router, data: Path, path: str) -> None:
    server.get(path).respond(json=json.loads((data / "golden/sglang/server_info_trimmed.json").read_text()))
    server.get("/metrics").respond(text=(data / "golden/sglang/p1_a_after.prom").read_text())
    server.route().respond(404)
    facts = ask(lambda client: client.facts(), engine="sglang")
    assert (facts.version, facts.block_tokens, facts.capacity_tokens) == ("0.5.23", 1, 200_000)
    assert (facts.caching, facts.chunked_prefill_tokens, facts.overlap_schedule) == (True, 4096, False)


def test_hybrid_model_is_marked_as_an_upper_bound(server: respx.Router) -> None:
    server.get("/metrics").respond(text='vllm:cache_config_info{block_size="784",mamba_cache_mode="align"} 1\n')
    server.route().respond(404)
    assert "upper bound" in ask(lambda client: client.facts()).notes[0]


def test_errors_are_one_family() -> None:
    assert all(issubclass(kind, HitlabError) for kind in (UnreachableError, ResetRefusedError, MetricsError))
