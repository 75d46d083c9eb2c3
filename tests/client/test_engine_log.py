"""Lines of engines' logs: real ones, and what they add up to; `log`, and `measure --log`."""

import asyncio
import gzip
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard
from helpers import Hitlab
from hypothesis import given
from hypothesis import strategies as st

from hitlab.client.counters import Counters
from hitlab.client.dialect import LogEntry, load_engine
from hitlab.client.engine_log import LogCounters, LogReading, read_log
from hitlab.client.log_interval import Between
from hitlab.errors import HitlabError, InputError, MetricsError, UsageError
from hitlab.servers.emulated import server as emulate
from hitlab.servers.emulated.server import EmulatedServer
from hitlab.tokens import NOTHING, Tally

SGLANG, VLLM = load_engine("sglang"), load_engine("vllm")

# As the versions print them; what follows the two token fields changed most often.
SGLANG_LINES = [
    ("[2024-11-29 10:28:29 TP0] Prefill batch. #new-seq: 2, #new-token: 2048, #cached-token: 888, "
     "cache hit rate: 0.00%, token usage: 0.11, #running-req: 69, #queue-req: 130", None, "TP0"),
    ("[2026-11-29 21:34:19] Prefill batch, #new-seq: 2, #new-token: 2048, #cached-token: 888, "
     "token usage: 0.00, #running-req: 0, #queue-req: 0, ", None, ""),
    ("[2025-07-01 08:00:00 DP3 TP3 EP3] Prefill batch. #new-seq: 2, #new-token: 2048, #cached-token: 888",
     3, "TP3 EP3"),
    ("[2026-11-29 21:43:23 DP1] Prefill batch, #new-seq: 2, #new-token: 2048, #cached-token: 888, token usage: 0.00, "
     "#running-req: 0, #queue-req: 0, #pending-token: 0, cpu graph: False, input throughput (token/s): 2.27", 1, ""),
    ("[2026-01-04 04:31:24.123 TP0] Prefill batch [17], #new-seq: 2, #new-token: 2048, #cached-token: 888, "
     "full token usage: 0.14, mamba usage: 0.20, #running-req: 1", None, "TP0"),
    ("scheduler-0  | 2026-01-04T04:31:24Z [2026-01-04 04:31:24] Prefill batch, #new-seq: 2, #new-token: 2048, "
     "#cached-token: 888,", None, ""),
]  # fmt: skip


@pytest.mark.parametrize(("line", "rank", "replica"), SGLANG_LINES)
def test_prefill_batches_of_every_version_are_read(line: str, rank: int | None, replica: str) -> None:
    entry = SGLANG.read_log_line(line)
    assert entry is not None and entry.moment is not None
    assert (entry.tally, entry.rank, entry.replica) == (Tally(2936, 888), rank, replica)
    assert len(entry.moment) == 6


@pytest.mark.parametrize(
    "line",
    [
        "",
        "[2026-11-29 21:26:56] Decode batch, #running-req: 1, #token: 373, token usage: 0.00, #queue-req: 0",
        "[2026-05-28 02:59:50 TP0] Prefill batch, #new-seq: 1, #new-token: 896, #cached-tounning-req: 0",
        'INFO: 10.0.0.1:5 - "POST /generate HTTP/1.1" 200 OK',
    ],
)
def test_other_lines_and_cut_ones_say_nothing(line: str) -> None:
    assert SGLANG.read_log_line(line) is None
    assert VLLM.read_log_line(line) is None


VLLM_LINES = [
    ("(APIServer pid=3646) INFO 05-19 10:13:11 [loggers.py:271] Engine 001: Avg prompt throughput: 0.0 tokens/s, "
     "GPU KV cache usage: 95.9%, Prefix cache hit rate: 82.7%", 1, 0.827),
    ("INFO 05-19 10:13:11 [loggers.py:335] Engine 000: Running: 1 reqs, CPU KV cache usage: 0.8%, "
     "Prefix cache hit rate: 91.1%, External prefix cache hit rate: 1.2%", 0, 0.911),
    ("INFO 05-19 10:13:11 [loggers.py:259] 2 Engines Aggregated: Prefix cache hit rate: 0.0%, MFU: 1.7 TF/s/GPU",
     None, 0.0),
    ("INFO 05-19 10:13:11 [metrics.py:502] Prefix cache hit rate: GPU: 0.00%, CPU: 90.00%", None, 0.9),
    ("INFO 05-19 10:13:11 metrics.py:467] Prefix cache hit rate: GPU: 45.67%, CPU: 0.00%", None, 0.4567),
]  # fmt: skip


@pytest.mark.parametrize(("line", "rank", "rate"), VLLM_LINES)
def test_window_lines_of_every_version_are_read(line: str, rank: int | None, rate: float) -> None:
    assert VLLM.read_log_line(line) == LogEntry((5, 19, 10, 13, 11), rank, window_hit_rate=rate)


def test_external_rate_alone_is_not_the_caches() -> None:
    assert VLLM.read_log_line("INFO 05-19 10:13:11 [x] Engine 000: External prefix cache hit rate: 50.0%") is None


@pytest.fixture
def excerpts(data: Path) -> Path:
    """A real SGLang's log: warm-ups, one POST of 64 prompts at 21:14, 0.5.5, two ranks."""
    return data / "golden/sglang/log_excerpts.txt"


def test_real_batch_of_64_prompts_adds_up_to_what_its_server_counted(excerpts: Path) -> None:
    between = Between.parse("21:14", "21:14:59")
    reading = read_log(excerpts.read_text().splitlines(), SGLANG.read_log_line, between)
    assert reading.tally == Tally(64 * 1200, 60_000)  # 78.125 %, as the counters of that run said
    assert len(reading.entries) == 5


def test_each_rank_has_its_own_sum(excerpts: Path) -> None:
    reading = read_log(excerpts.read_text().splitlines(), SGLANG.read_log_line)
    assert [(each.rank, each.entries, each.tally) for each in reading.ranks()[:-1]] == [
        (0, 1, Tally(3, 0)),
        (1, 1, Tally(3, 0)),
    ]
    assert reading.ranks()[-1].entries == 13


def test_tensor_ranks_repeat_each_other_and_data_parallel_ranks_do_not() -> None:
    lines = [
        f"[2026-11-29 21:00:00 DP{dp} TP{tp}] Prefill batch, #new-seq: 1, #new-token: 60, #cached-token: 40,"
        for dp in range(2)
        for tp in range(4)
    ]
    assert read_log(lines, SGLANG.read_log_line).tally == Tally(200, 80)


def test_windows_of_several_ranks_make_no_common_rate() -> None:
    lines = [f"INFO 11-29 21:00:0{n} [x] Engine 00{n % 2}: Prefix cache hit rate: {n}0.0%" for n in range(4)]
    first, second, everything = read_log(lines, VLLM.read_log_line).ranks()
    assert (first.last_window_hit_rate, first.min_window_hit_rate, first.max_window_hit_rate) == (0.2, 0.0, 0.2)
    assert (second.last_window_hit_rate, second.tally) == (0.3, None)
    assert everything.last_window_hit_rate is None


MOMENTS = st.tuples(
    st.integers(2020, 2030), st.integers(1, 12), st.integers(1, 28), st.integers(0, 23), st.integers(0, 59),
    st.integers(0, 59),
)  # fmt: skip


@given(MOMENTS, MOMENTS, MOMENTS)
def test_full_moments_lie_between_as_their_tuples_do(
    since: tuple[int, ...], until: tuple[int, ...], moment: tuple[int, ...]
) -> None:
    assert (moment in Between(since, until)) == (since <= moment <= until)
    assert (moment in Between(since)) == (since <= moment)


@given(st.lists(st.tuples(MOMENTS, st.integers(0, 99), st.integers(0, 99)), max_size=20), MOMENTS)
def test_two_halves_of_a_log_add_up_to_the_whole(
    batches: list[tuple[tuple[int, ...], int, int]], cut: tuple[int, ...]
) -> None:
    whole, before, after = LogReading(), LogReading(Between(until=cut)), LogReading(Between(since=cut))
    for moment, new, cached in batches:
        entry = LogEntry(moment, tally=Tally(new + cached, cached))
        whole.add(entry)
        before.add(entry)
        if moment != cut:
            after.add(entry)
    assert before.tally + after.tally == whole.tally


@pytest.mark.parametrize(
    ("since", "until", "inside"),
    [
        ("21:14", None, True),
        ("21:14:37", None, False),
        (None, "21:14", True),
        (None, "21:14:35", False),
        ("11-29 21:14:36", "11-29 21:14:36", True),
        ("11-30 00:00", None, False),
        ("2025-11-29 23:00", "2025-11-29 23:10", False),
        ("2026-11-29T21:14:00", None, True),
    ],
)
def test_bounds_take_in_what_they_say(since: str | None, until: str | None, inside: bool) -> None:
    assert ((2026, 11, 29, 21, 14, 36) in Between.parse(since, until)) == inside


@pytest.mark.parametrize("text", ["9 pm", "25", "2026-11-29", "21:14:", "1:2"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="`since`"):
        Between.parse(text, None)


def test_time_of_day_in_a_log_of_two_days_is_refused() -> None:
    lines = [
        f"[2026-11-{day} 21:00:00] Prefill batch, #new-seq: 1, #new-token: 6, #cached-token: 4" for day in (28, 29)
    ]
    with pytest.raises(UsageError, match="2 days"):
        read_log(lines, SGLANG.read_log_line, Between.parse("21:00", None))
    assert read_log(lines, SGLANG.read_log_line, Between.parse("11-29 20:00", None)).tally == Tally(10, 4)


def test_lines_without_a_time_are_in_no_interval() -> None:
    lines = ["Prefill batch, #new-seq: 1, #new-token: 6, #cached-token: 4"]
    assert read_log(lines, SGLANG.read_log_line).tally == Tally(10, 4)
    reading = read_log(lines, SGLANG.read_log_line, Between.parse("21:00", None))
    assert (reading.tally, reading.undated) == (NOTHING, 1)


def test_log_command_sums_an_interval_and_says_what_a_log_is_for(hitlab: Hitlab, excerpts: Path) -> None:
    ran = hitlab("log", excerpts, "--engine", "sglang", "--since", "21:14", "--until", "21:14:59")
    assert ran.status == 0
    assert "all        5       16,800          60,000   78.125 %" in ran.out
    assert "eyeballing" in ran.err
    assert max(map(len, ran.out.splitlines())) <= 80


@pytest.mark.parametrize("kind", ["gz", "zst", "stdin"])
def test_log_command_reads_archives_and_stdin(
    hitlab: Hitlab, excerpts: Path, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, data = tmp_path / "engine.log", excerpts.read_bytes()
    if kind == "stdin":
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(data))))
        path = Path("-")
    else:
        path.write_bytes(gzip.compress(data) if kind == "gz" else zstandard.compress(data))
    found = json.loads(hitlab("log", path, "--engine", "sglang", "--json").out)
    assert found["ranks"][-1]["queried_tokens"] == 78_233
    assert "eyeballing" in found["note"]


def test_log_command_shows_vllms_window_as_one(hitlab: Hitlab, tmp_path: Path) -> None:
    log = tmp_path / "vllm.log"
    log.write_text(
        "".join(
            f"INFO 11-29 21:00:{n}0 [x] Engine 000: Prefix cache hit rate: {r}%\n" for n, r in enumerate((9.5, 82, 40))
        )
    )
    ran = hitlab("log", log, "--engine", "vllm")
    assert "40.0 %    9.5 %    82.0 %" in ran.out
    assert "last 1,000 requests" in ran.out


def test_log_command_names_what_it_can_not_use(hitlab: Hitlab, excerpts: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.log.gz"
    cut.write_bytes(gzip.compress(excerpts.read_bytes())[:-20])
    for arguments, says in (
        ((excerpts, "--engine", "vllm"), "no line of vLLM's"),
        ((excerpts, "--engine", "sglang", "--since", "23:00"), "outside the interval"),
        ((tmp_path / "none.log", "--engine", "sglang"), "No such file"),
        ((cut, "--engine", "sglang"), "damaged archive"),
    ):
        ran = hitlab("log", *arguments)
        assert (ran.status, says in ran.err, ran.err.count("\n")) == (1, True, 1)


def batch_line(new_tokens: int, cached_tokens: int) -> str:
    return (
        f"[2026-11-29 21:00:00] Prefill batch, #new-seq: 1, #new-token: {new_tokens}, #cached-token: {cached_tokens}, "
    )


@pytest.fixture
def tags() -> list[str]:
    """The rank tags that the emulated SGLang writes each of its log lines with."""
    return [""]


@pytest.fixture
def no_metrics(tmp_path: Path, tags: list[str]) -> Iterator[tuple[EmulatedServer, Path]]:
    """An emulated SGLang without --enable-metrics that writes the log lines of a real one."""
    log = tmp_path / "sglang.log"
    log.write_text(batch_line(3, 0) + "\n")
    with emulate.start("sglang", emulate.settings("sglang").but(metrics_on=False)) as server:
        scheduler = server.engine.scheduler
        step, seen = scheduler.step, [0, 0]

        def logging_step() -> bool:
            more = step()
            (rank,) = scheduler.scrape()
            prefilled, hit = rank.prefilled_tokens - seen[0], rank.hit_tokens - seen[1]
            seen[:] = [rank.prefilled_tokens, rank.hit_tokens]
            if prefilled:
                line = batch_line(prefilled - hit, hit)
                with log.open("a") as file:
                    file.writelines(line.replace("]", f"{tag}]", 1) + "\n" for tag in tags)
            return more

        scheduler.step = logging_step  # type: ignore[method-assign]
        yield server, log


def test_server_without_metrics_is_measured_by_its_log(
    hitlab: Hitlab, no_metrics: tuple[EmulatedServer, Path], tmp_path: Path
) -> None:
    server, log = no_metrics
    target = ("measure", "--engine", "sglang", "--base-url", server.base_url, "--out", tmp_path, "--json")
    assert "--log FILE" in hitlab(*target).err
    ran = hitlab(*target, "--log", log, "--break-mode", "token", "--break-at", 400)
    found = json.loads(ran.out)
    assert ran.status == 0
    assert {phase["name"]: phase["hit_tokens"] for phase in found["phases"]} == {
        "cold": 0,
        "warm": 63_000,
        "break": 25_200,
        "repeat": 25_600,
    }
    assert {phase["counters"] for phase in found["phases"]} == {f"prefill lines of {log}"}
    assert any(str(log) in note for note in found["notes"])


@pytest.mark.parametrize("tags", [[f" ATTN_CP{n} MOE_DP0 TP{n}" for n in range(4)]])
def test_ranks_that_repeat_each_other_are_no_other_client(
    hitlab: Hitlab, no_metrics: tuple[EmulatedServer, Path], tmp_path: Path, tags: list[str]
) -> None:
    server, log = no_metrics
    ran = hitlab(
        *("measure", "--engine", "sglang", "--base-url", server.base_url, "--out", tmp_path, "--json"),
        *("--log", log, "--requests", 8),
    )
    found = json.loads(ran.out)
    assert (ran.status, found["valid"]) == (0, True)
    assert {phase["name"]: phase["hit_tokens"] for phase in found["phases"]} == {"cold": 0, "warm": 7000}
    assert log.read_text().count("ATTN_CP3") == log.read_text().count("ATTN_CP0") > 1


def test_log_of_another_server_leaves_tokens_unaccounted(
    hitlab: Hitlab, no_metrics: tuple[EmulatedServer, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hitlab.client.counters.SETTLE_S", 0.05)
    server, _ = no_metrics
    other = tmp_path / "other.log"
    other.write_text(batch_line(1200, 0) + "\n")
    ran = hitlab(
        *("measure", "--engine", "sglang", "--base-url", server.base_url, "--out", tmp_path, "--json"),
        *("--log", other, "--requests", 4),
    )
    checks = {check["name"]: check for check in json.loads(ran.out)["checks"]}
    assert ran.status == 4
    assert "unaccounted" in checks["queries add up"]["detail"]


@pytest.mark.parametrize(
    ("engine", "arguments", "says"),
    [
        ("vllm", [], "only the hit rate of its last 1,000 requests"),
        ("sglang", ["--emulate"], "runs without metrics"),
    ],
)
def test_log_that_can_not_stand_in_is_refused(
    hitlab: Hitlab, tmp_path: Path, engine: str, arguments: list[Any], says: str
) -> None:
    log = tmp_path / "engine.log"
    log.touch()
    ran = hitlab("measure", "--engine", engine, "--log", log, "--out", tmp_path, *arguments)
    assert ran.status == 2
    assert says in ran.err


def scrape(counters: LogCounters) -> Any:
    return asyncio.run(counters.scrape())


def test_only_whole_lines_added_later_are_counted(tmp_path: Path) -> None:
    log = tmp_path / "sglang.log"
    log.write_text(batch_line(9, 9) + "\n")
    counters = LogCounters(SGLANG, log)
    first = scrape(counters)
    assert first.since(Counters()) == (NOTHING, counters.source)
    with log.open("a") as file:
        file.write(batch_line(60, 40) + "\n" + batch_line(1, 2)[:-4])
    second = scrape(counters)
    assert second.since(first) == (Tally(100, 40), counters.source)
    with log.open("a") as file:
        file.write(batch_line(1, 2)[-4:] + "\nKV cache pool is full. Retract requests. #retracted_reqs: 3, #x: 1\n")
    third = scrape(counters)
    assert third.since(second)[0] == Tally(3, 2)
    assert third.preemptions == 3
    assert not third.restarted_since(first)


@pytest.mark.parametrize("how", ["cut", "replaced"])
def test_log_that_starts_over_is_a_restart(tmp_path: Path, how: str) -> None:
    log = tmp_path / "sglang.log"
    log.write_text("start\n" * 99)
    counters = LogCounters(SGLANG, log)
    with log.open("a") as file:
        file.write(batch_line(60, 40) + "\n")
    before = scrape(counters)
    if how == "replaced":
        log.rename(tmp_path / "sglang.log.1")
    log.write_text(batch_line(1, 1) + "\n")
    assert scrape(counters).restarted_since(before)
    log.unlink()
    with pytest.raises(MetricsError, match="gone"):
        scrape(counters)


def test_log_that_is_not_there_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="check `log`"):
        LogCounters(SGLANG, tmp_path / "none.log")
    with pytest.raises(HitlabError, match="--disable-log-stats"):
        LogCounters(VLLM, tmp_path / "none.log")


@pytest.mark.parametrize(
    "text", ["99:99", "24:00", "12:60", "13-01 10:00", "02-30 10:00", "2026-02-29 10:00", "00-10 1:00"]
)
def test_time_that_no_clock_or_calendar_shows_is_wrong_usage(hitlab: Hitlab, text: str) -> None:
    for option in ("--since", "--until"):
        ran = hitlab("log", "/dev/null", "--engine", "sglang", option, text)
        assert (ran.status, ran.err.count("\n")) == (2, 1)
        assert f"{option} {text!r} is no time" in ran.err


def test_leap_day_without_a_year_is_a_time() -> None:
    assert (2, 29, 10, 0, 30) in Between.parse("02-29 10:00", "02-29 10:00")
