"""The other side of replay and sweep: native simulators, where they are installed, on the same trace."""

import json
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.common import cpu_seconds
from hitlab.simulation import replay
from hitlab.simulation.policy import load_policy
from hitlab.traces.trace import Trace

_ROW = np.dtype([("time", "<u4"), ("object", "<u8"), ("size", "<u4"), ("next", "<i8")])


def libcachesim_is_here() -> bool:
    """Whether it can be imported; says so if not."""
    try:
        import libcachesim  # noqa: F401
    except ImportError:
        print("libcachesim is not installed: not compared (pip install libcachesim)")
        return False
    return True


def libcachesim_seconds(binary: Path, name: str, capacity_blocks: int) -> Callable[[], float]:
    """A job: CPU of `process_trace` alone, on a fresh cache of hash power 18 and a fresh reader, no prefixes."""
    import libcachesim

    def job() -> float:
        cache: Any = getattr(libcachesim, name)(capacity_blocks, hashpower=18)
        reader: Any = libcachesim.TraceReader(str(binary), libcachesim.TraceType.ORACLE_GENERAL_TRACE)
        return cpu_seconds(lambda: cache.process_trace(reader))

    return job


def write_oracle_general(trace: Trace, path: Path) -> None:
    """libcachesim's own binary format: time, object, size, next access (which Belady's needs)."""
    rows = np.zeros(trace.blocks.size, _ROW)
    rows["object"], rows["size"], rows["next"] = trace.blocks, 1, -1
    order = np.argsort(trace.blocks, kind="stable")
    again = trace.blocks[order][1:] == trace.blocks[order][:-1]
    rows["next"][order[:-1][again]] = order[1:][again] + 1
    rows.tofile(path)


def kvcache_simulator_seconds(trace: Trace, capacity_blocks: int, folder: Path, rounds: int) -> float | None:
    """Seconds that one LRU replay takes kvcache-simulator's C++ core; None where it is not installed.

    Compiled -O3, as it does itself. Of the time of one run with one capacity and one with eleven, the difference: its
    reading and its trie are not counted. First makes sure that it and hitlab find the same hit rate.
    """
    try:
        from kvcache_sim import cpp_backend  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        print("kvcache-simulator is not installed: not compared (pip install kvcache-simulator)")
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
        command += ["--capacities", ",".join(str(capacity_blocks + i) for i in range(replays))]
        began = time.perf_counter()
        done = subprocess.run(list(map(str, command)), check=True, capture_output=True)
        took = time.perf_counter() - began
        first = json.loads(done.stdout)["points"][0]["lru"]["hitRate"]
        expected = replay.replay(trace, load_policy("lru"), capacity_blocks).tally_from(trace.requests // 2)
        assert expected.hit_rate is not None and abs(first - expected.hit_rate) < 1e-9, "not the same replay"
        return took

    return median((seconds(11) - seconds(1)) / 10 for _ in range(rounds))
