"""What all benchmarks share: CPU seconds of a job or a command, jobs in turn, medians of ratios, the machine.

CPU seconds (user and system) and not seconds by the clock, because other processes slow the clock down more than the
CPU. Ratios are taken inside each round, of jobs that ran one right after the other, and their median is reported.
"""

import argparse
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
HITLAB = (sys.executable, str(ROOT / "run.py"))
CHATS = ROOT / "examples" / "chats.jsonl.gz"

Rounds = dict[str, list[float]]  # CPU seconds of each job, a number a round


def arguments(doc: str | None, rounds: int, *, with_trace: bool = False) -> argparse.Namespace:
    """The command line: `rounds`, and `trace` if asked for."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=rounds, help=f"how often each side is run (default: {rounds})")
    if with_trace:
        parser.add_argument("trace", type=Path, nargs="?", default=CHATS, help="default: the shipped example")
    return parser.parse_args()


def machine() -> str:
    """One line that says what the figures were taken on."""
    model = next(
        (line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.machine(),
    )
    return f"{os.cpu_count()} cores of {model}, {platform.system()}, Python {platform.python_version()}"


def _lines(path: str) -> list[str]:
    file = Path(path)
    return file.read_text().splitlines() if file.is_file() else []


def cpu_seconds(job: Callable[[], object]) -> float:
    """CPU that a job takes in this process."""
    before = time.process_time()
    job()
    return time.process_time() - before


def command_cpu_seconds(*command: object) -> float:
    """CPU that a command takes in a process of its own, and in those it starts. Raises if it fails."""
    before = getrusage(RUSAGE_CHILDREN)
    subprocess.run(
        [str(word) for word in command],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
    )
    after = getrusage(RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def in_turn(jobs: Mapping[str, Callable[[], float]], rounds: int, repeat: int = 1) -> Rounds:
    """CPU seconds of each job in each round; a job measures itself and returns its CPU seconds.

    One round more is run first and forgotten: it fills caches and compiles. Of `repeat` runs in a row the least counts,
    so that no job pays for what the one before it left in the CPU's caches.
    """
    taken: Rounds = {name: [] for name in jobs}
    for number in range(rounds + 1):
        for name, job in jobs.items():
            seconds = min(job() for _ in range(repeat))
            if number:
                taken[name].append(seconds)
    return taken


def ratio(taken: Rounds, over: str, under: str) -> float:
    """Median over the rounds of one job's CPU seconds over another's."""
    return median(top / bottom for top, bottom in zip(taken[over], taken[under], strict=True))


def target(name: str, value: float, *, at_least: float = 0, at_most: float = float("inf"), judged: bool = True) -> bool:
    """Print a ratio beside its bar, if it has one and is judged by it; whether it holds."""
    if not judged:
        at_least, at_most = 0, float("inf")
    good = at_least <= value <= at_most
    wanted = f"at least {at_least:g}" if at_least else f"at most {at_most:g}" if at_most < float("inf") else ""
    print(f"{name:<34}{value:>8.2f}   {wanted:<14}{'' if not wanted else 'ok' if good else 'MISSED'}".rstrip())
    return good


def leave(passed: Sequence[bool]) -> None:
    """Print the machine and end with status 0, or 1 if a bar is missed."""
    print(f"\n{machine()}")
    sys.exit(0 if all(passed) else 1)
