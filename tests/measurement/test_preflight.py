"""`preflight`: what a server is, said line by line, and what to do next; against emulated servers and odd ones."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import respx
from helpers import Hitlab

from hitlab.cache.sizes import CacheSizes
from hitlab.client.dialect import load_engine
from hitlab.client.http import EngineClient
from hitlab.measurement.preflight import Finding, measurable, preflight
from hitlab.servers.emulated import server as emulate
from hitlab.servers.emulated.config import Faults

URL = "http://engine:8000"
PAGE = (
    'vllm:cache_config_info{block_size="16",num_gpu_blocks="2048",enable_prefix_caching="True"} 1\n'
    "vllm:prefix_cache_queries_total 8\nvllm:prefix_cache_hits_total 0\n"
)


@pytest.fixture
def server() -> Iterator[respx.Router]:
    """A vLLM as good as any, but for what a test changes."""
    with respx.mock(base_url=URL, assert_all_called=False) as router:
        router.get("/version", name="version").respond(json={"version": "0.32.0"})
        router.get("/v1/models", name="models").respond(json={"data": [{"id": "m"}]})
        router.get("/metrics", name="metrics").respond(text=PAGE)
        router.options("/reset_prefix_cache", name="reset").respond(405)
        router.post("/v1/completions", name="completions").respond(
            json={"choices": [{"text": ""}], "usage": {"prompt_tokens": 8}}
        )
        yield router


def findings(engine: str = "vllm", **options: Any) -> dict[str, Finding]:
    async def run() -> list[Finding]:
        async with EngineClient(load_engine(engine), URL, **options) as client:
            return await preflight(client)

    return {finding.name: finding for finding in asyncio.run(run())}


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_measurable_server_ends_with_the_command_that_measures_it(hitlab: Hitlab, engine: str) -> None:
    with emulate.start(engine) as server:
        ran = hitlab("preflight", "--engine", engine, "--base-url", f"{server.base_url}/v1")
    assert ran.status == 0
    assert (
        ran.out.splitlines()[-1] == f"measurable; next: hitlab measure --engine {engine} --base-url {server.base_url}"
    )
    assert "FAIL" not in ran.out


def test_next_command_has_what_this_one_was_given(hitlab: Hitlab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USER_KEY", "sesame")
    with emulate.start("vllm", emulate.settings("vllm").but(api_key="sesame")) as server:
        url = server.base_url
        given = ("--base-url", url, "--metrics-url", url, "--api-key-env", "USER_KEY")
        ran = hitlab("preflight", "--engine", "vllm", *given)
    assert ran.out.splitlines()[-1].endswith(f" --base-url {url} --metrics-url {url}/metrics --api-key-env USER_KEY")
    assert "sesame" not in ran.out


def test_password_of_the_address_is_not_printed(hitlab: Hitlab) -> None:
    with emulate.start("vllm") as server:
        ran = hitlab("preflight", "--engine", "vllm", "--base-url", server.base_url.replace("//", "//user:sesame@"))
    assert ran.status == 0
    assert "sesame" not in ran.out + ran.err


def test_null_block_is_said_to_be_in_vllms_pool(hitlab: Hitlab) -> None:
    with emulate.start("vllm", emulate.settings("vllm", CacheSizes(capacity_blocks=2048))) as server:
        ran = hitlab("preflight", "--engine", "vllm", "--base-url", server.base_url)
    assert "pool: 32,752 tokens a rank, of 2,048 x 16: one block is the null block" in ran.out
    with emulate.start("sglang") as server:
        ran = hitlab("preflight", "--engine", "sglang", "--base-url", server.base_url)
    assert "null block" not in ran.out


def test_failures_are_counted_at_the_end_and_give_status_4(hitlab: Hitlab) -> None:
    config = emulate.settings("vllm").but(dev_mode=False, caching_on=False)
    with emulate.start("vllm", config, Faults(extra_bos=True)) as server:
        given = ("preflight", "--engine", "vllm", "--base-url", server.base_url)
        ran, as_json = hitlab(*given), hitlab(*given, "--json")
    failed = sum(line.startswith("FAIL") for line in ran.out.splitlines())
    assert (ran.status, ran.out.splitlines()[-1]) == (4, f"not measurable: {failed} findings")
    assert "8 token ids sent, 9 counted" in ran.out
    document = json.loads(as_json.out)
    assert (as_json.status, document["measurable"]) == (4, False)
    assert sum(finding["ok"] is False for finding in document["findings"]) == failed


@pytest.mark.parametrize(("engine", "other"), [("vllm", "sglang"), ("sglang", "vllm")])
def test_server_of_the_other_engine_is_recognised_by_its_metrics(hitlab: Hitlab, engine: str, other: str) -> None:
    with emulate.start(other) as server:
        ran = hitlab("preflight", "--engine", engine, "--base-url", server.base_url)
    assert ran.status == 4
    assert f"FAIL metrics: the page has {other}: metrics; did you mean --engine {other}?" in ran.out


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b'{"error": {"message": "model overloaded"}}', "an answer without a completion: model overloaded"),
        (b"<html>login</html>", "<html>login</html>"),
        (b"", "an empty body"),
        (b'{"choices": [{}], "usage": {"prompt_tokens": null}}', "prompt_tokens"),
    ],
)
def test_200_that_is_no_completion_is_no_accepted_prompt(server: respx.Router, body: bytes, says: str) -> None:
    server["completions"].respond(content=body)
    finding = findings()["prompt accepted"]
    assert finding.ok is False
    assert says in finding.detail
    assert "None" not in finding.detail


@pytest.mark.parametrize(
    ("route", "status", "name"),
    [("version", 401, "key accepted"), ("reset", 401, "reset allowed"), ("completions", 401, "prompt accepted")],
)
def test_refusal_halfway_is_a_finding_not_the_end(
    server: respx.Router, monkeypatch: pytest.MonkeyPatch, route: str, status: int, name: str
) -> None:
    monkeypatch.setattr("hitlab.client.counters.SETTLE_S", 0.1)
    server[route].respond(status)
    found = findings()
    assert found[name].ok is False
    assert "--api-key-env" in found[name].detail
    assert not measurable(list(found.values()))


def test_counters_that_go_away_halfway_are_a_finding(server: respx.Router) -> None:
    pages = iter([PAGE, PAGE])
    server["metrics"].side_effect = lambda request: httpx.Response(200, text=next(pages, "<html>"))
    assert findings()["counters"].ok is False


def test_server_of_another_kind_is_a_finding(server: respx.Router) -> None:
    for route in ("version", "models", "metrics"):
        server[route].respond(200, html="<html>login</html>")
    (finding,) = findings().values()
    assert (finding.name, finding.ok) == ("answers as vLLM does", False)
    assert "<html>login" in finding.detail
