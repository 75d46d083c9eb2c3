"""The HTTP dialects against bodies that real servers sent, and every reset and key that went wrong (B, D)."""

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest
import respx

from hitlab import families
from hitlab.client.counters import Counters
from hitlab.client.dialect import Completion
from hitlab.client.http import EngineClient, Keys, metrics_url, root_url
from hitlab.errors import (
    HitlabError,
    KeyRefusedError,
    MetricsError,
    RequestAbortedError,
    RequestRefusedError,
    ResetRefusedError,
    ServerError,
    UnreachableError,
    UsageError,
)
from hitlab.tokens import Prompt, Tally

T = TypeVar("T")
URL = "http://engine:8000"
PROMPT = Prompt(tuple(range(1000, 1097)))


def ask(what: Callable[[EngineClient], Awaitable[T]], engine: str = "vllm", **options: Any) -> T:
    """Run one client call to its end."""

    async def run() -> T:
        async with EngineClient(families.engine(engine), URL, **options) as client:
            return await what(client)

    return asyncio.run(run())


def lifetime(found: Counters) -> tuple[Tally, str]:
    """Everything counted, and from what."""
    return found.since(Counters())


@pytest.fixture(autouse=True)
def server() -> Any:
    with respx.mock(base_url=URL, assert_all_called=False) as router:
        yield router


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Pauses are counted, not spent."""
    pauses: list[float] = []
    real = asyncio.sleep

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        await real(0)

    monkeypatch.setattr("hitlab.client.http.asyncio.sleep", sleep)
    return pauses


@pytest.mark.parametrize(
    "given",
    ["http://h:8000", "h:8000", "http://h:8000/", "http://h:8000/v1", "http://h:8000/v1/", "http://h:8000/metrics"],
)
def test_any_spelling_of_an_address_is_its_root(given: str) -> None:
    assert root_url(given) == "http://h:8000"


@pytest.mark.parametrize("given", ["", "http://", "ftp://h", "http://h:notaport", "http://h:99999"])
def test_what_is_no_address_is_a_usage_error(given: str) -> None:
    with pytest.raises(UsageError, match="not an address"):
        root_url(given)


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


# -- replies that no engine gives ------------------------------------------------------------------------------

VLLM_GOOD = {"choices": [{"text": ""}], "usage": {"prompt_tokens": 97}}
USAGE = {"prompt_tokens": 97, "prompt_tokens_details": {"cached_tokens": 0}}
DEEP = b"[" * 200_000


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b'{"error": {"message": "model overloaded"}}', "an answer without a completion: model overloaded"),
        (b'{"usage": {"prompt_tokens": 97}}', "an answer without a completion"),
        (b'{"usage": {"prompt_tokens": 97}, "choices": []}', "an answer without a completion"),
        (b'{"choices": [{}]}', "an answer without a completion"),
        (b"<html>login</html>", "an answer that no vLLM gives: <html>login</html>"),
        (b"", "an answer that no vLLM gives: an empty body"),
        (b"[1]", "an answer that no vLLM gives: Expected `object`, got `array`"),
        (b'{"usage": "x", "choices": [{}]}', r"\$.usage"),
        (b'{"usage": {}, "choices": [{}]}', "prompt_tokens"),
        (b'{"usage": {"prompt_tokens": "97"}, "choices": [{}]}', r"\$.usage.prompt_tokens"),
        (b'{"usage": {"prompt_tokens": -97}, "choices": [{}]}', r"\$.usage.prompt_tokens"),
        (b'{"usage": {"prompt_tokens": 97}, "choices": "abc"}', r"\$.choices"),
        (b'{"usage": {"prompt_tokens": 97}, "choices": [null]}', r"\$.choices"),
        (b'{"usage": {"prompt_tokens": 97, "prompt_tokens_details": [1]}, "choices": [{}]}', "prompt_tokens_details"),
        (
            b'{"usage": {"prompt_tokens": 97, "prompt_tokens_details": {"cached_tokens": "96"}}, "choices": [{}]}',
            "cached_tokens",
        ),
        (b'{"usage": {"prompt_tokens": 97}, "choices": [{"token_ids": "abc"}]}', "token_ids"),
        (DEEP, "an answer that no vLLM gives"),
        (b'{"error": ' + DEEP, "an answer that no vLLM gives"),
    ],
)
def test_vllm_answer_that_is_no_completion_is_a_refused_request(server: respx.Router, body: bytes, says: str) -> None:
    server.post("/v1/completions").respond(content=body)
    with pytest.raises(RequestRefusedError, match=says) as caught:
        ask(lambda client: client.complete(PROMPT))
    assert str(caught.value).startswith(f"{URL}/v1/completions: a prompt of 97 tokens got ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b'{"error": {"message": "aborted"}}', "an answer without a completion: aborted"),
        (b'{"meta_info": [1]}', r"\$.meta_info"),
        (b'{"meta_info": {"prompt_tokens": 97, "finish_reason": "stop"}}', "finish_reason"),
        (b'{"meta_info": {"prompt_tokens": 97}, "output_ids": 5}', "output_ids"),
        (b'{"meta_info": {"prompt_tokens": "97"}}', "prompt_tokens"),
        (b'[{"meta_info": {"prompt_tokens": 97}}]', "an answer that no SGLang gives"),
        (DEEP, "an answer that no SGLang gives"),
    ],
)
def test_sglang_answer_that_is_no_completion_is_a_refused_request(server: respx.Router, body: bytes, says: str) -> None:
    server.post("/generate").respond(content=body)
    with pytest.raises(RequestRefusedError, match=says):
        ask(lambda client: client.complete(PROMPT), engine="sglang")


@pytest.mark.parametrize(
    ("engine", "path", "body"),
    [
        ("vllm", "/v1/completions", b'{"error": "busy"}'),
        ("sglang", "/generate", b'[{"error": "busy"}]'),
        ("sglang", "/generate", b'{"error": "busy"}'),
    ],
)
def test_post_of_several_prompts_without_completions_is_refused_too(
    server: respx.Router, engine: str, path: str, body: bytes
) -> None:
    server.post(path).respond(content=body)
    with pytest.raises(RequestRefusedError, match="a POST of 2 prompts got an answer"):
        ask(lambda client: client.complete_together([PROMPT, PROMPT]), engine=engine)


def test_nulls_and_fields_nobody_asked_for_are_fine(server: respx.Router) -> None:
    choice = {"text": "", "token_ids": None, "finish_reason": None, "logprobs": {"x": [1]}}
    server.post("/v1/completions").respond(json={"choices": [choice], "usage": {**USAGE, "new": [{}]}, "more": 1})
    assert ask(lambda client: client.complete(PROMPT)).completion == Completion(97, 0)
    meta = {"prompt_tokens": 97, "cached_tokens": None, "finish_reason": None, "e2e_latency": 0.1}
    server.post("/generate").respond(json={"meta_info": meta, "output_ids": None, "text": ""})
    assert ask(lambda client: client.complete(PROMPT), engine="sglang").completion == Completion(97, None)


@pytest.mark.parametrize(
    ("engine", "path", "body"),
    [
        ("vllm", "/version", b'"hi"'),
        ("vllm", "/version", b""),
        ("vllm", "/version", DEEP),
        ("vllm", "/v1/models", b'{"data": [1]}'),
        ("vllm", "/v1/models", b'{"data": "x"}'),
        ("vllm", "/v1/models", b'{"data": [{"id": "m", "max_model_len": "32768"}]}'),
        ("sglang", "/server_info", b'{"max_total_num_tokens": "9"}'),
        ("sglang", "/server_info", b'{"chunked_prefill_size": "x"}'),
        ("sglang", "/server_info", b'{"page_size": 0}'),
        ("sglang", "/server_info", b"[]"),
    ],
)
def test_facts_of_a_wrong_shape_are_one_line(server: respx.Router, engine: str, path: str, body: bytes) -> None:
    server.get(path).respond(content=body)
    server.route().respond(404)
    with pytest.raises(ServerError, match=r"an answer that no (vLLM|SGLang) gives") as caught:
        ask(lambda client: client.facts(), engine=engine)
    assert URL in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1"])
def test_gauge_that_is_no_number_of_tokens_is_named(server: respx.Router, value: str) -> None:
    server.get("/metrics").respond(text=f"sglang:max_total_num_tokens {value}\n")
    server.route().respond(404)
    with pytest.raises(MetricsError, match=r"max_total_num_tokens\{\} is"):
        ask(lambda client: client.facts(), engine="sglang")


@pytest.mark.parametrize("label", ["²", "0", "None", "-16", "9" * 5000, "16.0"])
def test_label_that_is_no_size_is_a_size_not_said(server: respx.Router, label: str) -> None:
    server.get("/metrics").respond(text=f'vllm:cache_config_info{{block_size="{label}",num_gpu_blocks="5"}} 1\n')
    server.route().respond(404)
    facts = ask(lambda client: client.facts())
    assert (facts.block_tokens, facts.capacity_tokens) == (None, None)


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        (400, b"no", "the server answered 400: no"),
        (429, b'{"error": "slow down"}', "the server answered 429: slow down"),
        (200, b"[true]", "an answer that no vLLM gives"),
        (200, b'{"success": "yes"}', "an answer that no vLLM gives"),
        (200, b"<html>login</html>", "an answer that no vLLM gives: <html>login"),
        (200, DEEP, "an answer that no vLLM gives"),
    ],
)
def test_vllm_reset_that_says_anything_else_is_refused(
    server: respx.Router, status: int, body: bytes, says: str
) -> None:
    route = server.post("/reset_prefix_cache").respond(status, content=body)
    with pytest.raises(ResetRefusedError, match=says):
        ask(lambda client: client.reset())
    assert route.call_count == 1


@pytest.mark.parametrize("status", [301, 302, 303])
def test_reset_that_would_become_a_get_is_refused(server: respx.Router, status: int) -> None:
    server.post("/reset_prefix_cache").respond(status, headers={"Location": "/version"})
    elsewhere = server.get("/version").respond(json={"success": True})
    with pytest.raises(ResetRefusedError, match=str(status)):
        ask(lambda client: client.reset())
    assert not elsewhere.called


@pytest.mark.parametrize("status", [307, 308])
def test_reset_that_stays_a_post_is_followed(server: respx.Router, status: int) -> None:
    server.post("/reset_prefix_cache").respond(status, headers={"Location": "/v2/reset_prefix_cache"})
    server.post("/v2/reset_prefix_cache").respond(json={"success": True})
    assert ask(lambda client: client.reset()).done is True


# -- addresses, passwords, keys --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given", ["http://[::1", "http://☃", "http://h\x01", "http://a..b", "http://a b", "http://h:0"]
)
def test_address_that_no_look_up_takes_is_a_usage_error(given: str) -> None:
    with pytest.raises(UsageError, match="not an address"):
        root_url(given)


def test_password_of_an_address_is_sent_and_shown_nowhere(server: respx.Router) -> None:
    basic = "Basic dXNlcjpwQHcx"  # user:p@w1
    pages = server.get("/metrics").respond(404)
    server.route().respond(404)

    async def run() -> tuple[str, list[str]]:
        async with EngineClient(families.engine("vllm"), "http://user:p%40w1@engine:8000/v1") as client:
            with pytest.raises(ServerError) as caught:
                await client.facts()
            assert "w1" not in str(caught.value)
            return client.base_url, client.metrics_urls

    assert asyncio.run(run()) == (URL, [f"{URL}/metrics"])
    assert {call.request.headers["Authorization"] for call in server.calls} == {basic}
    assert pages.called


def test_password_is_not_sent_on_to_another_server(server: respx.Router) -> None:
    server.get("/metrics").respond(307, headers={"Location": "http://other:9/metrics"})
    other = server.get("http://other:9/metrics").respond(text="sglang:x 1\n")

    async def run() -> None:
        async with EngineClient(families.engine("sglang"), "http://user:pw@engine:8000") as client:
            await client.scrape()

    asyncio.run(run())
    assert "Authorization" not in other.calls.last.request.headers


def test_refused_password_is_named_and_bad_address_hides_it(server: respx.Router) -> None:
    server.route().respond(401)
    with pytest.raises(KeyRefusedError, match="refuses the password of the address"):
        ask(lambda client: client.scrape(), metrics_urls=["http://user:secret@engine:8000"])
    with pytest.raises(UsageError) as caught:
        root_url("http://user:secret@h:port")
    assert "secret" not in str(caught.value)


def test_password_and_key_are_one_too_many() -> None:
    with pytest.raises(UsageError, match="a password in the address and a key"):
        EngineClient(families.engine("vllm"), "http://user:pw@h", keys=Keys(api="A"))


def test_key_that_no_header_carries_is_not_printed_by_the_http_library() -> None:
    async def run(url: str) -> str:
        async with EngineClient(families.engine("vllm"), url, keys=Keys("sk-LEAK\r")) as client:
            with pytest.raises(UnreachableError, match="can't be put into HTTP") as caught:
                await client.facts()
            return str(caught.value)

    with socket.create_server(("127.0.0.1", 0)) as listening, respx.mock() as router:
        router.route().pass_through()
        assert "LEAK" not in asyncio.run(run(f"http://127.0.0.1:{listening.getsockname()[1]}"))


# -- replicas --------------------------------------------------------------------------------------------------


def test_replica_that_restarts_does_not_hide_behind_one_with_the_same_labels(server: respx.Router) -> None:
    page = "vllm:prefix_cache_queries_total {}\nvllm:prefix_cache_hits_total 3\nvllm:prefix_cache_queries_created {}\n"
    one = server.get("http://one:9/metrics").respond(text=page.format(8, 1.7e9))
    server.get("http://two:9/metrics").respond(text=page.format(80, 1.7e9))
    urls = ["http://one:9", "http://two:9"]
    before = ask(lambda client: client.scrape(), metrics_urls=urls)
    one.respond(text=page.format(7, 1.7e9))
    fell = ask(lambda client: client.scrape(), metrics_urls=urls)
    one.respond(text=page.format(9, 1.8e9))
    anew = ask(lambda client: client.scrape(), metrics_urls=urls)
    assert fell.restarted_since(before) == "http://one:9/metrics vllm:prefix_cache_queries_total{} fell"
    assert anew.restarted_since(before) == "http://one:9/metrics vllm:prefix_cache_queries_created{} was made anew"
    assert before.restarted_since(before) == ""


def test_address_given_twice_is_counted_once(server: respx.Router) -> None:
    page = "vllm:prefix_cache_queries_total 8\nvllm:prefix_cache_hits_total 3\n"
    server.get("http://one:9/metrics").respond(text=page)
    given = ["http://one:9", "one:9/metrics", "http://ONE:9/"]
    found = ask(lambda client: client.scrape(), metrics_urls=given)
    assert lifetime(found) == (Tally(8, 3), "vllm:prefix_cache")


@pytest.mark.parametrize(("engine", "other"), [("vllm", "sglang"), ("sglang", "vllm")])
def test_page_of_another_engine_names_it(server: respx.Router, engine: str, other: str) -> None:
    server.get("/metrics").respond(text=f"{other}:prompt_tokens_total 8\n")
    with pytest.raises(MetricsError, match=f"has {other}: metrics; did you mean `engine` {other}"):
        ask(lambda client: client.scrape(), engine=engine)


def test_closed_port_says_how_to_have_a_server(server: respx.Router) -> None:
    server.get("/version").mock(side_effect=httpx.ConnectError("refused"))
    with pytest.raises(UnreachableError, match="hitlab serve --engine vllm --emulate"):
        ask(lambda client: client.facts())


# -- metrics that are somewhere else, or something else --------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ("http://h:8000", "http://h:8000/metrics"),
        ("h:8000/", "http://h:8000/metrics"),
        ("http://h:8000/v1", "http://h:8000/metrics"),
        ("http://h:8000/metrics/", "http://h:8000/metrics"),
        ("http://h:8000/engine_metrics", "http://h:8000/engine_metrics"),
        ("https://me:pw@H/ray/metrics", "https://h/ray/metrics"),
        ("http://h:9090/federate?match[]=x", "http://h:9090/federate?match[]=x"),
    ],
)
def test_a_metrics_address_with_a_path_is_taken_as_it_is(given: str, asked: str) -> None:
    assert metrics_url(given) == asked
    assert metrics_url(asked) == asked


def test_metrics_on_a_path_of_their_own_are_read(server: respx.Router) -> None:
    server.get("/engine_metrics").respond(text="sglang:prompt_tokens_total 30\nsglang:cached_tokens_total 10\n")
    server.route().respond(404)
    found = ask(lambda client: client.scrape(), engine="sglang", metrics_urls=[f"{URL}/engine_metrics"])
    assert lifetime(found)[0] == Tally(30, 10)
    facts = ask(lambda client: client.facts(), engine="sglang", metrics_urls=[f"{URL}/engine_metrics"])
    assert facts.version is None


@pytest.mark.parametrize(
    ("engine", "status", "body", "says"),
    [
        ("vllm", 404, "Not Found", r"404: Not Found; start vLLM without --disable-log-stats"),
        ("sglang", 404, "Not Found", r"404: Not Found; start SGLang with --enable-metrics"),
        ("vllm", 500, "Internal Server Error", r"500: Internal Server Error; the server's own /metrics fails: see"),
        ("vllm", 503, "no upstream", r"503: no upstream; what stands in front can't reach it"),
        ("vllm", 405, "no", r"405: no; name the server's own /metrics"),
        ("vllm", 200, "<html>login</html>", r"not a metrics page but an HTML page, .*; is this a login, a proxy"),
        ("vllm", 200, '{"detail":"x"}', r"not a metrics page but JSON, .*; is this a login, a proxy or another route"),
        ("vllm", 200, "", r"an empty page: no vllm:prefix_cache_queries_total .*; start vLLM without"),
        ("vllm", 200, "python_info 1\n", r"no vllm:prefix_cache_queries_total on the page; start vLLM without"),
        ("sglang", 200, "python_info 1\n", r"no sglang: metric on the page; start SGLang with --enable-metrics"),
        ("vllm", 200, "vllm:num_requests_running 0\n", r"which has vllm:num_requests_running; is the page filtered"),
        ("sglang", 200, "sglang:num_running_reqs 3\n", r"no token counters \(sglang:num_running_reqs\); is the"),
    ],
)  # fmt: skip
def test_each_failure_of_metrics_has_its_own_next_step_and_the_address(
    server: respx.Router, engine: str, status: int, body: str, says: str
) -> None:
    server.get("/metrics").respond(status, text=body)
    with pytest.raises(MetricsError, match=says) as caught:
        ask(lambda client: client.scrape(), engine=engine)
    assert str(caught.value).startswith(f"{URL}/metrics: ")
    assert "\n" not in str(caught.value)


def test_server_of_another_kind_says_where_metrics_were_asked_for(server: respx.Router) -> None:
    server.route().respond(404, text="Not Found")
    with pytest.raises(ServerError, match=rf"{URL}/metrics says 404: Not Found"):
        ask(lambda client: client.facts(), engine="sglang")


@pytest.mark.parametrize("order", [("one", "two"), ("two", "one")])
def test_the_order_of_metrics_addresses_changes_neither_facts_nor_counters(
    server: respx.Router, order: tuple[str, ...]
) -> None:
    for host, block, family in (("one", 16, "prefix_cache"), ("two", 32, "gpu_prefix_cache")):
        info = f'vllm:cache_config_info{{block_size="{block}"}} 1\n'
        text = info + f"vllm:{family}_queries_total {1000 * block}\nvllm:{family}_hits_total {block}\n"
        server.get(f"http://{host}:9/metrics").respond(text=text)
    server.route().respond(404)
    urls = [f"http://{host}:9" for host in order]
    found = ask(lambda client: client.scrape(), metrics_urls=urls)
    assert lifetime(found) == (Tally(48_000, 48), "vllm:gpu_prefix_cache + vllm:prefix_cache")
    assert [part.address for part in found.parts] == ["http://one:9/metrics", "http://two:9/metrics"]
    assert ask(lambda client: client.facts(), metrics_urls=urls).block_tokens == 16


def test_version_of_one_replica_proves_nothing_of_another(server: respx.Router) -> None:
    """The server that was asked shows cached tokens with the first hit; the other one may never do."""
    server.get("/server_info").respond(json={"version": "0.5.5"})
    server.get("/metrics").respond(text="sglang:prompt_tokens_total 30\n")
    server.get("http://two:9/metrics").respond(text="sglang:prompt_tokens_total 30\n")
    server.route().respond(404)

    async def both(client: EngineClient) -> Counters:
        await client.facts()
        return await client.scrape()

    found = ask(both, engine="sglang", metrics_urls=[URL, "http://two:9"])
    assert [bool(part.lacks) for part in found.parts] == [False, True]


@pytest.mark.parametrize(
    ("listed", "page_model", "model"),
    [
        ({"models": ["tiny"]}, "tiny", "tiny"),
        ({"data": [{"id": "other"}, {"id": "tiny"}]}, "tiny", "tiny"),  # the one that is counted
        ({"data": [{"id": "house-chat"}]}, "org/Real-8B", "house-chat"),
        ({}, "tiny", "tiny"),
    ],
)
def test_the_model_asked_is_one_that_is_counted_where_it_is_listed(
    server: respx.Router, listed: dict[str, Any], page_model: str, model: str
) -> None:
    server.get("/v1/models").respond(json=listed)
    labels = f'{{model_name="{page_model}"}}'
    server.get("/metrics").respond(
        text=f"vllm:prefix_cache_queries_total{labels} 1\nvllm:prefix_cache_hits_total{labels} 0\n"
    )
    server.route().respond(404)
    assert ask(lambda client: client.facts()).model == model


# -- 200 is not answered ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("engine", "path", "body", "says"),
    [
        (
            "sglang",
            "/generate",
            {"meta_info": {"prompt_tokens": 97, "finish_reason": {"type": "abort", "message": "The queue is full."}}},
            "the request was aborted by the server: The queue is full.",
        ),
        (
            "vllm",
            "/v1/completions",
            {"choices": [{"text": "", "finish_reason": "abort"}], "usage": {"prompt_tokens": 97}},
            "the request was aborted by the server",
        ),
        (
            "vllm",
            "/v1/completions",
            {"choices": [{"text": "", "finish_reason": "error"}], "usage": {"prompt_tokens": 97}},
            r"the request was ended \(error\) by the server",
        ),
    ],
)
def test_request_that_the_server_gave_up_is_not_answered(
    server: respx.Router, engine: str, path: str, body: dict[str, Any], says: str
) -> None:
    server.post(path).respond(json=body)
    with pytest.raises(RequestAbortedError, match=says):
        ask(lambda client: client.complete(PROMPT), engine=engine)
    several = [body] if engine == "sglang" else body
    server.post(path).respond(json=several)
    with pytest.raises(RequestAbortedError, match=says):
        ask(lambda client: client.complete_together([PROMPT]), engine=engine)


@pytest.mark.parametrize("finish", ["length", "stop", None, "eos"])
def test_request_that_came_to_its_end_is_answered(server: respx.Router, finish: str | None) -> None:
    body = {"choices": [{"text": "", "finish_reason": finish}], "usage": {"prompt_tokens": 97}}
    server.post("/v1/completions").respond(json=body)
    completion = ask(lambda client: client.complete(PROMPT)).completion
    assert (completion.finish, completion.stopped) == (finish, finish == "stop")


# -- idle connections ------------------------------------------------------------------------------------------------


def test_a_get_that_meets_a_closed_connection_is_asked_again_and_a_post_is_not(server: respx.Router) -> None:
    page = httpx.Response(200, text="vllm:prefix_cache_queries_total 8\nvllm:prefix_cache_hits_total 0\n")
    route = server.get("/metrics").mock(side_effect=[httpx.ReadError("reset"), page])
    ask(lambda client: client.scrape())
    assert route.call_count == 2
    posted = server.post("/v1/completions").mock(side_effect=httpx.ReadError("reset"))
    with pytest.raises(UnreachableError):
        ask(lambda client: client.complete(PROMPT))
    assert posted.call_count == 1
