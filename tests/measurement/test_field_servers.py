"""Runs and watches of servers as they are met in the field, and how often a run reads the counters."""

import asyncio
import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from client.field_pages import page
from helpers import Hitlab, Ran

from hitlab.client.counters import Counters, Part, Tiers
from hitlab.client.dialect import HttpRequest, Reply, load_engine
from hitlab.client.http import EngineClient
from hitlab.errors import MetricsError
from hitlab.experiment.plan import Experiment
from hitlab.experiment.shape import SharedPrefix
from hitlab.measurement import watch
from hitlab.measurement.asked import Asked
from hitlab.measurement.prepare import no_rate
from hitlab.measurement.run import Unwatched, prepare_run
from hitlab.measurement.watch import Interval, Meter, intervals
from hitlab.results.run_result import Result
from hitlab.servers.emulated import server as emulate
from hitlab.servers.emulated.server import EmulatedServer
from hitlab.tokens import Tally

EXPERIMENT = Experiment(shape=SharedPrefix(requests=64, prefix_tokens=1000, suffix_tokens=200))


def measured(client: EngineClient) -> Result:
    async def run() -> Result:
        async with client:
            run = await prepare_run(client, Asked(), EXPERIMENT)
            await run.walk(Unwatched())
            return run.result()

    return asyncio.run(run())


def checks(result: Result) -> dict[str, str]:
    """The checks that failed."""
    return {check.name: check.detail for check in result.checks if not check.ok}


# -- how often counters are read ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("engine", "hit"), [("vllm", 62_496), ("sglang", 63_000)])
def test_a_run_of_two_phases_reads_the_counters_seven_times(engine: str, hit: int) -> None:
    """When the server is asked, around the prompt that tries the reset, at the first cold request, at the end of each
    phase, and once more when all is over."""
    with emulate.start(engine) as server:
        result = measured(EngineClient(load_engine(engine), server.base_url))
        scrapes = sum(count for (_, path, _), count in server.engine.sent.items() if path == "/metrics")
    assert (scrapes, result.valid, result.agrees) == (7, True, True)
    assert sum(phase.hit_tokens for phase in result.phases) == hit


# -- 200 is not answered -----------------------------------------------------------------------------------------


class Aborting(EngineClient):
    """A client whose server gives up one of the completions, with status 200."""

    def __init__(self, server: EmulatedServer, number: int) -> None:
        super().__init__(load_engine("sglang"), server.base_url)
        self._number, self.posts, self.scrapes_after = number, 0, 0

    async def call(self, request: HttpRequest, key: str | None = None, key_option: str = "") -> Reply:
        if request.path == "/generate":
            self.posts += 1
            if self.posts == self._number:
                finish = {"type": "abort", "message": "The request queue is full."}
                meta = {"prompt_tokens": len(request.json["input_ids"]), "cached_tokens": 0, "finish_reason": finish}
                return Reply(200, msgspec.json.encode({"meta_info": meta}))
        return await super().call(request, key, key_option)

    async def scrape(self) -> Counters:
        self.scrapes_after += self.posts >= self._number
        return await super().scrape()


def test_an_aborted_request_ends_the_run_at_once_and_in_the_servers_words() -> None:
    with emulate.start("sglang") as server:
        client = Aborting(server, number=7)  # two that try the reset, one cold, and the fourth of warm
        result = measured(client)
    assert checks(result)["every request answered"] == (
        "request 4 of warm was aborted by the server: The request queue is full."
    )
    assert (client.posts, client.scrapes_after) == (7, 0)
    assert not result.complete


# -- counters that can give no rate ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ([Part({"c": Tally(100, 50)})], ""),
        ([Part(halves={"c": 100}, lacks="not counted by this version")], "not counted by this version"),
        ([Part(halves={"c": 100}, lacks="none was found yet", never=False)], ""),
        ([Part({"c": Tally(9, 5)}, model="a"), Part({"c": Tally(9, 5)}, model="b")], "counters of 2 models: a, b"),
        ([Part({"c": Tally(9, 5)}, role="prefill"), Part({"c": Tally(9, 5)}, role="decode")], "counters of 2 roles"),
        ([Part({"c": Tally(9, 5)}, place="pod=a"), Part({"c": Tally(9, 5)}, place="pod=b")], ""),
        ([Part({"c": Tally(100, 150)})], "150 cached of 100 prompt tokens: these counters contradict each other"),
    ],
)
def test_what_can_give_no_rate_is_not_measured(parts: list[Part], says: str) -> None:
    error = no_rate(Counters(tuple(parts)))
    assert (str(error.what) if error else "").startswith(says)
    assert bool(error) == bool(says)
    assert error is None or error.todo


def test_run_whose_hits_never_came_is_not_valid() -> None:
    """A page that shows no cached tokens may have none yet, or may never have any: the run's end tells."""

    class Filtered(EngineClient):
        async def scrape(self) -> Counters:
            return self.read_counters({})

        def read_counters(self, pages: object) -> Counters:
            sent = server.engine.scheduler.scrape()[0].answered_prompt_tokens
            part = Part(halves={"c": sent}, lacks="none was found yet, or never will be", never=False)
            return Counters((part,), raw={"c": sent})

    with emulate.start("sglang") as server:
        result = measured(Filtered(load_engine("sglang"), server.base_url))
    assert "none was found yet" in checks(result)["counters readable"]
    assert [phase.hit_rate for phase in result.phases] == [None, None]


# -- watching ----------------------------------------------------------------------------------------------------


def one_interval(before: list[Part], after: list[Part]) -> tuple[Meter, Interval]:
    meter = Meter(Counters(tuple(before)), 0.0)
    return meter, meter.read(Counters(tuple(after)), 2.0, "t")


def test_unknown_hits_are_none_in_an_interval_and_never_0() -> None:
    half = Part(halves={"c": 1000}, lacks="not counted by this version")
    _, interval = one_interval([half], [replace(half, halves={"c": 1400})])
    assert (interval.queried_tokens, interval.hit_tokens, interval.hit_rate) == (400, None, None)
    assert (interval.queried_tokens_per_s, interval.computed_tokens_per_s) == (200.0, None)
    assert interval.detail == "not counted by this version"


def test_two_models_are_two_rows_without_a_rate_together() -> None:
    before = [Part({"c": Tally(1000, 800)}, model="chat"), Part({"c": Tally(1000, 0)}, model="code")]
    after = [Part({"c": Tally(2000, 1600)}, model="chat"), Part({"c": Tally(10_000, 0)}, model="code")]
    meter, interval = one_interval(before, after)
    assert [(row.label, row.hit_rate, row.queried_tokens) for row in interval.rows] == [
        ("chat", 0.8, 1000),
        ("code", 0.0, 9000),
    ]
    assert (interval.hit_rate, interval.hit_tokens, interval.queried_tokens) == (None, None, None)
    assert interval.detail == meter.mixed == "counters of 2 models: chat, code"


def test_replicas_of_one_model_are_rows_with_a_rate_together() -> None:
    before = [Part({"new": Tally(2000, 600)}, address="http://a"), Part({"old": Tally(4000, 3200)}, address="http://b")]
    after = [Part({"new": Tally(3000, 700)}, address="http://a"), Part({"old": Tally(7000, 5900)}, address="http://b")]
    _, interval = one_interval(before, after)
    assert [(row.label, row.hit_rate) for row in interval.rows] == [("a", 0.1), ("b", 0.9)]
    assert (interval.hit_rate, interval.hit_tokens, interval.queried_tokens) == (0.7, 2800, 4000)


def test_tiers_have_fields_of_their_own() -> None:
    before = Part({"c": Tally(0, 0)}, external=Tally(0, 0), tiers={"c": Tiers(local=0, external=0)})
    after = Part({"c": Tally(10_000, 0)}, external=Tally(10_000, 9000), tiers={"c": Tiers(local=0, external=9000)})
    _, interval = one_interval([before], [after])
    assert (interval.hit_rate, interval.overall_hit_rate) == (0.0, 0.9)
    assert (interval.local_hit_tokens, interval.external_hit_tokens, interval.computed_tokens) == (0, 9000, 1000)
    assert (interval.host_hit_tokens, interval.storage_hit_tokens) == (None, None)
    assert interval.computed_tokens_per_s == 500.0


def test_contradiction_is_a_sentence_and_no_rate() -> None:
    meter, interval = one_interval([Part({"c": Tally(0, 0)})], [Part({"c": Tally(1500, 2800)})])
    assert (interval.hit_rate, interval.computed_tokens_per_s) == (None, None)
    assert interval.detail == "2,800 cached of 1,500 prompt tokens: these counters contradict each other"
    assert meter.total.hit_rate is None


@pytest.mark.parametrize(("took_s", "said"), [(0.9, ""), (4.2, "took 4.2 s, longer than the interval of 1 s")])
def test_a_reading_slower_than_the_interval_is_said(monkeypatch: pytest.MonkeyPatch, took_s: float, said: str) -> None:
    """By a clock that only the readings and the pauses move."""
    now_s = 0.0

    async def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    monkeypatch.setattr(watch, "time", SimpleNamespace(monotonic=lambda: now_s))
    monkeypatch.setattr(watch, "asyncio", SimpleNamespace(sleep=sleep))
    scrapes: Iterator[int] = itertools.count(1)

    class Slow:
        async def scrape(self) -> Counters:
            nonlocal now_s
            now_s += took_s
            return Counters((Part({"c": Tally(100 * next(scrapes), 0)}),))

    async def collect() -> list[Interval]:
        meter = Meter(Counters((Part({"c": Tally(0, 0)}),)), 0.0)
        slow: Any = Slow()
        return [each async for each in intervals(slow, meter, 1.0, 2)]

    found = asyncio.run(collect())
    assert [each.queried_tokens for each in found] == [100, 100]
    assert all(each.detail.endswith(said) and bool(each.detail) == bool(said) for each in found)


def test_watch_of_a_page_without_counters_is_refused() -> None:
    with emulate.start("sglang", emulate.settings("sglang").but(metrics_on=False)) as server:

        async def begin() -> None:
            async with EngineClient(load_engine("sglang"), server.base_url) as client:
                await watch.begin(client)

        with pytest.raises(MetricsError, match=f"{server.base_url}/metrics"):
            asyncio.run(begin())


# -- the whole command, on pages of the field --------------------------------------------------------------------


class Serving:
    """A server that has nothing but a metrics page of the field, which moves on with each scrape."""

    def __init__(self, name: str, path: str = "/metrics", version: str | None = None) -> None:
        scrapes = itertools.count()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = {path: lambda: page(name, next(scrapes))}
                if version:
                    body |= {"/get_server_info": lambda: f'{{"version": "{version}"}}'}
                text = body[self.path]() if self.path in body else ""
                self.send_response(200 if text else 404)
                self.send_header("content-length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *words: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = Thread(target=self._server.serve_forever)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> str:
        self._thread.start()
        return self.url

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def watched(hitlab: Hitlab, engine: str, url: str, *more: object) -> Ran:
    return hitlab("watch", "--engine", engine, "--base-url", url, "--interval", 0.01, "--count", 2, *more)


def test_watch_of_a_version_without_cached_tokens_shows_no_rate_and_says_why(hitlab: Hitlab) -> None:
    with Serving("N01", version="0.4.3.post2") as url:
        ran = watched(hitlab, "sglang", url)
    assert ran.status == 0
    assert "cached tokens are not counted by this version (0.4.3.post2); only the gauge cache_hit_rate 0.81" in ran.out
    assert "160,000 prompt tokens, hit rate unknown" in ran.out
    assert "0.000 %" not in ran.out


def test_watch_of_contradicting_counters_shows_no_rate(hitlab: Hitlab) -> None:
    with Serving("N02", version="0.5.12") as url:
        ran, as_json = watched(hitlab, "sglang", url), watched(hitlab, "sglang", url, "--json")
    assert "2,800 cached of 1,500 prompt tokens: these counters contradict each other" in ran.out
    assert "█" not in ran.out and "186.667" not in ran.out
    lines = [json.loads(line) for line in as_json.out.splitlines()]
    assert [(each["hit_rate"], each["computed_tokens_per_s"]) for each in lines] == [(None, None)] * 2


@pytest.mark.parametrize("live", [False, True])
def test_watch_of_two_models_has_a_row_for_each(hitlab: Hitlab, monkeypatch: pytest.MonkeyPatch, live: bool) -> None:
    if live:
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("LINES", "40")
    with Serving("N09") as url:
        ran = watched(hitlab, "vllm", url)
    assert "chat-32b: 1,600 of 2,000 prompt tokens hit (80.000 %)" in ran.out
    assert "code-7b: 0 of 18,000 prompt tokens hit (0.000 %)" in ran.out
    assert "8.000 %" not in ran.out
    assert ran.out.count("80.000 %") >= 3


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_watch_of_two_versions_has_one_rate_whichever_is_named_first(hitlab: Hitlab, order: tuple[int, int]) -> None:
    with Serving("N05a") as one, Serving("N05b") as two:
        urls = [(one, two)[place] for place in order]
        ran = watched(hitlab, "vllm", one, *(word for url in urls for word in ("--metrics-url", url)))
    assert "5,600 of 8,000 prompt tokens hit (70.000 %)" in ran.out


def test_watch_of_a_connector_says_what_each_tier_found(hitlab: Hitlab) -> None:
    with Serving("N15") as url:
        ran = watched(hitlab, "vllm", url)
    assert ran.out.count("local 0, external 9,000: 90.000 % in all, 1,000 computed") == 2
    assert "0 of 20,000 prompt tokens hit (0.000 %), 90.000 % with external hits" in ran.out


def test_watch_takes_a_metrics_address_with_a_path_as_it_is(hitlab: Hitlab) -> None:
    with Serving("N09", path="/engine_metrics") as url:
        ran = watched(hitlab, "vllm", url, "--metrics-url", f"{url}/engine_metrics")
        lost = watched(hitlab, "vllm", url)
    assert "chat-32b: 1,600 of 2,000" in ran.out
    assert (lost.status, lost.err.count("\n")) == (1, 1)
    assert f"{url}/metrics says 404" in lost.err


@pytest.mark.parametrize(
    ("engine", "name", "says"),
    [
        ("sglang", "N11", "this page has no token counters (a gauge cache_hit_rate 0.62)"),
        ("vllm", "N12", "has a gauge (gpu_prefix_cache_hit_rate 0.64) and no counters; upgrade vLLM, or read"),
    ],
)  # fmt: skip
def test_pages_of_gauges_are_no_ok_and_never_watched(hitlab: Hitlab, engine: str, name: str, says: str) -> None:
    with Serving(name) as url:
        ran, before = watched(hitlab, engine, url), hitlab("preflight", "--engine", engine, "--base-url", url)
    assert (ran.status, before.status) == (1, 4)
    assert says in ran.err
    assert f"FAIL metrics: {url}/metrics:" in before.out and says in before.out
