"""Addresses, the passwords in them, keys, and several addresses of replicas."""

import asyncio
import socket

import httpx
import pytest
import respx
from client.callers import URL, ask, lifetime

from hitlab.client.dialect import load_engine
from hitlab.client.http import EngineClient, Keys, root_url
from hitlab.errors import (
    KeyRefusedError,
    MetricsError,
    ServerError,
    UnreachableError,
    UsageError,
)
from hitlab.tokens import Tally

pytestmark = pytest.mark.usefixtures("server", "no_waiting")


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
        async with EngineClient(load_engine("vllm"), "http://user:p%40w1@engine:8000/v1") as client:
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
        async with EngineClient(load_engine("sglang"), "http://user:pw@engine:8000") as client:
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
        EngineClient(load_engine("vllm"), "http://user:pw@h", keys=Keys(api="A"))


def test_key_that_no_header_carries_is_not_printed_by_the_http_library() -> None:
    keys = Keys("sk-LEAK")
    object.__setattr__(keys, "api", "sk-LEAK\r")  # past the check of Keys, as if that had a hole

    async def run(url: str) -> str:
        async with EngineClient(load_engine("vllm"), url, keys=keys) as client:
            with pytest.raises(UnreachableError, match="can't be put into HTTP") as caught:
                await client.facts()
            return str(caught.value)

    with socket.create_server(("127.0.0.1", 0)) as listening, respx.mock() as router:
        router.route().pass_through()
        assert "LEAK" not in asyncio.run(run(f"http://127.0.0.1:{listening.getsockname()[1]}"))


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
