"""How fast policies, LRU's whole curve and a whole sweep are, beside native simulators, in one run.

    pip install libcachesim kvcache-simulator
    python -m benchmarks.sweep path/to/conversation_trace.jsonl

Ours count everything a replay does once the trace is read. libcachesim's is `process_trace` alone (hash power 18, a
binary trace, no prefixes). kvcache-simulator is its C++ core, compiled -O3 as it does itself: of one run's time for
one capacity and for many, the difference, so that its reading and its trie are not counted. Exit status 1 if a
target is missed.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.replay import best_seconds, target, theirs, write_oracle_general
from hitlab import families
from hitlab.simulation import kernels, replay
from hitlab.simulation.hit_curve import lru_curve
from hitlab.traces.reader import read_trace
from hitlab.traces.trace import Trace

CAPACITY_BLOCKS = 11_275
THEIRS = {
    "2q": "TwoQ",
    "arc": "ARC",
    "belady": "Belady",
    "clock": "Clock",
    "fifo": "FIFO",
    "lfu": "LFU",
    "lirs": "LIRS",
    "lru": "LRU",
    "s3fifo": "S3FIFO",
    "sieve": "Sieve",
}
GRID = ("--capacity", "1000:100000:log30")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    path: Path = parser.parse_args().trace
    trace = read_trace(path)
    passed = []
    with tempfile.TemporaryDirectory() as folder:
        binary = Path(folder) / "trace.oracleGeneral"
        write_oracle_general(trace, binary)
        add_next_accesses(trace, binary)
        runs: dict[str, Callable[[], object]] = {}
        for name in families.names("policies"):
            runs[name] = ours(trace, name)
            if name in THEIRS:
                runs[f"libcachesim {name}"] = theirs(binary, THEIRS[name])
        runs["LRU's whole curve"] = lambda: lru_curve(trace)
        seconds = best_seconds(runs)
        for name, each in seconds.items():
            print(f"{name:<20}{1000 * each:>9.2f} ms{trace.blocks.size / each / 1e6:>9.1f} M blocks/s")
        print()
        for name in THEIRS:
            ratio = seconds[f"libcachesim {name}"] / seconds[name]
            passed.append(target(f"{name} / libcachesim", ratio, at_least=20 if name == "s3fifo" else 5))
        curve_ratio = seconds["LRU's whole curve"] / seconds["lru"]
        passed.append(target("whole curve / lru replay", curve_ratio, at_most=3))
        core = kvcache_simulator_seconds(trace, Path(folder))
        if core is not None:
            passed.append(target("lru / kvcache-simulator", core / seconds["lru"], at_least=10))
        passed.append(target("10 policies x 30, s", sweep_seconds(path, Path(folder)), at_most=10))
    sys.exit(0 if all(passed) else 1)


def ours(trace: Trace, name: str) -> Callable[[], object]:
    policy = families.policy(name)
    kernel = kernels.kernel(policy)
    return lambda: replay.replay(trace, policy, CAPACITY_BLOCKS, kernel=kernel)


def add_next_accesses(trace: Trace, path: Path) -> None:
    """Belady's needs them."""
    row = np.dtype([("time", "<u4"), ("object", "<u8"), ("size", "<u4"), ("next", "<i8")])
    rows = np.fromfile(path, row)
    order = np.argsort(trace.blocks, kind="stable")
    again = trace.blocks[order][1:] == trace.blocks[order][:-1]
    rows["next"][order[:-1][again]] = order[1:][again] + 1
    rows.tofile(path)


def kvcache_simulator_seconds(trace: Trace, folder: Path) -> float | None:
    """Seconds one LRU replay takes its C++ core; None where it is not installed."""
    try:
        from kvcache_sim import cpp_backend  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        print("kvcache-simulator is not installed: not compared")
        return None
    if shutil.which("c++") is None:
        print("no C++ compiler: kvcache-simulator is not compared")
        return None
    core = str(cpp_backend.ensure_cpp_simulator())
    lengths = np.diff(trace.starts)
    place = np.arange(trace.blocks.size) - np.repeat(trace.starts[:-1], lengths)
    prompts = np.repeat(trace.prompt_tokens, lengths)
    tokens = np.clip(prompts - place * trace.block_tokens, 1, trace.block_tokens)
    trace.blocks.astype(np.uint32).tofile(folder / "ids")
    tokens.astype(np.uint16).tofile(folder / "tokens")
    trace.starts[1:].astype(np.uint32).tofile(folder / "ends")

    def seconds(replays: int) -> float:
        command: list[Any] = [core, "--policy", "batch", "--policies", "lru"]
        command += ["--ids", folder / "ids", "--tokens", folder / "tokens", "--request-ends", folder / "ends"]
        command += ["--total-blocks", trace.blocks.size, "--request-count", trace.requests]
        command += ["--warmup-requests", trace.requests // 2]
        command += ["--capacities", ",".join(str(CAPACITY_BLOCKS + i) for i in range(replays))]
        began = time.perf_counter()
        done = subprocess.run(list(map(str, command)), check=True, capture_output=True)
        took = time.perf_counter() - began
        first = json.loads(done.stdout)["points"][0]["lru"]["hitRate"]
        expected = replay.replay(trace, families.policy("lru"), CAPACITY_BLOCKS).tally_from(trace.requests // 2)
        assert expected.hit_rate is not None and abs(first - expected.hit_rate) < 1e-9, "not the same replay"
        return took

    return median((seconds(11) - seconds(1)) / 10 for _ in range(5))


def sweep_seconds(path: Path, folder: Path) -> float:
    """The whole command: 10 policies, 30 capacities, table and CSV; the best of three, kernels cached."""
    command = [sys.executable, "-c", "from hitlab.cli import main; main()", "sweep", str(path)]
    command += ["--policy", ",".join(THEIRS), *GRID, "--csv", str(folder / "points.csv"), "--out", str(folder)]
    best = float("inf")
    for _ in range(3):
        began = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        best = min(best, time.perf_counter() - began)
    return best


if __name__ == "__main__":
    main()
