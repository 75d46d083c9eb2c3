"""How fast replay is, beside libcachesim's native loop and a loop that does almost nothing, in one run.

    pip install libcachesim
    python benchmarks/replay.py path/to/conversation_trace.jsonl

Every figure is the best of several runs, taken in turns. Ours count everything a replay does once the trace
is read: making the cache, the kernel, hit tokens per request. libcachesim's is `process_trace` alone (hash
power 18, a binary trace, no prefixes). The bare loop reads every id, as 32-bit integers, and bumps a byte.
Exit status 1 if a target is missed.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import libcachesim
import numba
import numpy as np

from hitlab import families
from hitlab.simulation import kernels, replay
from hitlab.traces.reader import read_trace
from hitlab.traces.trace import Trace

CAPACITY_BLOCKS = 4096
ROUNDS = 8
WHOLE_COMMAND = (
    "import sys; from hitlab.cli import build_app; build_app(('replay',))(sys.argv[1:], standalone_mode=False)"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    path: Path = parser.parse_args().trace
    began = time.perf_counter()
    trace = read_trace(path, 512)
    print(f"{path.name}: {trace.blocks.size:,} accesses, read in {time.perf_counter() - began:.3f} s")

    with tempfile.TemporaryDirectory() as folder:
        binary = Path(folder) / "trace.oracleGeneral"
        write_oracle_general(trace, binary)
        runs = {f"hitlab {name}": ours(trace, name) for name in families.names("policies")}
        runs |= {f"libcachesim {name}": theirs(binary, name) for name in ("S3FIFO", "LRU", "FIFO", "LFU")}
        runs["bare loop"] = bare_loop(trace)
        seconds = best_seconds(runs)

    for name, each in seconds.items():
        print(f"{name:<20}{trace.blocks.size / each / 1e6:>9.1f} M accesses/s")
    print()
    whole = whole_command_cpu_seconds(path)
    passed = [
        target("s3fifo / libcachesim", seconds["libcachesim S3FIFO"] / seconds["hitlab s3fifo"], at_least=20),
        target("lru / libcachesim", seconds["libcachesim LRU"] / seconds["hitlab lru"], at_least=8),
        target("s3fifo time / bare loop", seconds["hitlab s3fifo"] / seconds["bare loop"], at_most=15),
        target("whole command, CPU s", whole, at_most=1.0),
    ]
    sys.exit(0 if all(passed) else 1)


def ours(trace: Trace, name: str) -> Callable[[], object]:
    policy = families.policy(name)
    kernel = kernels.kernel(policy)
    return lambda: replay.replay(trace, policy, CAPACITY_BLOCKS, kernel=kernel)


def theirs(binary: Path, name: str) -> Callable[[], object]:
    """A fresh cache and reader each time; making them is not counted (see best_seconds)."""

    def prepared() -> Callable[[], object]:
        cache: Any = getattr(libcachesim, name)(CAPACITY_BLOCKS, hashpower=18)
        reader: Any = libcachesim.TraceReader(str(binary), libcachesim.TraceType.ORACLE_GENERAL_TRACE)
        return lambda: cache.process_trace(reader)

    return prepared


def bare_loop(trace: Trace) -> Callable[[], object]:
    @numba.njit
    def bump(state: Any, ids: Any) -> None:
        for i in range(ids.size):
            state[ids[i]] += 1

    return lambda: bump(np.zeros(trace.distinct_blocks, np.uint8), trace.blocks)


def best_seconds(runs: dict[str, Callable[[], object]]) -> dict[str, float]:
    """The shortest of several runs of each; a run that returns a function wants that one timed."""
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(ROUNDS):
        for name, run in runs.items():
            for _ in range(3):  # in a row, so that none pays for what the one before it left in the CPU's caches
                timed = run() if name.startswith("libcachesim") else run
                assert callable(timed)
                began = time.perf_counter()
                timed()
                best[name] = min(best[name], time.perf_counter() - began)
    return best


def write_oracle_general(trace: Trace, path: Path) -> None:
    """libcachesim's own binary format: time, object, size, next access."""
    row = np.dtype([("time", "<u4"), ("object", "<u8"), ("size", "<u4"), ("next", "<i8")])
    rows = np.zeros(trace.blocks.size, row)
    rows["object"], rows["size"], rows["next"] = trace.blocks, 1, -1
    rows.tofile(path)


def whole_command_cpu_seconds(path: Path) -> float:
    """CPU of `replay` in a process of its own, kernels cached: the best of three."""
    command = [sys.executable, "-c", WHOLE_COMMAND, "replay", str(path), "--capacity", str(CAPACITY_BLOCKS)]
    best = float("inf")
    for _ in range(4):  # the first may compile
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=os.environ)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        best = min(best, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return best


def target(name: str, value: float, *, at_least: float = 0, at_most: float = float("inf")) -> bool:
    good = at_least <= value <= at_most
    wanted = f"at least {at_least:g}" if at_least else f"at most {at_most:g}"
    print(f"{name:<26}{value:>8.2f}   {wanted:<14}{'ok' if good else 'MISSED'}")
    return good


if __name__ == "__main__":
    main()
