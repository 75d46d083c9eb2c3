"""A sweep that is stopped keeps its points, and none is made twice."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from helpers import Hitlab

from hitlab.simulation import replay, sweep_runner
from hitlab.simulation.hit_curve import Curves
from hitlab.simulation.policy import Choice
from hitlab.simulation.sweep import Point
from hitlab.simulation.workers import Workers
from hitlab.traces.trace import Trace


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
    partial.unlink()
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
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_signal_to_all_processes_prints_what_is_done_and_one_line_and_ends_them_all(
    root: Path, chats: Path, here: Path, number: int, status: int
) -> None:
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
    os.killpg(process.pid, number)
    out, err = process.communicate(timeout=60)  # to the end of stderr, which each of the processes holds open
    document = json.loads(out)
    assert (process.returncode, document["complete"]) == (status, False)
    assert err.splitlines()[-1].startswith("hitlab: interrupted, ")
    assert "Traceback" not in err
    (partial,) = here.glob("results/*.partial.jsonl")
    assert 0 < len(document["points"]) == len(partial.read_bytes().split())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux only")
def test_points_and_files_survive_a_screen_that_takes_no_more(root: Path, chats: Path, here: Path) -> None:
    command = (sys.executable, root / "run.py", "sweep", chats, "--policy", "fifo", "--capacity", "60,200", "--csv")
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run([*command, "points.csv"], check=False, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (ran.returncode, len(ran.stderr.splitlines())) == (1, 2), ran.stderr
    assert len((here / "points.csv").read_text().splitlines()) == 3
    (partial,) = here.glob("results/*.partial.jsonl")
    assert len(partial.read_bytes().split()) == 2


def test_no_place_for_finished_points_is_one_line(hitlab: Hitlab, chats: Path, here: Path) -> None:
    (here / "file").touch()
    ran = hitlab("sweep", chats, "--policy", "fifo", "--capacity", "60", "--out", here / "file" / "below")
    assert (ran.status, ran.err.count("\n")) == (1, 1)
