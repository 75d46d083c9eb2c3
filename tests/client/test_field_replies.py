"""Metrics that are somewhere else, or something else; requests that were given up; connections that were idle."""

from typing import Any

import httpx
import pytest
import respx
from client.callers import PROMPT, URL, ask, lifetime

from hitlab.client.counters import Counters
from hitlab.client.http import EngineClient, metrics_url
from hitlab.errors import MetricsError, RequestAbortedError, ServerError, UnreachableError
from hitlab.tokens import Tally

pytestmark = pytest.mark.usefixtures("server", "no_waiting")

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
