"""Whole logs: in any order and encoding, cut short, of several servers, and what an interval leaves out."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from helpers import Hitlab
from hypothesis import given
from hypothesis import strategies as st

from hitlab.client.dialect import load_engine
from hitlab.client.engine_log import FollowedLog, LogReading, log_lines, read_log
from hitlab.client.log_interval import Between, days_of
from hitlab.tokens import NOTHING, Tally

SGLANG, VLLM = load_engine("sglang"), load_engine("vllm")


def prefill(head: str, new: int = 200, cached: int = 800) -> str:
    return f"{head} Prefill batch, #new-seq: 1, #new-token: {new}, #cached-token: {cached}, token usage: 0.00, "


def window(head: str, percent: float, engine: int = 0) -> str:
    return f"{head} Engine {engine:03}: Running: 2 reqs, Prefix cache hit rate: {percent:.1f}%"


def of_sglang(*lines: str, between: Between | None = None) -> LogReading:
    return read_log(lines, SGLANG.read_log_line, between)


def of_vllm(*lines: str, between: Between | None = None) -> LogReading:
    return read_log(lines, VLLM.read_log_line, between)


LINES = st.lists(
    st.builds(
        lambda pod, second, rank, replica, new, cached: (
            f"[pod/{pod}/s] " + prefill(f"[2026-11-29 21:14:{second:02} DP{rank} TP{replica}]", new, cached)
        ),
        st.sampled_from(["a", "b"]),
        st.integers(0, 59),
        st.integers(0, 1),
        st.integers(0, 2),
        st.integers(0, 999),
        st.integers(0, 999),
    ),
    min_size=1,
    max_size=12,
)


@given(LINES, st.randoms(use_true_random=False))
def test_order_of_lines_changes_neither_tokens_nor_the_first_and_last_time(lines: list[str], shuffled: Any) -> None:
    other = list(lines)
    shuffled.shuffle(other)
    one, two = of_sglang(*lines), of_sglang(*other)
    assert (one.tally, one.moments) == (two.tally, two.moments)
    assert one.ranks() == two.ranks()
    assert one.moments == (min(e.moment or () for e in one.entries), max(e.moment or () for e in one.entries))


@pytest.mark.parametrize(
    ("stamps", "first", "last"),
    [
        (["21:14:36", "21:14:46", "21:14:56"], (21, 14, 36), (21, 14, 56)),
        (["23:59:46", "23:59:56", "00:00:06"], (23, 59, 46), (0, 0, 6)),  # past midnight
        (["12-31 23:59:56", "01-01 00:00:06"], (12, 31, 23, 59, 56), (1, 1, 0, 0, 6)),  # past New Year
        (["01-01 01:00:00", "04-01 01:00:00", "11-29 21:14:36"], (1, 1, 1, 0, 0), (11, 29, 21, 14, 36)),
    ],
)
def test_newest_first_is_read_as_oldest_first(stamps: list[str], first: Any, last: Any) -> None:
    lines = [window(f"INFO {stamp} [x]", 10.0 * number) for number, stamp in enumerate(stamps, 1)]
    for order in (lines, lines[::-1]):
        reading = of_vllm(*order)
        assert reading.moments == (first, last)
        assert reading.ranks()[-1].last_window_hit_rate == len(stamps) / 10


def test_time_of_day_bounds_want_one_day_whatever_the_lines_say_of_it() -> None:
    assert days_of([(2026, 11, 29, 1, 2, 3), (11, 29, 1, 2, 3), (1, 2, 3)]) == 1
    assert days_of([(2026, 11, 29, 1, 2, 3), (2025, 11, 29, 1, 2, 3), (11, 30, 1, 2, 3)]) == 3


ENCODINGS = {
    "utf-8": "utf-8",
    "utf-8 with a mark": "utf-8-sig",
    "utf-16": "utf-16",
    "utf-32": "utf-32",
}
PACKS: dict[str, Callable[[bytes], bytes]] = {
    "plain": bytes,
    "gz": gzip.compress,
    "zst": zstandard.ZstdCompressor().compress,
}
TEXT = "Loading… 100 %\n" + "".join(prefill(f"[2026-11-29 21:14:{n:02} TP0]", n, 2 * n) + "\n" for n in range(40))


@pytest.mark.parametrize("pack", PACKS)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("encoding", [*ENCODINGS, "utf-16, big end first"])
def test_encodings_line_ends_and_archives_change_nothing(
    hitlab: Hitlab, tmp_path: Path, encoding: str, newline: str, pack: str
) -> None:
    text = TEXT.replace("\n", newline)
    content = ("\ufeff" + text).encode("utf-16-be") if encoding not in ENCODINGS else text.encode(ENCODINGS[encoding])
    log = tmp_path / "engine.log"
    log.write_bytes(PACKS[pack](content))
    assert "".join(log_lines(log)) == TEXT
    found = json.loads(hitlab("log", log, "--engine", "sglang", "--json").out)
    assert (found["lines"], found["first"], found["last"]) == (40, "2026-11-29 21:14:00", "2026-11-29 21:14:39")
    assert (found["ranks"][-1]["queried_tokens"], found["ranks"][-1]["hit_tokens"]) == (3 * 780, 2 * 780)


@pytest.mark.parametrize("exported", [False, True])
def test_log_cut_anywhere_has_no_number_that_was_not_in_it(tmp_path: Path, exported: bool) -> None:
    lines = [prefill(f"[2026-11-29 21:14:{n:02} TP0]", 10 * n, 20 * n) for n in range(4)]
    text = json.dumps([{"line": line} for line in lines]) if exported else "".join(f"{line}\n" for line in lines)
    log = tmp_path / "engine.log"
    for end in range(len(text)):
        log.write_bytes(text[:end].encode())
        entries = [entry.tally for entry in read_log(log_lines(log), SGLANG.read_log_line).entries]
        assert entries == [Tally(30 * n, 20 * n) for n in range(len(entries))]
        # What is whole is read; a JSON document is whole at its closing brace.
        assert len(entries) >= text[:end].count("}" if exported else "token usage")


def test_of_ranks_that_repeat_each_other_one_counts_whatever_their_order() -> None:
    lines = [prefill("[TP0]", 5, 5), prefill("[TP1]", 10, 0), prefill("[TP2]", 4, 5)]
    assert of_sglang(*lines).tally == of_sglang(*lines[::-1]).tally == Tally(10, 5)


def test_what_an_interval_leaves_out_is_counted_apart(hitlab: Hitlab, tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    heads = ["[2026-11-29 21:14:36]", "[2026-11-29 21:14:46]", "[2026-11-29 22:00:00]", "[TP0]", "", "[99:99:99]"]
    log.write_text("".join(prefill(head) + "\n" for head in heads))
    target = ("log", log, "--engine", "sglang")
    ran = hitlab(*target, "--since", "21:14", "--until", "21:15", "--json")
    found = json.loads(ran.out)
    assert [found[key] for key in ("lines", "lines_outside", "lines_without_time")] == [2, 1, 3]
    assert found["ranks"][-1]["queried_tokens"] == 2000
    ran = hitlab(*target, "--since", "21:14", "--until", "21:15")
    assert "2 lines, 2026-11-29 21:14:36 to 2026-11-29 21:14:46" in ran.out
    assert "note: 1 lies outside the interval and 3 carry no time that can be read" in ran.err
    whole = json.loads(hitlab(*target, "--json").out)
    assert [whole[key] for key in ("lines", "lines_outside", "lines_without_time")] == [6, 0, 0]
    log.write_text("".join(prefill(head) + "\n" for head in heads[3:]))
    ran = hitlab(*target, "--since", "21:14")
    assert (ran.status, ran.err.count("\n")) == (1, 1)
    assert "3 carry no time that can be read" in ran.err
    assert "outside" not in ran.err
    log.write_text(prefill(heads[2]) + "\n")
    assert "1 lies outside the interval" in hitlab(*target, "--until", "21:14").err


LONG = "sglang-llama-3-70b-instruct-prod-deployment-7d9f8c6b5d-{}"


def test_servers_whose_lines_count_tokens_have_a_row_each_and_a_total(hitlab: Hitlab, tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text(
        "".join(
            f"[pod/{LONG.format(pod)}/server] " + prefill(f"[2026-11-29 21:14:36 DP{rank}]", new, 123_456_789) + "\n"
            for pod, rank, new in (("x2x4z", 0, 1000), ("x2x4z", 1, 20), ("k8s7q", 0, 3))
        )
    )
    out = hitlab("log", log, "--engine", "sglang").out
    assert max(map(len, out.splitlines())) <= 80
    assert "3 lines of 2 servers" in out
    rows = [line.split()[-6:] for line in out.splitlines() if line.rstrip().endswith("%")]
    assert [[cells[0], *cells[2:4]] for cells in rows] == [
        ["all", "3", "123,456,789"],
        ["0", "1,000", "123,456,789"],
        ["1", "20", "123,456,789"],
        ["all", "1,020", "246,913,578"],
        ["all", "1,023", "370,370,367"],
    ]
    assert LONG.format("x2x4z")[-5:] in out and LONG.format("k8s7q")[-5:] in out
    found = json.loads(hitlab("log", log, "--engine", "sglang", "--json").out)
    assert [(row["server"], row["rank"], row["hit_tokens"]) for row in found["ranks"][-2:]] == [
        (LONG.format("x2x4z"), None, 246_913_578),
        (None, None, 370_370_367),
    ]


@given(rates=st.lists(st.tuples(st.integers(0, 999), st.integers(0, 999)), min_size=2, max_size=6))
def test_windows_of_two_servers_without_a_prefix_are_no_rate_where_they_contradict_each_other(
    rates: list[tuple[int, int]],
) -> None:
    lines = [
        window(f"(APIServer pid=1) INFO 11-29 21:14:{second:02} [x]", rate / 10)
        for second, pair in enumerate(rates)
        for rate in pair
    ]
    servers = of_vllm(*lines).servers()
    for row in servers.ranks():
        if all(one == two for one, two in rates):
            assert row.max_window_hit_rate == max(one for one, _ in rates) / 1000
        else:
            assert (row.last_window_hit_rate, row.min_window_hit_rate, row.max_window_hit_rate) == (None, None, None)
            assert "several servers" in servers.notes[0]


def test_processes_that_take_turns_are_servers_and_one_after_the_other_is_a_restart(
    hitlab: Hitlab, tmp_path: Path
) -> None:
    def line(pid: int, second: int, percent: float) -> str:
        return window(f"(APIServer pid={pid}) INFO 11-29 21:14:{second:02} [x]", percent)

    turns = of_vllm(line(1, 10, 10), line(2, 15, 1), line(1, 20, 20), line(2, 25, 2))
    rows = {row.server: (row.min_window_hit_rate, row.last_window_hit_rate) for row in turns.ranks()}
    assert rows == {"APIServer pid=1": (0.1, 0.2), "APIServer pid=2": (0.01, 0.02), None: (None, None)}
    restart = of_vllm(line(1, 10, 10), line(1, 20, 20), line(2, 45, 1))
    assert restart.ranks()[-1].last_window_hit_rate == 0.01
    log = tmp_path / "engine.log"
    log.write_text("\n".join([line(1, 10, 10), line(1, 10, 90), ""]))
    ran = hitlab("log", log, "--engine", "vllm")
    assert "several servers" in ran.err and "90.0 %" not in ran.out


def test_nodes_of_one_server_repeat_each_other_and_pods_of_two_do_not() -> None:
    def lines(pod: str, ranks: range, new: int) -> list[str]:
        return [f"[pod/{pod}/s] " + prefill(f"[2026-11-29 21:14:36 ATTN_CP{n} TP{n}]", new) for n in ranks]

    one = of_sglang(*lines("s-0", range(4), 200), *lines("s-1", range(4, 8), 200))
    assert one.tally == Tally(1000, 800)
    assert "s-0 + s-1 repeat each other's tokens" in one.servers().notes[0]
    two = of_sglang(*lines("s-0", range(4), 200), *lines("s-1", range(4), 200))
    assert (two.tally, two.servers().notes) == (Tally(2000, 1600), ())
    both = of_sglang(
        *lines("a-0", range(2), 200),
        *lines("a-1", range(2, 4), 200),
        *lines("b-0", range(2), 9),
        *lines("b-1", range(2, 4), 9),
    )
    assert [(row.server, row.tally) for row in both.ranks()] == [
        ("a-0 + a-1", Tally(1000, 800)),
        ("b-0 + b-1", Tally(809, 800)),
        (None, Tally(1809, 1600)),
    ]


def test_lines_of_all_engines_together_give_the_common_rate() -> None:
    lines = [window("INFO 11-29 21:14:36 [x]", 10.0 * rank, rank) for rank in range(2)]
    common = "INFO 11-29 21:14:36 [x] 2 Engines Aggregated: Running: 2 reqs, Prefix cache hit rate: 7.0%"
    assert of_vllm(*lines, common).ranks()[-1].last_window_hit_rate == 0.07
    assert of_vllm(*lines).ranks()[-1].last_window_hit_rate is None


def test_half_a_line_of_the_old_engine_is_no_rate_of_its_gpu() -> None:
    line = "INFO 05-25 06:50:29 metrics.py:455] Prefix cache hit rate: GPU: 0.00%, CPU: 88.00%"
    assert [of_vllm(line[:end]).entries for end in range(len(line))] == [[]] * len(line)
    assert of_vllm(line).ranks()[-1].last_window_hit_rate == 0.88


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("begun", ["", "start\n"])
def test_log_that_is_followed_is_read_like_one_that_is_whole(
    tmp_path: Path, encoding: str, packed: bool, begun: str
) -> None:
    log = tmp_path / "engine.log"
    log.write_bytes(begun.encode(encoding) if begun else b"")
    lines = [prefill(f"[2026-11-29 21:14:36 ATTN_CP{n} TP{n}]", 60, 40) for n in range(4)]
    written = "".join(
        (json.dumps({"log": line + "\n", "stream": "stderr"}) if packed else line) + "\r\n" for line in lines
    )
    whole = (begun + written).encode(encoding)
    followed = FollowedLog(SGLANG, log)
    for end in range(len(begun.encode(encoding)) if begun else 0, len(whole) + 1, 7):
        log.write_bytes(whole[:end])
        assert followed.read().tally in (NOTHING, Tally(100, 40))
    log.write_bytes(whole)
    assert (followed.read().tally, len(followed.read().entries)) == (Tally(100, 40), 4)
