"""`watch`: interval rates from counter deltas, on real sockets; restarts, failures and Ctrl-C do not end it badly."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from helpers import Hitlab
from hypothesis import given
from hypothesis import strategies as st

from hitlab.client.counters import Counters
from hitlab.client.dialect import load_engine
from hitlab.client.http import EngineClient
from hitlab.measurement.watch import Meter, ceiling
from hitlab.servers.emulated import server as emulate
from hitlab.servers.emulated.config import Faults
from hitlab.servers.emulated.server import EmulatedServer
from hitlab.tokens import Prompt, Tally


def reading(queried: int, hit: int, evicted: int | None = None, preemptions: int = 0) -> Counters:
    raw = {"queries": float(queried), "hits": float(hit)}
    return Counters({"pair": Tally(queried, hit)}, evicted_tokens=evicted, preemptions=preemptions, raw=raw)


def test_interval_is_the_difference_and_not_the_lifetime() -> None:
    meter = Meter(reading(1_000_000, 0, evicted=500), 10.0)
    interval = meter.read(reading(1_001_200, 992, evicted=516), 14.0, "t")
    assert (interval.queried_tokens, interval.hit_tokens, interval.evicted_tokens) == (1200, 992, 16)
    assert interval.hit_rate == 992 / 1200
    assert (interval.queried_tokens_per_s, interval.computed_tokens_per_s) == (300.0, 52.0)


def test_idle_interval_has_no_rate() -> None:
    assert Meter(reading(5, 5), 0.0).read(reading(5, 5), 1.0, "t").hit_rate is None


def test_eviction_counter_that_appears_late_counts_from_nothing() -> None:
    assert Meter(reading(5, 5), 0.0).read(reading(6, 5, evicted=7), 1.0, "t").evicted_tokens == 7
    assert Meter(reading(5, 5), 0.0).read(reading(6, 5), 1.0, "t").evicted_tokens is None


def test_restart_is_no_interval_and_the_next_one_counts_from_it() -> None:
    meter = Meter(reading(1000, 900), 0.0)
    assert meter.read(reading(100, 50), 1.0, "t").kind == "restart"
    assert meter.read(reading(200, 150), 2.0, "t").hit_tokens == 100
    assert (meter.tally, meter.restarts) == (Tally(100, 100), 1)


def test_restart_of_one_of_two_servers_shows_under_its_own_address() -> None:
    """Both name their series alike, and the sum grows: only the keys with addresses tell."""

    def both(first: int, second: int) -> Counters:
        parts = [
            Counters({"pair": Tally(count, 0)}, raw={f"http://{host}:8000/metrics queries": float(count)})
            for host, count in (("a", first), ("b", second))
        ]
        return parts[0] + parts[1]

    meter = Meter(both(1000, 1000), 0.0)
    assert meter.read(both(5000, 1100), 1.0, "t").queried_tokens == 4100
    interval = meter.read(both(100, 9000), 2.0, "t")
    assert (interval.kind, interval.detail) == ("restart", "http://a:8000/metrics queries fell")


def test_interval_after_a_missed_reading_covers_both() -> None:
    meter = Meter(reading(0, 0), 0.0)
    assert meter.missed("down", 2.0, "t").detail == "down"
    interval = meter.read(reading(400, 100), 4.0, "t")
    assert (interval.seconds, interval.queried_tokens_per_s) == (4.0, 100.0)


@given(st.lists(st.tuples(st.integers(0, 999), st.integers(0, 999)), max_size=20))
def test_intervals_add_up_to_the_whole_watch(steps: list[tuple[int, int]]) -> None:
    meter, queried, hit = Meter(reading(7, 3), 0.0), 7, 3
    shown = Tally(0, 0)
    for number, (new, cached) in enumerate(steps, 1):
        queried, hit = queried + new + cached, hit + cached
        interval = meter.read(reading(queried, hit), float(number), "t")
        shown += Tally(interval.queried_tokens, interval.hit_tokens)
    assert shown == meter.tally == Tally(queried - 7, hit - 3)


def test_ceiling_is_the_closed_form_of_a_warm_request() -> None:
    assert ceiling(1000, 200, 16) == Tally(1200, 992)
    assert ceiling(1024, 0, 32) == Tally(1024, 992)
    assert ceiling(12, 500, 16).hit_tokens == 0


class Watching:
    """A `watch --json` in a process of its own, read line by line."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process

    def until(self, wanted: str, **sums: int) -> list[dict[str, Any]]:
        """Read on until a line of that kind has been seen and the sums of all lines are reached."""
        lines: list[dict[str, Any]] = []
        assert self.process.stdout
        for line in self.process.stdout:
            lines.append(json.loads(line))
            reached = all(sum(each[name] for each in lines) >= total for name, total in sums.items())
            if reached and any(each["kind"] == wanted for each in lines):
                return lines
        raise AssertionError(f"watch ended: {lines}")

    def interrupt(self) -> str:
        """Ctrl-C; what was still to be said."""
        os.kill(self.process.pid, signal.SIGINT)
        _, error = self.process.communicate(timeout=30)
        return error


@contextmanager
def watching(root: Path, engine: str, base_url: str, *arguments: str) -> Iterator[Watching]:
    """Watch a server; the block begins when the first reading was taken."""
    command = [sys.executable, "run.py", "watch", "--engine", engine, "--base-url", base_url, "--interval", "0.05"]
    process = subprocess.Popen(
        [*command, "--json", *arguments], cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        watch = Watching(process)
        watch.until("interval")
        yield watch
    finally:
        process.kill()
        process.communicate()


def send(engine: str, server: EmulatedServer, prompts: int) -> None:
    """So many prompts that share 1,000 tokens and have 200 of their own."""

    async def all_of_them() -> None:
        async with EngineClient(load_engine(engine), server.base_url) as client:
            for number in range(prompts):
                await client.complete(Prompt((*range(1000, 2000), *range(3000 + number, 3200 + number))))

    asyncio.run(all_of_them())


@pytest.mark.parametrize(("engine", "hit"), [("vllm", 992), ("sglang", 1000)])
def test_intervals_sum_to_what_was_sent_and_ctrl_c_ends_with_a_summary(root: Path, engine: str, hit: int) -> None:
    with emulate.start(engine) as server, watching(root, engine, server.base_url) as watch:
        posts = sum(count for (method, _, _), count in server.engine.sent.items() if method == "POST")
        send(engine, server, 5)
        lines = watch.until("interval", queried_tokens=6000)
        error = watch.interrupt()
    assert posts == 0  # watching sends no prompt
    assert (sum(each["queried_tokens"] for each in lines), sum(each["hit_tokens"] for each in lines)) == (6000, 4 * hit)
    assert watch.process.returncode == 0
    assert f"{4 * hit:,} of 6,000 prompt tokens hit" in error
    assert "Traceback" not in error


def test_restart_is_said_and_watching_goes_on(root: Path) -> None:
    with (
        emulate.start("vllm", faults=Faults(restart_after=5)) as server,
        watching(root, "vllm", server.base_url) as watch,
    ):
        send("vllm", server, 3)
        watch.until("interval", queried_tokens=3600)
        send("vllm", server, 2)
        lines = watch.until("restart")
        assert "fell" in lines[-1]["detail"] or "anew" in lines[-1]["detail"]
        send("vllm", server, 2)
        lines = watch.until("interval", queried_tokens=2400)
        assert "restarts: 1" in watch.interrupt()
    assert sum(each["hit_tokens"] for each in lines) == 992  # the first one is cold again


def test_server_that_goes_away_is_said_and_may_come_back(root: Path) -> None:
    with emulate.start("sglang") as server:
        port = int(server.base_url.rpartition(":")[2])
        with watching(root, "sglang", server.base_url) as watch:
            server.stop()
            assert "/metrics" in watch.until("missed")[-1]["detail"]
            with emulate.start("sglang", port=port) as back:
                watch.until("interval")
                send("sglang", back, 2)
                watch.until("interval", queried_tokens=2400)
                assert "failed readings" in watch.interrupt()
    assert watch.process.returncode == 0


def test_lines_for_a_pipe_show_the_ceiling_and_end_by_count(hitlab: Hitlab) -> None:
    with emulate.start("vllm") as server:
        ran = hitlab(
            *("watch", "--engine", "vllm", "--base-url", server.base_url, "--interval", 0.01, "--count", 3),
            *("--prefix-len", 1000, "--suffix-len", 200),
        )
    assert ran.status == 0
    assert "ceiling 82.667 %: 992 of 1,200 tokens of a warm request" in ran.out
    assert "EMULATED vLLM" in ran.out
    assert "3 intervals" in ran.out
    assert max(map(len, ran.out.splitlines())) <= 80


def test_live_view_fits_eighty_columns(hitlab: Hitlab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("LINES", "24")
    with emulate.start("sglang") as server:
        send("sglang", server, 2)
        ran = hitlab("watch", "--engine", "sglang", "--base-url", server.base_url, "--interval", 0.01, "--count", 40)
    assert "hit rate" in ran.out
    assert "40 intervals" in ran.out
    assert "…" not in ran.out


@pytest.mark.parametrize(
    ("engine", "columns", "headings"),
    [
        ("sglang", 60, ["time", "hit rate", "hit tokens", "of prompt", "tokens/s"]),
        ("sglang", 44, ["time", "hit rate", "hit tokens", "of prompt"]),
        ("vllm", 100, ["time", "hit rate", "0 to 100 %", "hit tokens", "of prompt", "tokens/s"]),
    ],
)
def test_narrow_live_view_gives_up_columns_and_never_part_of_a_number(
    hitlab: Hitlab, monkeypatch: pytest.MonkeyPatch, engine: str, columns: int, headings: list[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(columns))
    with emulate.start(engine) as server:
        send(engine, server, 2)
        ran = hitlab("watch", "--engine", engine, "--base-url", server.base_url, "--interval", 0.01, "--count", 3)
    heading = next(line for line in reversed(ran.out.splitlines()) if "hit rate" in line)
    assert re.split(r"  +", heading.strip()) == headings
    assert "…" not in ran.out
    assert re.search(r"^ \d\d:\d\d:\d\d ", ran.out, re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["--interval", 0], 2, "more than 0"),
        (["--interval", "nan"], 2, "more than 0"),
        (["--interval", "inf"], 2, "more than 0"),
        (["--prefix-len", 9], 2, "both --prefix-len and --suffix-len"),
        (["--prefix-len", 0, "--suffix-len", 0], 2, "a prompt of no tokens"),
    ],
)
def test_what_can_not_be_watched_is_one_line(hitlab: Hitlab, arguments: list[Any], status: int, says: str) -> None:
    with emulate.start("vllm") as server:
        ran = hitlab("watch", "--engine", "vllm", "--base-url", server.base_url, "--count", 1, *arguments)
    assert (ran.status, ran.err.count("\n")) == (status, 1)
    assert says in ran.err


def test_server_without_counters_can_not_be_watched(hitlab: Hitlab) -> None:
    with emulate.start("sglang", emulate.settings("sglang").but(metrics_on=False)) as server:
        ran = hitlab("watch", "--engine", "sglang", "--base-url", server.base_url)
    assert ran.status == 1
    assert "--enable-metrics" in ran.err
