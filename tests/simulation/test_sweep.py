"""Sweeps: which points there are, that they are replays' own, and that none is lost or made twice."""

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from helpers import Hitlab
from rich.console import Console

from hitlab import families
from hitlab.errors import InputError, UsageError
from hitlab.report import sweep_plot
from hitlab.simulation import kv_size, replay, sweep, sweep_runner
from hitlab.simulation.hit_curve import Curves
from hitlab.simulation.policy import Choice
from hitlab.simulation.sweep import Point
from hitlab.simulation.workers import Workers
from hitlab.traces import mapped
from hitlab.traces.reader import read_trace
from hitlab.traces.trace import Trace


@pytest.fixture
def chats(root: Path) -> Path:
    return root / "examples" / "chats.jsonl.gz"


@pytest.fixture
def trace(chats: Path) -> Trace:
    return read_trace(chats)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def points_of(document: str) -> dict[tuple[str, int], dict[str, Any]]:
    return {(each["policy"], each["capacity_blocks"]): each for each in json.loads(document)["points"]}


# Which points


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("7", [7]),
        ("30,10,30", [10, 30]),
        ("1:1000:log4", [1, 10, 100, 1000]),
        ("10:20:lin3", [10, 15, 20]),
        ("5:5:log30", [5]),
        ("1:3:log30", [1, 2, 3]),
    ],
)
def test_capacities_are_lists_or_ranges_each_once_and_sorted(text: str, expected: list[int]) -> None:
    assert sweep.capacities(text) == expected


@pytest.mark.parametrize("text", ["", "x", "1:x", "10:1:log3", "0:10:log3", "1:10:exp3", "1:10:log0", "1:2:3:4", "1.5"])
def test_what_is_no_capacity_is_one_line(text: str) -> None:
    with pytest.raises(UsageError, match="is no"):
        sweep.capacities(text)


def test_memory_is_turned_into_blocks_that_fit() -> None:
    llama = kv_size.architecture("Llama-3.1-8B").bytes_per_token()
    assert llama == 2 * 32 * 8 * 128 * 2
    assert sweep.memory_capacities("1GiB,64MiB", llama, 512) == [1, 16]
    with pytest.raises(UsageError, match="no room for a block of 67,108,864 bytes"):
        sweep.memory_capacities("1MiB:1GiB", llama, 512)
    for text in ("8XB", "GiB", "-1GiB", "8KiBB"):
        with pytest.raises(UsageError, match="no memory size"):
            kv_size.bytes_of(text)


def test_models_say_where_their_numbers_come_from() -> None:
    for model in kv_size.MODELS.values():
        assert model.source.count("/") == 1
        assert model.bytes_per_token() > 0
    with pytest.raises(UsageError, match="no model named"):
        kv_size.architecture("gpt-2")


def test_choices_carry_options_and_refuse_what_is_none() -> None:
    assert Choice.of("S3FIFO:max-freq=1") == Choice("s3fifo:max-freq=1", "s3fifo", {"max_freq": 1})
    with pytest.raises(UsageError, match="is no option of a policy"):
        Choice.of("s3fifo:max_freq=many")


def test_crossings_skip_ties_and_points_without_a_partner() -> None:
    def made(policy: str, *rates: float) -> Iterator[Point]:
        return (Point(policy, n, 0, 0, 0, rate, rate, 0, 0, rate, rate) for n, rate in enumerate(rates))

    points = [*made("a", 0.1, 0.2, 0.3, 0.9, 0.9), *made("b", 0.0, 0.2, 0.4, 0.5)]
    assert list(sweep.crossings(points, "a", "b", "cold_token_hit_rate")) == [("a", 0, 2), ("b", 2, 3)]


# Every point is a replay's


def test_every_point_of_every_policy_is_what_its_replay_says(
    hitlab: Hitlab, chats: Path, trace: Trace, here: Path
) -> None:
    ran = hitlab("sweep", chats, "--policy", "all", "--capacity", "50,400", "--warmup", "0.25", "--json")
    assert ran.status == 0
    points = points_of(ran.out)
    first = replay.first_warm(trace.requests, 0.25)
    assert first == 767
    assert points.keys() == {(name, capacity) for name in families.names("policies") for capacity in (50, 400)}
    for (name, capacity), each in points.items():
        one = replay.replay(trace, families.policy(name), capacity)
        cold, steady = one.tally, one.tally_from(first)
        assert (each["cold_hit_tokens"], each["cold_prompt_tokens"]) == (cold.hit_tokens, cold.queried_tokens)
        assert (each["steady_hit_tokens"], each["steady_prompt_tokens"]) == (steady.hit_tokens, steady.queried_tokens)
        assert (each["cold_token_hit_rate"], each["steady_token_hit_rate"]) == (cold.hit_rate, steady.hit_rate)
        assert each["cold_request_hit_rate"] == pytest.approx(one.request_hit_rate())
        assert each["steady_request_hit_rate"] == pytest.approx(one.request_hit_rate(first))
        assert each["final_blocks"] == one.final_blocks


def test_the_engine_s_cap_counts_in_every_point(hitlab: Hitlab, here: Path) -> None:
    row = {"input_length": 600, "hash_ids": [1, 2]}
    Path("twice").write_text(2 * (json.dumps(row) + "\n"))
    command = ("sweep", "twice", "--policy", "lru,clock,unbounded,vllm", "--capacity", "40", "--json")
    for options, hit_tokens in (((), 600), (("--engine-cap",), 512)):
        points = points_of(hitlab(*command, *options).out)
        assert {name: each["cold_hit_tokens"] for (name, _), each in points.items()} == {
            **dict.fromkeys(("lru", "clock", "unbounded"), hit_tokens),
            "vllm": 512,
        }


def test_rates_by_hand() -> None:
    trace = Trace.of([(8, [1, 2]), (8, [1, 2]), (4, [1]), (0, [])], 4)
    result = replay.replay(trace, families.policy("lru"), 9)
    assert (result.tally.hit_rate, result.request_hit_rate()) == (12 / 20, 2 / 3)
    assert (result.tally_from(2).hit_rate, result.request_hit_rate(2)) == (1.0, 1.0)
    assert (result.tally_from(3).hit_rate, result.request_hit_rate(3)) == (None, None)


def test_belady_has_the_most_block_hits_and_unbounded_the_most_of_all(trace: Trace) -> None:
    blocks = Trace.of([(1, [block]) for block in trace.blocks.tolist()], 1)
    for capacity in (20, 100, 400):
        hits = {
            name: replay.replay(blocks, families.policy(name), capacity).tally.hit_tokens
            for name in families.names("policies")
        }
        assert max(hits, key=lambda name: hits[name]) == "unbounded"
        assert hits["belady"] == max(count for name, count in hits.items() if name != "unbounded")


@pytest.mark.parametrize("jobs", [1, 2])
def test_processes_that_map_the_trace_say_the_same(hitlab: Hitlab, chats: Path, here: Path, jobs: int) -> None:
    command = ("sweep", chats, "--policy", "s3fifo,vllm", "--capacity", "60:600:log3", "--engine-cap", "--json")
    assert hitlab(*command, "--jobs", jobs).out == hitlab(*command).out


def test_a_cluster_of_two_dask_workers_says_the_same(hitlab: Hitlab, chats: Path, here: Path) -> None:
    distributed = pytest.importorskip("distributed", reason="Dask is not installed: pip install 'hitlab[dask]'")
    command = ("sweep", chats, "--policy", "s3fifo,fifo", "--capacity", "60:600:log3", "--json")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
    ) as cluster:
        there = hitlab(*command, "--backend", "dask", "--scheduler", cluster.scheduler_address, "--work-folder", here)
    assert there.status == 0
    assert "Traceback" not in there.err
    assert there.out == hitlab(*command).out


def test_a_backend_that_is_not_there_is_one_line(hitlab: Hitlab, chats: Path, here: Path) -> None:
    for name in ("slurm", *(() if find_spec("ray") else ("ray",))):
        ran = hitlab("sweep", chats, "--policy", "fifo", "--capacity", "60", "--backend", name)
        assert (ran.status, ran.err.count("\n")) == (2, 1)
        assert name in ran.err


def test_a_mapped_trace_is_the_trace(trace: Trace, tmp_path: Path) -> None:
    mapped.save(trace, tmp_path)
    again = mapped.load(str(tmp_path))
    assert (again.block_tokens, again.distinct_blocks) == (trace.block_tokens, trace.distinct_blocks)
    for name in ("blocks", "starts", "prompt_tokens"):
        assert getattr(again, name).tolist() == getattr(trace, name).tolist()
        assert type(getattr(again, name)) is type(getattr(trace, name))
    assert mapped.digest(again) == mapped.digest(trace)
    assert mapped.digest(Trace.of([(1, [1])], 1)) != mapped.digest(Trace.of([(1, [1])], 2))


# Stopping and going on


def sweep_of(trace: Trace, *names: str, capacities: tuple[int, ...] = (60, 200)) -> sweep_runner.Sweep:
    return sweep_runner.Sweep(trace, [Choice.of(name) for name in names], capacities, 0, False, {})


def test_what_ctrl_c_leaves_is_kept_and_never_made_again(
    trace: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []

    def counted(*arguments: Any, **options: Any) -> replay.Replay:
        if arguments[0].requests:
            made.append(arguments[2])
            if len(made) == 3:
                raise KeyboardInterrupt
        return whole(*arguments, **options)

    whole = replay.replay
    monkeypatch.setattr(replay, "replay", counted)
    first = sweep_of(trace, "fifo", "clock")
    partial = sweep_runner.partial_file(tmp_path, first)
    with pytest.raises(KeyboardInterrupt):
        sweep_runner.run(first, Curves(trace), Workers(), partial, lambda done, total: None)
    assert len(first.ordered()) == 2
    partial.write_bytes(partial.read_bytes() + b'\n{"policy": "clock", "capa')  # and the power went out

    reports: list[tuple[int, int]] = []
    again = sweep_of(trace, "fifo", "clock")
    sweep_runner.run(again, Curves(trace), Workers(), partial, lambda done, total: reports.append((done, total)))
    assert made == [60, 200, 60, 60, 200]
    assert reports == [(3, 4), (4, 4)]
    assert not partial.exists()
    fresh = sweep_of(trace, "fifo", "clock")
    sweep_runner.run(fresh, Curves(trace), Workers(), partial, lambda done, total: None)
    assert again.ordered() == fresh.ordered()


def test_a_point_written_when_ctrl_c_comes_is_there(trace: Trace, tmp_path: Path) -> None:
    class Interrupted(dict[tuple[str, int], Point]):
        def __setitem__(self, key: tuple[str, int], value: Point) -> None:
            if self:
                raise KeyboardInterrupt
            super().__setitem__(key, value)

    wanted = sweep_of(trace, "fifo")
    wanted.points = Interrupted()
    partial = tmp_path / "partial"
    with pytest.raises(KeyboardInterrupt):
        sweep_runner.run(wanted, Curves(trace), Workers(), partial, lambda done, total: None)
    assert len(wanted.ordered()) == len(partial.read_bytes().split()) == 2


def test_another_trace_warm_up_or_way_to_count_is_another_partial_file(trace: Trace, tmp_path: Path) -> None:
    other = Trace.of([(1, [1])], 1)
    variants = [
        sweep_runner.Sweep(trace, [Choice.of("fifo")], (60,), 0, False, {}),
        sweep_runner.Sweep(other, [Choice.of("fifo")], (60,), 0, False, {}),
        sweep_runner.Sweep(trace, [Choice.of("fifo")], (60,), 7, False, {}),
        sweep_runner.Sweep(trace, [Choice.of("fifo")], (60,), 0, True, {}),
        sweep_runner.Sweep(trace, [Choice.of("clock")], (60,), 0, False, {}),
    ]
    assert len({sweep_runner.partial_file(tmp_path, each) for each in variants}) == len(variants)


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="needs POSIX signals")
def test_ctrl_c_in_a_terminal_prints_what_is_done_and_one_line(root: Path, chats: Path, here: Path) -> None:
    process = subprocess.Popen(
        [
            *(sys.executable, str(root / "run.py"), "sweep", str(chats), "--policy", "belady,sglang,arc", "--json"),
            *("--capacity", "100:30000:lin20000", "--jobs", "2"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )
    until = time.monotonic() + 60
    while not any(path.stat().st_size > 3000 for path in here.glob("results/*.partial.jsonl")):
        assert process.poll() is None and time.monotonic() < until
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    document = json.loads(out)
    assert (process.returncode, document["complete"]) == (130, False)
    assert err.splitlines()[-1].startswith("hitlab: interrupted, ")
    assert "Traceback" not in err
    (partial,) = here.glob("results/*.partial.jsonl")
    assert 0 < len(document["points"]) == len(partial.read_bytes().split())


# What is printed, written and drawn


def test_the_tables_fit_80_columns_and_name_their_rates(hitlab: Hitlab, chats: Path, here: Path) -> None:
    one = hitlab("sweep", chats, "--policy", "lru", "--capacity", "60,400", "--model", "llama-3.1-8b")
    every = hitlab("sweep", chats, "--policy", "all", "--capacity", "60,400", "--bytes-per-token", "1000")
    for ran in (one, every):
        assert ran.status == 0
        assert max(map(len, ran.out.splitlines())) <= 80
        assert "cold" in ran.out and "steady" in ran.out and "GiB" in ran.out
        assert "min(k*B, L)" in ran.out
    assert "requests" in one.out
    assert "token-weighted" in every.out
    assert all(name in every.out for name in families.names("policies"))
    capped = hitlab("sweep", chats, "--policy", "lru", "--capacity", "60", "--engine-cap")
    assert "floor((L-1)/B)*B" in capped.out


def test_memory_for_blocks_smaller_than_512_tokens_is_enough(hitlab: Hitlab, here: Path) -> None:
    Path("small").write_text('{"chat_id":1,"input_length":33,"hash_ids":[5,6,7]}\n')
    ran = hitlab("sweep", "small", "--policy", "lru", "--memory", "32MiB", "--model", "llama-3.1-8b", "--json")
    assert [capacity for _, capacity in points_of(ran.out)] == [16]


def test_no_name_and_no_number_is_folded(hitlab: Hitlab, chats: Path, here: Path) -> None:
    name = "s3fifo:max_freq=1:small_ratio=0.2" + 70 * "0" + "1"
    lists = ("all", f"lru,{name},fifo")
    for policies in lists:
        command = ("sweep", chats, "--policy", policies, "--capacity", "60,1000000000000", "--warmup", "0")
        ran = hitlab(*command, "--model", "llama-3.1-8b")
        assert ran.status == 0, ran.err
        lines = ran.out.splitlines()
        headings = [line.split() for line in lines if line.startswith("  ") and "blocks" in line]
        shown = [label for heading in headings for label in heading[2:]]
        assert shown == (families.names("policies") if policies == "all" else policies.split(","))
        for heading in headings:
            at = next(number for number, line in enumerate(lines) if line.split() == heading)
            rows = [line.split() for line in lines[at + 2 : at + 4]]
            assert [row[0] for row in rows] == ["60", "1,000,000,000,000"]
            assert all(len(row) == len(heading) for row in rows)
            assert all(cell[-3] == "." for row in rows for cell in row[2:])
    assert max(map(len, ran.out.splitlines())) > 80  # that name alone is as wide


def test_a_narrower_terminal_cuts_no_number(
    hitlab: Hitlab, chats: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = hitlab("sweep", chats, "--policy", "lru,fifo,arc,sieve", "--capacity", "60,400", "--warmup", "0")
    monkeypatch.setattr("hitlab.cli._options.console", lambda: Console(width=30, highlight=False, markup=False))
    narrow = hitlab("sweep", chats, "--policy", "lru,fifo,arc,sieve", "--capacity", "60,400", "--warmup", "0")
    row = next(line for line in wide.out.splitlines() if line.split()[:1] == ["400"])
    assert row in narrow.out


def test_who_wins_everywhere_is_said_for_each_policy_and_table(hitlab: Hitlab, chats: Path, here: Path) -> None:
    command = ("sweep", chats, "--capacity", "60,100", "--json")
    points = points_of(hitlab(*command, "--policy", "lru,belady,fifo").out)
    for phase in ("cold", "steady"):
        rates = {key: each[f"{phase}_token_hit_rate"] for key, each in points.items()}
        assert all(rates["belady", size] > rates["lru", size] > rates["fifo", size] for size in (60, 100))
    ran = hitlab(*command[:-1], "--policy", "belady,lru,fifo,unbounded")
    for said in ("belady beats lru at every capacity here", "lru beats fifo at every capacity here"):
        assert ran.out.splitlines().count(said) == 2
    assert "unbounded beats" not in ran.out
    without_lru = hitlab(*command[:-1], "--policy", "fifo,belady", "--warmup", "0")
    assert "belady beats fifo at every capacity here" in without_lru.out


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        ((0.2, 0.4), (0.1, 0.3), "a beats b at every capacity here"),
        ((0.1, 0.3), (0.2, 0.4), "b beats a at every capacity here"),
        ((0.1, 0.3), (0.2, 0.3), "b equals or beats a at every capacity here"),
        ((0.1, 0.3), (0.1, 0.3), "a and b hit the same at every capacity here"),
        ((0.1, 0.3, 0.5), (0.2, 0.3, 0.4), "b beats a up to 0 blocks and loses to it from 2"),
        ((0.1, 0.3, 0.5), (0.2, 0.1, 0.6), "a and b change places 2 times between 0 and 2 blocks"),
        ((), (), ""),
    ],
)
def test_two_policies_compared_in_a_sentence(one: tuple[float, ...], other: tuple[float, ...], said: str) -> None:
    points = [
        Point(policy, n, 0, 0, 0, rate, rate, 0, 0, rate, rate)
        for policy, rates in (("a", one), ("b", other))
        for n, rate in enumerate(rates)
    ]
    assert sweep.comparison(points, "a", "b", "cold_token_hit_rate") == said


def test_files_are_named_once_they_are_written(hitlab: Hitlab, chats: Path, here: Path) -> None:
    command = ("sweep", chats, "--policy", "lru,fifo", "--capacity", "60,400", "--json")
    ran = hitlab(*command, "--plot", "a.svg", "--csv", "a.csv", "--requests-out", "a.jsonl")
    assert all(
        f"{what}: {file}\n" in ran.err for what, file in (("plot", "a.svg"), ("csv", "a.csv"), ("requests", "a.jsonl"))
    )
    assert "plot: " not in hitlab(*command, "--plot", here / "missing" / "a.svg").err


def test_where_a_policy_and_lru_change_places_is_said(hitlab: Hitlab, shared: Path, here: Path) -> None:
    trace = shared / "traces" / "conversation_trace.jsonl"
    ran = hitlab("sweep", trace, "--policy", "s3fifo,lru", "--capacity", "6000:7400:lin8", "--warmup", "0")
    assert "s3fifo beats lru up to 6,600 blocks and loses to it from 6,800" in ran.out
    assert "steady" not in ran.out


def test_csv_has_every_field_of_every_point(hitlab: Hitlab, chats: Path, here: Path) -> None:
    command = ("sweep", chats, "--policy", "lru,fifo", "--capacity", "60,400", "--bytes-per-token", "10")
    ran = hitlab(*command, "--csv", here / "points.csv", "--json")
    rows = list(csv.DictReader(io.StringIO((here / "points.csv").read_text())))
    assert [row.pop("memory_bytes") for row in rows] == [str(blocks * 512 * 10) for blocks in (60, 400, 60, 400)]
    assert [{key: str(value) for key, value in each.items()} for each in json.loads(ran.out)["points"]] == rows


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_each_point_s_requests_add_up_to_it(hitlab: Hitlab, chats: Path, here: Path, ending: str) -> None:
    file = here / f"requests.{ending}"
    command = ("sweep", chats, "--policy", "lru,sieve", "--capacity", "60,400", "--json", "--requests-out", file)
    if ending == "parquet":
        parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed: pip install pyarrow")
    points = points_of(hitlab(*command).out)
    if ending == "parquet":
        rows = parquet.read_table(file).to_pylist()
    else:
        rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(rows) == 4 * 3068
    sums = dict.fromkeys(points, 0)
    for row in rows:
        sums[row["policy"], row["capacity_blocks"]] += row["hit_tokens"]
    assert sums == {key: each["cold_hit_tokens"] for key, each in points.items()}


def test_auto_goes_to_where_lru_hits_all_that_can_be_hit(hitlab: Hitlab, chats: Path, here: Path) -> None:
    points = points_of(hitlab("sweep", chats, "--policy", "lru,unbounded", "--json").out)
    sizes = sorted({capacity for _, capacity in points})
    assert 20 < len(sizes) <= 30
    rates = [points["lru", size]["cold_hit_tokens"] for size in sizes]
    assert rates[-2] < rates[-1] == points["unbounded", sizes[-1]]["cold_hit_tokens"]


@pytest.mark.parametrize("ending", ["svg", "png"])
def test_the_plot_names_each_line_and_both_axes(hitlab: Hitlab, chats: Path, here: Path, ending: str) -> None:
    file = here / f"curves.{ending}"
    command = ("sweep", chats, "--policy", "s3fifo,lru,belady", "--capacity", "60:900:log5", "--model", "qwen3-8b")
    assert hitlab(*command, "--plot", file).status == 0
    content = file.read_bytes()
    if ending == "png":
        assert content.startswith(b"\x89PNG")
    else:
        for text in (b"s3fifo", b"lru", b"belady", b"cache capacity (blocks)", b"KV memory (GiB)", b"token-weighted"):
            assert text in content


def test_a_plot_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    point = Point("lru", 10, 10, 1, 2, 0.5, 0.5, 1, 2, 0.5, 0.5)
    for path in (tmp_path / "missing" / "a.png", tmp_path / "a.docx"):
        with pytest.raises(InputError, match="can't be written"):
            sweep_plot.draw([point], path, title="")


def test_no_two_lines_look_alike() -> None:
    looks = [sweep_plot.style(number) for number in range(sweep_plot.MAX_LINES)]
    assert len({(look["color"], look["linestyle"], look["marker"]) for look in looks}) == sweep_plot.MAX_LINES
    policies = len(families.names("policies"))
    assert len({look["color"] for look in looks[:policies]}) == policies


def test_the_axis_says_1_2_5_steps_and_both_ends(tmp_path: Path) -> None:
    points = [Point("lru", size, 10, 1, 2, 0.5, 0.5, 1, 2, 0.5, 0.5) for size in (1000, 64_000)]
    sweep_plot.draw(points, tmp_path / "a.svg", title="", block_bytes=2**20)
    content = (tmp_path / "a.svg").read_text()
    for said in ("1,000", "2,000", "5,000", "10,000", "20,000", "64,000", "50"):
        assert f">{said}<" in content
    assert ">50,000<" not in content  # would run into 64,000


def test_tick_labels_never_meet() -> None:
    for first in (1, 7, 60, 999, 123_456):
        for last in (first, first + 1, 2 * first, 9 * first + 1, 640 * first, 10**6 * first, 10**9 * first):
            labels = sweep_plot.ticks(first, last)
            assert (labels[0] == first and labels[-1] == last) or last == first + 1
            assert labels == sorted(set(labels))
            assert sum(len(sweep_plot.number_text(each)) for each in labels) * 0.0155 < 1.5


def test_leads_to_names_never_cross(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.axes import Axes

    leads: list[tuple[float, float]] = []
    annotate = Axes.annotate

    def seen(self: Any, text: str, xy: Any, *arguments: Any, **options: Any) -> Any:
        if not text:
            leads.append((xy[1], options["xytext"][1]))
        return annotate(self, text, xy, *arguments, **options)

    monkeypatch.setattr(Axes, "annotate", seen)
    rates = [0.9, 0.1, 0.9, 0.89, 0.895, 0.5, 0.9, 0.91, 0.1]
    points = [
        Point(str(n), size, 0, 0, 0, rate, rate, 0, 0, rate, rate) for n, rate in enumerate(rates) for size in (10, 20)
    ]
    sweep_plot.draw(points, tmp_path / "a.svg", title="")
    assert sorted(leads) == leads
    places = [place for _, place in leads]
    assert places == sorted(set(places)) and len(places) == len(rates)


def test_labels_keep_their_gap_and_stay_below_the_top() -> None:
    places = sweep_plot.apart([9.0, 9.5, 10.0, 10.0], 1, 10)
    assert places == [7.0, 8.0, 9.0, 10.0]
    assert sweep_plot.apart([], 1, 10) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--capacity", "60", "--memory", "1GiB"), "both --capacity and --memory"),
        (("--memory", "1GiB"), "--memory needs to know"),
        (("--model", "qwen3-8b", "--bytes-per-token", "4"), "both --bytes-per-token and --model"),
        (("--bytes-per-token", "0"), "--bytes-per-token is 0; give 1 to"),
        (("--bytes-per-token", 10**400, "--capacity", "60"), "--bytes-per-token is 1000"),
        (("--memory", "1GiB:2GiB:log3", "--kv-bytes", "0", "--model", "llama-3.1-8b"), "--kv-bytes is 0; give 1 to"),
        (("--memory", "1GiB:2GiB:log3", "--kv-bytes", "-2", "--model", "llama-3.1-8b"), "--kv-bytes is -2; give 1 to"),
        (("--memory", f"1GiB:{'9' * 400}TB", "--model", "llama-3.1-8b"), "of memory; choose up to"),
        (("--model", ""), "no model named ''"),
        (("--capacity", "1:9999999999999999999999:log3"), "a capacity of 9999999999999999999999 blocks; choose 1 to"),
        (("--capacity", "9007199254740993"), "a capacity of 9007199254740993 blocks; choose 1 to"),
        (("--capacity", ""), "'' is no number of blocks"),
        (("--jobs", "0"), "--jobs is 0; give 1 or more"),
        (("--jobs", "-5"), "--jobs is -5; give 1 or more"),
        (("--policy", "lru, LRU"), "--policy has lru twice"),
        (("--policy", "s3fifo:max_freq=1,s3fifo,s3fifo:max-freq=1"), "--policy has s3fifo:max-freq=1 twice"),
        (
            ("--plot", "a.png", "--policy", ",".join(f"s3fifo:max_freq={n}" for n in range(1, 42))),
            "a plot of 41 policies; plot up to 40",
        ),
        (("--warmup", "1"), "a warm-up of 1.0"),
        (("--weight", "block"), "no weight named 'block'"),
        (("--policy", "mru"), "no policy named 'mru'"),
        (("--policy", "s3fifo:depth=1"), "has no option depth"),
        (("--policy", "s3fifo,lirs", "--capacity", "1,100"), "leave the small queue empty"),
    ],
)
def test_wrong_usage_is_one_line_before_the_trace_is_opened(
    hitlab: Hitlab, here: Path, arguments: tuple[str, ...], said: str
) -> None:
    ran = hitlab("sweep", here / "missing", *arguments)
    assert (ran.status, ran.out) == (2, "")
    assert said in ran.err


def test_no_place_for_finished_points_is_one_line(hitlab: Hitlab, chats: Path, here: Path) -> None:
    (here / "file").touch()
    ran = hitlab("sweep", chats, "--policy", "fifo", "--capacity", "60", "--out", here / "file" / "below")
    assert (ran.status, ran.err.count("\n")) == (1, 1)


def test_a_trace_without_requests_has_no_rates(hitlab: Hitlab, here: Path) -> None:
    (here / "empty").touch()
    ran = hitlab("sweep", "empty", "--policy", "lru,s3fifo", "--json")
    assert ran.status == 0
    assert ran.err == "no requests in the trace empty\n"
    assert {each["cold_token_hit_rate"] for each in points_of(ran.out).values()} == {None}
    assert hitlab("sweep", "empty", "--plot", "empty.svg").status == 0
