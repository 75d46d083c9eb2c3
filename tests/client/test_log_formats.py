"""Logs as people have them: every stamp, container, export and encoding says what the engine's own lines say."""

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from helpers import Hitlab
from hypothesis import given, settings
from hypothesis import strategies as st

from hitlab.client.dialect import load_engine
from hitlab.client.engine_log import LogReading, read_log
from hitlab.client.log_interval import Between
from hitlab.client.log_times import completed, moment_in, plain
from hitlab.tokens import NOTHING, Tally

SGLANG, VLLM = load_engine("sglang"), load_engine("vllm")
OWN = (2026, 11, 29, 21, 14, 36)


def prefill(head: str, new: int = 200, cached: int = 800) -> str:
    return f"{head} Prefill batch, #new-seq: 1, #new-token: {new}, #cached-token: {cached}, token usage: 0.00, "


def window(head: str, percent: float = 12.0, engine: int = 0) -> str:
    return (
        f"{head} Engine {engine:03}: Avg prompt throughput: 9.0 tokens/s, Running: 2 reqs, GPU KV cache usage: 1.0%, "
        f"Prefix cache hit rate: {percent:.1f}%"
    )


def of_sglang(*lines: str, between: Between | None = None) -> LogReading:
    return read_log(lines, SGLANG.read_log_line, between)


def of_vllm(*lines: str, between: Between | None = None) -> LogReading:
    return read_log(lines, VLLM.read_log_line, between)


# Cases from the field: right values worked out by hand from their lines (tests/data/README.md).
@pytest.mark.parametrize(
    ("name", "engine", "lines", "first", "last", "tokens", "windows"),
    [
        ("N28.log", "sglang", 24, "2026-08-03 09:12:00", "2026-08-03 09:12:02", (24_500, 22_500), None),
        ("N28_control.log", "sglang", 24, "2026-08-03 09:12:00", "2026-08-03 09:12:02", (24_500, 22_500), None),
        ("N29.log", "sglang", 3, "10:05:01", "10:05:03", (7000, 3500), None),
        ("N30_ansi.log", "vllm", 3, "09-12 10:11:12", "09-12 10:11:32", None, (0.83, 0.12, 0.83)),
        ("N30_oteljson.log", "vllm", 3, "2026-09-12 10:11:12", "2026-09-12 10:11:32", None, (0.83, 0.12, 0.83)),
        ("N30_rust_style.log", "vllm", 3, "2026-09-12 10:11:12", "2026-09-12 10:11:32", None, (0.83, 0.12, 0.83)),
        ("N31_sglang.json", "sglang", 3, "2026-09-12 10:11:10", "2026-09-12 10:11:12", (3000, 1600), None),
        ("N33.log", "vllm", 6, "09-12 10:11:12", "09-12 10:11:32", None, (None, None, None)),
        ("N34_aggregated.log", "vllm", 3, "09-12 10:11:12", "09-12 10:11:32", None, (0.83, 0.12, 0.83)),
        ("N34_v0cpu.log", "vllm", 1, "05-25 06:50:29", "05-25 06:50:29", None, (0.88, 0.88, 0.88)),
    ],
)
def test_logs_from_the_field_say_what_was_worked_out_by_hand(
    hitlab: Hitlab,
    data: Path,
    name: str,
    engine: str,
    lines: int,
    first: str,
    last: str,
    tokens: tuple[int, int] | None,
    windows: tuple[float | None, ...] | None,
) -> None:
    log = data / "field-2" / name
    found = json.loads(hitlab("log", log, "--engine", engine, "--json").out)
    everything = found["ranks"][-1]
    assert (found["lines"], found["first"], found["last"]) == (lines, first, last)
    assert (everything["queried_tokens"], everything["hit_tokens"]) == (tokens or (None, None))
    rates = tuple(everything[f"{which}_window_hit_rate"] for which in ("last", "min", "max"))
    assert rates == (windows or (None, None, None))
    # All lines lie in the interval that their own first and last times name.
    within = json.loads(hitlab("log", log, "--engine", engine, "--json", "--since", first, "--until", last).out)
    assert (within["lines"], within["lines_outside"], within["lines_without_time"]) == (lines, 0, 0)


def test_ranks_of_a_log_with_times_of_day_have_their_own_rates(hitlab: Hitlab, data: Path) -> None:
    arguments = (
        "log",
        data / "field-2/N29.log",
        "--engine",
        "sglang",
        "--since",
        "10:05",
        "--until",
        "10:06",
        "--json",
    )
    ranks = json.loads(hitlab(*arguments).out)["ranks"]
    assert [(each["rank"], each["queried_tokens"], each["hit_tokens"]) for each in ranks] == [
        (0, 3000, 500),
        (1, 4000, 3000),
        (None, 7000, 3500),
    ]


def test_two_pods_are_two_rows_and_their_windows_are_never_one(hitlab: Hitlab, data: Path) -> None:
    log = data / "field-2/N33.log"
    out = hitlab("log", log, "--engine", "vllm").out
    assert "vllm-a   all        3   90.0 %   10.0 %    90.0 %" in out
    assert "vllm-b   all        3    8.0 %    0.0 %     8.0 %" in out
    assert out.count("90.0 %") == 2  # no row of both
    found = json.loads(hitlab("log", log, "--engine", "vllm", "--json").out)
    assert found["servers"] == ["vllm-a", "vllm-b"]
    assert [(row["server"], row["rank"]) for row in found["ranks"]] == [
        *[("vllm-a", 0), ("vllm-a", None), ("vllm-b", 0), ("vllm-b", None), (None, None)]
    ]


TAGS = ("TP", "PP", "EP", "ATTN_CP", "MOE_DP", "MOE_EP", "CP", "DCP", "ATTN_TP", "NEW_KIND")


@given(
    batches=st.lists(st.tuples(st.integers(0, 9999), st.integers(0, 9999)), min_size=1, max_size=6),
    caches=st.integers(1, 3),
    repeating=st.lists(st.sampled_from(TAGS), unique=True, max_size=4),
    replicas=st.integers(1, 4),
    time=st.sampled_from(["2026-08-03 09:12:00", "09:12:00", "2026-08-03 09:12:00,123", "2026-08-03T09:12:00.5Z"]),
    shuffled=st.randoms(use_true_random=False),
)
def test_only_data_parallel_ranks_add_up_whatever_the_tags_and_their_order(
    batches: list[tuple[int, int]], caches: int, repeating: list[str], replicas: int, time: str, shuffled: Any
) -> None:
    lines = []
    for rank in range(caches):
        for replica in range(replicas if repeating else 1):
            tags = [*[f"{kind}{replica}" for kind in repeating], f"DP{rank}"]
            shuffled.shuffle(tags)
            # Each rank counts its own, so that one taken for another is seen.
            lines += [prefill(f"[{time} {' '.join(tags)}]", new + rank, cached) for new, cached in batches]
    reading = of_sglang(*lines)
    new, hit = (sum(batch[which] for batch in batches) for which in (0, 1))
    by_rank = {row.rank: row.tally for row in reading.ranks()[:-1]}
    # Tags in another order are the same replica, or at least repeat the same tokens; a rank's sum is that of one.
    assert by_rank.keys() == set(range(caches))
    for rank in range(caches):
        extra = rank * len(batches)
        assert by_rank[rank] == Tally(new + hit + extra, hit)
    assert reading.tally == sum((tally for tally in by_rank.values() if tally), NOTHING)


MOMENTS = st.datetimes(datetime(2002, 1, 1), datetime(2037, 12, 31))
Stamp = Callable[[datetime], str]
# How loggers and containers print a time, and the units that they say: 6 with a year, 5 with a month, 3 of a clock.
STAMPS: list[tuple[str, int]] = [
    ("[%Y-%m-%d %H:%M:%S TP0]", 6),
    ("[%Y-%m-%d %H:%M:%S.%f TP0]", 6),
    ("[%Y-%m-%d %H:%M:%S,123] INFO", 6),
    ("%Y-%m-%dT%H:%M:%SZ INFO", 6),
    ("%Y-%m-%dT%H:%M:%S.%fZ  INFO a.b:", 6),
    ("%Y-%m-%dT%H:%M:%S.%f+02:00 INFO", 6),
    ("%Y-%m-%dT%H:%M:%S-0800 INFO", 6),
    ("%Y/%m/%d %H:%M:%S INFO", 6),
    ("%Y%m%dT%H%M%SZ INFO", 6),
    ("I%Y%m%d %H:%M:%S.%f 12 x.cc:3]", 6),
    ("I%m%d %H:%M:%S.%f       1 x.go:3]", 5),
    ("[I%m%d %H:%M:%S.%f DP0]", 5),
    ("INFO %m-%d %H:%M:%S [loggers.py:271]", 5),
    ("%m-%d %H:%M:%S INFO", 5),
    ("(APIServer pid=1) INFO %m-%d %H:%M:%S [loggers.py:271]", 5),
    ("%b %d %H:%M:%S host unit[1]:", 5),
    ("%b %d %Y %H:%M:%S INFO", 6),
    ("%d/%b/%Y:%H:%M:%S +0000", 6),
    ("[%a %b %d %H:%M:%S %Y]", 6),
    ("%a %Y-%m-%d %H:%M:%S UTC host unit[1]:", 6),
    ("[%H:%M:%S TP0]", 3),
    ("INFO %H:%M:%S", 3),
    ("%H:%M:%S.%f INFO", 3),
    ("INFO:%Y-%m-%d %H:%M:%S:", 6),
    ("%Y-%m-%d %H:%M:%S.%f | INFO     | a.b:f:12 -", 6),
    ("level=info ts=%Y-%m-%dT%H:%M:%S.%fZ msg=", 6),
]


@given(at=MOMENTS, stamp=st.sampled_from(STAMPS))
def test_every_stamp_is_read_as_it_is_printed(at: datetime, stamp: tuple[str, int]) -> None:
    form, units = stamp
    whole = (at.year, at.month, at.day, at.hour, at.minute, at.second)
    assert moment_in(at.strftime(form) + " ") == whole[-units:]
    (entry,) = of_sglang(prefill(at.strftime(form))).entries
    assert (entry.moment, entry.tally) == (whole[-units:], Tally(1000, 800))
    (entry,) = of_vllm(window(at.strftime(form))).entries
    assert (entry.moment, entry.window_hit_rate) == (whole[-units:], 0.12)


@given(
    at=MOMENTS,
    unit=st.sampled_from([1, 10**3, 10**6, 10**9]),
    as_text=st.booleans(),
    key=st.sampled_from(["ts", "time"]),
)
def test_time_since_1970_in_a_field_is_read_in_every_unit(at: datetime, unit: int, as_text: bool, key: str) -> None:
    at = at.replace(microsecond=0)
    value = int(at.replace(tzinfo=UTC).timestamp()) * unit
    (entry,) = of_vllm(json.dumps({key: str(value) if as_text else value, "msg": window("INFO")})).entries
    assert entry.moment == (at.year, at.month, at.day, at.hour, at.minute, at.second)


@pytest.mark.parametrize(
    "head",
    ["", "[TP0]", "INFO [loggers.py:271]", "10.0.0.1:30000", "[2026-13-29 99:99:99]", "INFO 02-30 10:10:10", "12:5"],
)
def test_what_no_clock_or_calendar_shows_is_no_time(head: str) -> None:
    reading = of_sglang(prefill(head), between=Between.parse("00:00", "23:59"))
    assert (reading.entries, reading.undated, reading.outside) == ([], 1, 0)
    assert of_sglang(prefill(head)).tally == Tally(1000, 800)  # without an interval it counts


def test_date_that_can_be_read_in_two_ways_is_no_date() -> None:
    assert moment_in("04/05/2026 10:11:12 ") == (10, 11, 12)
    assert moment_in("29.11.2026 10:11:12 ") == moment_in("11/29/2026, 10:11:12 AM ") == (2026, 11, 29, 10, 11, 12)


@given(own=MOMENTS, offset_hours=st.integers(-11, 11), units=st.sampled_from([3, 5]))
def test_year_or_date_that_the_engine_leaves_out_comes_from_the_container(
    own: datetime, offset_hours: int, units: int
) -> None:
    moment = own.timetuple()[:6]
    outer = datetime.fromtimestamp(own.replace(tzinfo=UTC).timestamp() + 3600 * offset_hours, UTC).timetuple()[:6]
    assert completed(moment[-units:], outer) == moment
    assert completed(moment, outer) == moment


COLOURS = ("\x1b[0m", "\x1b[1;31m", "\x1b[38;5;208m", "\x1b[90m", "\x1b[K", "\x1b[2K", "#033[32m", "^[[0;36m")


@given(
    line=st.sampled_from(
        [prefill("[2026-11-29 21:14:36 DP1 TP0]"), window("(APIServer pid=1) INFO 11-29 21:14:36 [x]")]
    ),
    codes=st.lists(st.tuples(st.integers(0, 200), st.sampled_from(COLOURS)), max_size=8),
)
def test_colours_anywhere_change_nothing(line: str, codes: list[tuple[int, str]]) -> None:
    coloured = line
    for at, code in sorted(((min(at, len(line)), code) for at, code in codes), reverse=True):
        coloured = coloured[:at] + code + coloured[at:]
    assert plain(coloured) == line
    assert of_sglang(coloured).entries == of_sglang(line).entries
    assert of_vllm(coloured).entries == of_vllm(line).entries


def test_colours_that_lost_their_escape_character_change_nothing() -> None:
    assert of_vllm(window("[32mINFO[0m [90m11-29 21:14:36[0m [90m[loggers.py:257][0m")).moments == (OWN[1:], OWN[1:])


ISO = "2026-11-29T23:14:36.123456789Z"  # a container's clock, two hours ahead of the engine's
# How a line of the server `name` looks once others have passed it on.
WRAPPERS: dict[str, Callable[[str, str], str]] = {
    "docker logs -t": lambda line, name: f"{ISO} {line}",
    "docker json-file": lambda line, name: json.dumps({"log": line + "\n", "stream": "stderr", "time": ISO}),
    "fluentd": lambda line, name: json.dumps({"container_name": name, "source": "stderr", "log": line}),
    "cri": lambda line, name: f"{ISO} stderr F {line}",
    "kubectl --prefix": lambda line, name: f"[pod/{name}/server] {line}",
    "kubectl --prefix --timestamps": lambda line, name: f"[pod/{name}/server] {ISO} {line}",
    "stern": lambda line, name: f"{name} server {line}",
    "compose": lambda line, name: f"{name}  | {line}",
    "compose, coloured": lambda line, name: f"\x1b[36m{name}  |\x1b[0m {line}",
    "compose -t": lambda line, name: f"{name}  | {ISO} {line}",
    "swarm": lambda line, name: f"{name}.1.x7ab@node1    | {line}",
    "syslog": lambda line, name: f"Nov 29 21:14:37 {name} sglang[12]: {line}",
    "syslog without a process": lambda line, name: f"Nov 29 21:14:37 {name} sglang: {line}",
    "rfc 5424": lambda line, name: f"<34>1 {ISO} {name} sglang 12 - - {line}",
    "journalctl -o short-iso": lambda line, name: f"2026-11-29T23:14:36+0000 {name} sglang[12]: {line}",
    "journalctl -o json": lambda line, name: json.dumps(
        {"__REALTIME_TIMESTAMP": "1795986876000000", "_HOSTNAME": name, "_PID": "12", "MESSAGE": line}
    ),
    "journalctl -o json, bytes": lambda line, name: json.dumps({"_HOSTNAME": name, "MESSAGE": [*line.encode()]}),
    "logcli jsonl": lambda line, name: json.dumps({"labels": {"pod": name}, "line": line, "timestamp": ISO}),
    "logcli": lambda line, name: f'{ISO} {{app="x", pod="{name}"}} {line}',
    "loki": lambda line, name: json.dumps(
        {"data": {"result": [{"stream": {"pod": name}, "values": [["1795986876000000000", line]]}]}}
    ),
    "grafana": lambda line, name: json.dumps(
        [{"line": line, "timestamp": "1795986876000000000", "date": ISO, "fields": {"pod": name, "Line": line}}]
    ),
    "opentelemetry": lambda line, name: json.dumps({"timestamp": ISO, "body": line, "k8s.pod.name": name}),
    "otlp": lambda line, name: json.dumps(
        {
            "resourceLogs": [
                {
                    "resource": {"attributes": [{"key": "k8s.pod.name", "value": {"stringValue": name}}]},
                    "scopeLogs": [
                        {"logRecords": [{"timeUnixNano": "1795986876000000000", "body": {"stringValue": line}}]}
                    ],
                }
            ]
        }
    ),
    "elasticsearch": lambda line, name: json.dumps(
        {"_source": {"@timestamp": ISO, "message": line, "kubernetes": {"pod": {"name": name}}}}
    ),
    "google": lambda line, name: json.dumps(
        {"textPayload": line, "timestamp": ISO, "resource": {"labels": {"pod_name": name, "namespace_name": "n"}}}
    ),
    "grep": lambda line, name: f"{name}.log:{line}",
    "pdsh": lambda line, name: f"{name}: {line}",
}
NAMELESS = {"docker logs -t", "docker json-file", "cri"}
WITHOUT_TIME = {name for name, wrap in WRAPPERS.items() if not re.search(r"2026|Nov 29|17959", wrap("", "a"))}


@pytest.mark.parametrize("kind", WRAPPERS)
def test_what_others_put_around_a_line_names_its_server_and_its_time(kind: str) -> None:
    wrap = WRAPPERS[kind]
    lines = [
        wrap(prefill("[2026-11-29 21:14:36 DP0 TP0]", new, cached), name)
        for name, new, cached in (("host-a", 200, 800), ("host-b", 30, 70), ("host-a", 1, 2))
    ]
    reading = of_sglang(*lines)
    assert reading.moments == (OWN, OWN)  # the engine's own time wins
    assert reading.tally == Tally(1103, 872)
    rows = [(row.server, row.tally) for row in reading.ranks() if row.rank is None]
    if kind in NAMELESS:
        assert rows == [(None, Tally(1103, 872))]
    else:
        assert [tally for _, tally in rows] == [Tally(1003, 802), Tally(100, 70), Tally(1103, 872)]
        assert ["host-a" in str(rows[0][0]), "host-b" in str(rows[1][0]), rows[2][0]] == [True, True, None]
    if kind not in WITHOUT_TIME:  # a line without a time of its own has the container's
        (entry,) = of_sglang(wrap(prefill("[DP1]"), "host-a")).entries
        assert entry.moment is not None and entry.moment[-5:-3] == (11, 29)
        assert entry.rank == 1


@settings(max_examples=1000, deadline=None)
@given(kinds=st.lists(st.sampled_from([*WRAPPERS]), max_size=3), engine=st.sampled_from(["sglang", "vllm"]))
def test_wrappings_of_wrappings_lose_nothing(kinds: list[str], engine: str) -> None:
    line = (
        prefill("[2026-11-29 21:14:36 DP1 TP0]") if engine == "sglang" else window("INFO 11-29 21:14:36 [x]", 82.7, 1)
    )
    for kind in kinds:
        line = WRAPPERS[kind](line, "host-a")
    (entry,) = read_log([line], load_engine(engine).read_log_line).entries
    assert entry.moment is not None
    assert (entry.moment[-5:], entry.rank) == (OWN[-5:], 1)
    assert (entry.tally, entry.window_hit_rate) == ((Tally(1000, 800), None) if engine == "sglang" else (None, 0.827))


@pytest.mark.parametrize("indent", [None, 2])
def test_export_counts_every_entry_in_one_line_or_in_many(indent: int | None) -> None:
    entries = [
        {"line": prefill(f"[21:14:{s:02}]", s, 1), "fields": {"pod": "p", "line": "x"}} for s in range(30, 10, -1)
    ]
    text = json.dumps(entries, indent=indent)
    reading = of_sglang(*text.splitlines())
    assert (len(reading.entries), reading.tally) == (20, Tally(sum(range(11, 31)) + 20, 20))
    assert reading.moments == ((21, 14, 11), (21, 14, 30))


def test_document_laid_out_over_many_lines_gives_its_texts_their_times_and_servers() -> None:
    documents = [{"message": window("INFO"), "time": ISO, "pod": pod} for pod in ("a", "b\x1b]0;b\x07")]
    lines = "\n".join(json.dumps(each, indent=4) for each in documents).splitlines()
    rows = [(row.server, row.last_window_hit_rate) for row in of_vllm(*lines).ranks() if row.rank is None]
    assert rows == [("a", 0.12), ("b?]0;b?", 0.12), (None, None)]  # no name steers a terminal
    assert of_vllm(*lines).moments == ((2026, 11, 29, 23, 14, 36),) * 2


def test_lines_after_the_name_of_a_file_are_of_that_file() -> None:
    lines = (
        "==> a.log <==",
        window("INFO 11-29 21:14:36 [x]", 1),
        "",
        "==> b.log <==",
        window("INFO 11-29 21:14:36 [x]", 2),
    )
    rows = {row.server: row.last_window_hit_rate for row in of_vllm(*lines).ranks()}
    assert rows == {"a.log": 0.01, "b.log": 0.02, None: None}


@pytest.mark.parametrize(
    ("tags", "rank", "replica"),
    [
        ("DP0_TP3", 0, "TP3"),
        ("DP1/ATTN_CP2/TP3", 1, "ATTN_CP2 TP3"),
        ("PP1 MOE_DP0 DP3 EP2", 3, "PP1 MOE_DP0 EP2"),
        ("ATTN_DP3 TP3", 3, "TP3"),
        ("EP", None, ""),
        ("MOE_DP5", None, "MOE_DP5"),
    ],
)
def test_tags_of_ranks_in_any_shape(tags: str, rank: int | None, replica: str) -> None:
    entry = SGLANG.read_log_line(prefill(f"[2026-11-29 21:14:36 {tags}]"))
    assert entry is not None
    assert (entry.rank, entry.replica, entry.moment) == (rank, replica, OWN)


def test_lines_that_processes_wrote_into_one_are_counted_each() -> None:
    reading = of_sglang(prefill("[2026-11-29 21:14:36 DP0]") + prefill("[2026-11-29 21:14:37 DP1]", 5, 5))
    assert [row.tally for row in reading.ranks()] == [Tally(1000, 800), Tally(10, 5), Tally(1010, 805)]
    repeated = of_sglang(prefill("[2026-11-29 21:14:36 TP0]") + prefill("[2026-11-29 21:14:36 TP1]"))
    assert repeated.tally == Tally(1000, 800)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9) | st.just(prefill("[DP0]")),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["ts", "time", "message", "pod", "host", "key", "value", "x"]), inner, max_size=4
        )
    ),
    max_leaves=12,
)


@given(
    document=JSON,
    pieces=st.lists(
        st.text(max_size=9)
        | st.sampled_from([prefill("["), "{", "[", "]", '"', " | ", ": ", "0001-01-01 00:00:00", "\x1b["]),
        max_size=6,
    ),
)
def test_no_line_is_more_than_the_reader_can_bear(document: Any, pieces: list[str]) -> None:
    for line in (json.dumps(document), "".join(pieces), "".join(pieces) + json.dumps(document)):
        reading = of_sglang(line)
        assert all(row.entries >= 0 for row in reading.ranks())
        assert all(str(row.server).isprintable() for row in reading.ranks())
    if isinstance(document, str) and document.startswith("[DP0] Prefill"):
        assert of_sglang(json.dumps([document])).tally == Tally(1000, 800)
