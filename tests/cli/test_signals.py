"""SIGTERM and SIGHUP end a command as Ctrl-C does: what was measured is kept, one line says so, and no noise."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from hitlab.results import store
from hitlab.servers.emulated import server as emulate
from hitlab.servers.emulated.config import Faults

STOPS = [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
# Runs the rest of the command line with the signals of its first argument ignored, as nohup and a shell's & do.
IGNORING = """
import os, signal, sys
for number in sys.argv[1].split(","):
    signal.signal(int(number), signal.SIG_IGN)
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""
# Runs the rest of the command line with its stdin as the terminal that controls it.
IN_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(root: Path) -> Iterator[Start]:
    """Start `hitlab ARGUMENTS` in a process of its own, which does not outlive the test."""
    processes: list[subprocess.Popen[str]] = []

    def run(*arguments: object, ignoring: tuple[int, ...] = ()) -> "subprocess.Popen[str]":
        before = ["-c", IGNORING, ",".join(map(str, map(int, ignoring)))] if ignoring else []
        words = [sys.executable, *before, str(root / "run.py"), *map(str, arguments)]
        processes.append(
            subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
        )
        return processes[-1]

    yield run
    for each in processes:
        with suppress(ProcessLookupError):
            os.killpg(each.pid, signal.SIGKILL)
        each.communicate()


@contextmanager
def hanging(post: int) -> Iterator[emulate.EmulatedServer]:
    """A server that holds a POST back; the block begins before it is sent."""
    with emulate.start("vllm", faults=Faults(hang_post=post)) as server:
        try:
            yield server
        finally:
            server.release()


def ended(process: "subprocess.Popen[str]") -> tuple[int, str, list[str]]:
    """Exit status, stdout and the lines of stderr, none of which is noise."""
    out, err = process.communicate(timeout=60)
    for noise in ("Traceback", "Task ", "never awaited", "Exception ignored", "Warning"):
        assert noise not in err
    return process.returncode, out, err.splitlines()


def measured(folder: Path) -> list[str]:
    (kept,) = folder.glob("*-incomplete.json")
    found = json.loads(kept.read_text())
    assert not found["complete"]
    return [phase["name"] for phase in found["phases"]]


# Posts 1 and 2 try the reset out, then come 64 cold and warm ones; 75 is of the broken pass.
MEASURE = ("measure", "--engine", "vllm", "--break-mode", "salt", "--base-url")


@pytest.mark.parametrize(("number", "status"), STOPS)
def test_measure_keeps_the_phases_it_has(start: Start, tmp_path: Path, number: int, status: int) -> None:
    with hanging(75) as server:
        process = start(*MEASURE, server.base_url, "--out", tmp_path)
        assert server.hanging.wait(60)
        process.send_signal(number)
        left, out, lines = ended(process)
    assert (left, out, measured(tmp_path)) == (status, "", ["cold", "warm"])
    (kept,) = tmp_path.iterdir()
    assert lines[-1] == f"hitlab: interrupted; what was measured is in {kept}"


def test_signals_of_one_burst_as_a_closing_terminal_sends_them_count_once(start: Start, tmp_path: Path) -> None:
    with hanging(75) as server:
        process = start(*MEASURE, server.base_url, "--out", tmp_path)
        assert server.hanging.wait(60)
        process.send_signal(signal.SIGSTOP)  # so that they arrive together however busy the machine is
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCONT):
            os.killpg(process.pid, number)
        left, _, _ = ended(process)
    assert (left in (143, 129), measured(tmp_path)) == (True, ["cold", "warm"])


def test_measure_in_the_background_of_a_script_where_ctrl_c_is_ignored_ends_in_order(
    start: Start, tmp_path: Path
) -> None:
    with hanging(75) as server:
        process = start(*MEASURE, server.base_url, "--out", tmp_path, ignoring=(signal.SIGINT,))
        assert server.hanging.wait(60)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        left, _, lines = ended(process)
    assert (left, measured(tmp_path)) == (143, ["cold", "warm"])
    assert lines[-1].startswith("hitlab: interrupted; what was measured is in ")


def test_measure_under_nohup_goes_on_after_the_terminal_is_gone(start: Start, tmp_path: Path) -> None:
    with hanging(75) as server:
        process = start(*MEASURE, server.base_url, "--out", tmp_path, ignoring=(signal.SIGHUP,))
        assert server.hanging.wait(60)
        process.send_signal(signal.SIGHUP)
        server.release()
        left, _, lines = ended(process)
    (kept,) = tmp_path.iterdir()
    assert (left, lines[-1], json.loads(kept.read_text())["complete"]) == (0, f"result: {kept}", True)


def test_nothing_measured_yet_is_said(start: Start, tmp_path: Path) -> None:
    with hanging(2) as server:
        process = start(*MEASURE, server.base_url, "--out", tmp_path)
        assert server.hanging.wait(60)
        process.send_signal(signal.SIGTERM)
        left, _, lines = ended(process)
    assert (left, lines[-1]) == (143, "hitlab: interrupted; nothing had been measured yet")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("number", "status"), STOPS)
def test_lab_keeps_the_points_it_has(start: Start, tmp_path: Path, number: int, status: int) -> None:
    with hanging(30) as server:
        process = start("lab", "run", "hit-rate", "--engine", "vllm", "--base-url", server.base_url, "--out", tmp_path)
        assert server.hanging.wait(60)
        process.send_signal(number)
        left, _, lines = ended(process)
    (kept,) = store.kept_labs(tmp_path)
    assert (left, lines[-1]) == (status, f"hitlab: interrupted; what was measured is in {kept}")
    assert 0 < sum(len(part.trials) for part in store.load_lab(kept).parts) < 7
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".json", ".png", ".svg"]


@pytest.mark.parametrize(("number", "status"), STOPS)
def test_record_keeps_the_sequences_it_has(start: Start, tmp_path: Path, number: int, status: int) -> None:
    tape = tmp_path / "tape.json"
    with hanging(20) as server:
        process = start("record", "--engine", "vllm", "--base-url", server.base_url, "--requests", 10, "-o", tape)
        assert server.hanging.wait(60)
        process.send_signal(number)
        left, _, lines = ended(process)
    assert (left, lines[-1]) == (status, f"hitlab: interrupted; finished sequences: 1, in {tape}")
    assert [len(each["requests"]) for each in json.loads(tape.read_text())["sequences"]] == [10]


@pytest.mark.parametrize(("number", "status"), STOPS)
def test_sweep_keeps_its_points_and_leaves_the_files_of_a_whole_one(
    start: Start, root: Path, tmp_path: Path, number: int, status: int
) -> None:
    (tmp_path / "results").mkdir()
    csv, plot = tmp_path / "points.csv", tmp_path / "points.svg"
    csv.write_text("yesterday's")
    process = start(
        *("sweep", root / "examples" / "chats.jsonl.gz", "--policy", "belady", "--capacity", "100:30000:lin20000"),
        *("--jobs", "1", "--json", "--csv", csv, "--force", "--plot", plot, "--out", tmp_path / "results"),
    )
    while not any(path.stat().st_size > 3000 for path in (tmp_path / "results").iterdir()):
        assert process.poll() is None
    os.killpg(process.pid, number)
    left, out, lines = ended(process)
    document = json.loads(out)
    assert (left, document["complete"]) == (status, False)
    assert lines[-1].startswith(f"hitlab: interrupted, {len(document['points'])} of 20,000 points are kept in ")
    assert f", and not written to {csv} and {plot}; " in lines[-1]
    assert (csv.read_text(), plot.exists()) == ("yesterday's", False)


@pytest.mark.parametrize("number", [number for number, _ in STOPS])
def test_serve_ends_with_one_word(start: Start, number: int) -> None:
    process = start("serve", "--engine", "vllm", "--emulate", "--port", "0")
    assert process.stdout
    assert process.stdout.readline().startswith("EMULATED vllm serves at ")
    assert process.stdout.readline().startswith("measure it: ")
    process.send_signal(number)
    assert ended(process) == (0, "stopped\n", [])


@pytest.mark.parametrize("number", [number for number, _ in STOPS])
def test_watch_ends_with_its_summary(start: Start, number: int) -> None:
    with emulate.start("vllm") as server:
        process = start("watch", "--engine", "vllm", "--base-url", server.base_url, "--interval", "0.05", "--json")
        assert process.stdout
        assert json.loads(process.stdout.readline())["kind"] == "interval"
        process.send_signal(number)
        left, _, lines = ended(process)
    assert left == 0
    assert lines[-1].endswith(": no prompt tokens")


PLAIN = """
import signal, sys
from hitlab.cli import check, main

def interrupted():
    signal.raise_signal(int(sys.argv[1]))

check.page_values = interrupted
main(["check"])
"""


@pytest.mark.parametrize(("number", "status"), STOPS)
def test_command_with_nothing_to_keep_says_that_it_was_interrupted(root: Path, number: int, status: int) -> None:
    words = [sys.executable, "-c", PLAIN, str(int(number))]
    ran = subprocess.run(words, cwd=root, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr.strip()) == (status, "", "hitlab: interrupted")


def test_terminal_that_closes_leaves_the_result(root: Path, tmp_path: Path) -> None:
    """Whatever is printed fails from then on; the terminal's own signals come several times."""
    ours, theirs = os.openpty()
    with hanging(75) as server:
        words = [
            sys.executable,
            "-c",
            IN_TERMINAL,
            str(root / "run.py"),
            *MEASURE,
            server.base_url,
            "--out",
            str(tmp_path),
        ]
        stream: Any = theirs
        with subprocess.Popen(words, stdin=stream, stdout=stream, stderr=stream, start_new_session=True) as process:
            os.close(theirs)
            assert server.hanging.wait(60)
            os.close(ours)
            assert process.wait(60) == 129
    assert measured(tmp_path) == ["cold", "warm"]


STUBBORN = """
from hitlab.cli import _signals
import os, signal
with _signals.handled() as stops:
    try:
        print("begun", flush=True)
        while True:
            signal.pause()
    except KeyboardInterrupt:
        print("stopping", flush=True)
        while True:
            signal.pause()
"""


@pytest.mark.parametrize(("number", "status"), STOPS)
def test_second_signal_ends_at_once(root: Path, number: int, status: int) -> None:
    words = [sys.executable, "-c", STUBBORN]
    with subprocess.Popen(words, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout and process.stderr
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "stopping\n"
        while process.poll() is None:  # those of the first one's burst are of no consequence
            process.send_signal(number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.1)
        assert (process.returncode, process.stdout.read(), process.stderr.read()) == (status, "", "")


HELD = """
from hitlab.cli import _signals
import signal
with _signals.handled() as stops:
    try:
        with _signals.held():
            signal.raise_signal(signal.SIGTERM)
            print("held", flush=True)
        print("never", flush=True)
    except KeyboardInterrupt:
        print("stopped", stops.status, flush=True)
print(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)
"""


def test_signal_while_a_result_is_saved_waits_until_it_is(root: Path) -> None:
    ran = subprocess.run([sys.executable, "-c", HELD], cwd=root, capture_output=True, text=True, check=True)
    assert ran.stdout == "held\nstopped 143\nTrue\n"


IN_A_LOOP = """
import asyncio, signal
from hitlab.cli import _signals

async def main():
    try:
        signal.raise_signal(signal.SIGTERM)
        await asyncio.sleep(3600)
    finally:
        await asyncio.sleep(0)
        print("unwound", flush=True)

async def done():
    signal.raise_signal(signal.SIGTERM)
    print("done", flush=True)

for each in (main, done):
    with _signals.handled() as stops:
        try:
            with _signals.Loop() as loop:
                loop.run(each())
            print("never", flush=True)
        except KeyboardInterrupt:
            print("stopped", stops.status, flush=True)
"""


def test_loop_is_unwound_and_no_signal_is_forgotten(root: Path) -> None:
    ran = subprocess.run([sys.executable, "-c", IN_A_LOOP], cwd=root, capture_output=True, text=True, check=True)
    assert (ran.stdout, ran.stderr) == ("unwound\nstopped 143\ndone\nstopped 143\n", "")


LOST = """
import ctypes, gc, signal, sys, threading, weakref
from hitlab.cli import _signals

class Thing:
    def __del__(self):
        if sys.argv[1] == "del":
            signal.raise_signal(signal.SIGTERM)

@ctypes.CFUNCTYPE(None)
def called_from_c():
    signal.raise_signal(signal.SIGTERM)
    print("never", flush=True)

with _signals.handled() as stops:
    try:
        sys.argv[1] == "c" and called_from_c()
        if sys.argv[1] == "weak":
            thing = Thing()
            weak = weakref.ref(thing, lambda _: signal.raise_signal(signal.SIGTERM))
        thing = None if sys.argv[1] == "weak" else Thing()
        del thing
        print("goes on", flush=True)
        threading.Event().wait(60)
        print("never", flush=True)
    except KeyboardInterrupt:
        print("stopped", stops.status, flush=True)
print(sys.unraisablehook is sys.__unraisablehook__, threading.active_count())
"""


@pytest.mark.parametrize("where", ["c", "del", "weak"])
def test_signal_where_python_can_raise_nothing_stops_the_command_right_after(root: Path, where: str) -> None:
    ran = subprocess.run([sys.executable, "-c", LOST, where], cwd=root, capture_output=True, text=True, check=True)
    assert (ran.stdout.removeprefix("goes on\n"), ran.stderr) == ("stopped 143\nTrue 1\n", "")


COMPILING = """
import signal
from hitlab.cli import _signals
from hitlab.simulation import kernel_store
import numba
from numba.core import event

class Listener(event.Listener):
    def on_start(self, event):
        signal.raise_signal(signal.SIGTERM)
        print("compiling", flush=True)

    def on_end(self, event):
        pass

double = numba.njit(lambda x: 2 * x)
with _signals.handled() as stops:
    try:
        with kernel_store.undisturbed(_signals.held), event.install_listener("numba:compile", Listener()):
            double(4)
            print("never", flush=True)
    except KeyboardInterrupt:
        print("stopped", stops.status, len(double.signatures))
print(double(21))
"""


def test_signal_while_a_kernel_is_compiled_waits_until_it_is(root: Path) -> None:
    ran = subprocess.run([sys.executable, "-c", COMPILING], cwd=root, capture_output=True, text=True, check=True)
    assert (ran.stdout, ran.stderr) == ("compiling\nstopped 143 1\n42\n", "")
