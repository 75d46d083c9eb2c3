"""How fast replay is, beside libcachesim's native loop and a loop that does almost nothing.

    pip install libcachesim
    python -m benchmarks.replay [path/to/conversation_trace.jsonl]

Ours counts everything that a replay does once the trace is read: making the cache, the kernel, hit tokens of every
request. The bare loop reads every id, as 32-bit integers, and bumps a byte. Exit status 1 if a bar is missed. The
bars are meant for Mooncake's conversation trace; without a trace the shipped example is replayed and judged by none.
"""

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.common import CHATS, HITLAB, arguments, command_cpu_seconds, cpu_seconds, in_turn, leave, ratio, target
from benchmarks.native import libcachesim_is_here, libcachesim_seconds, write_oracle_general
from hitlab import families
from hitlab.simulation import kernels, replay
from hitlab.simulation.policy import load_policy
from hitlab.traces.reader import read_trace
from hitlab.traces.trace import Trace

CAPACITY_BLOCKS = 4096
THEIRS = {"s3fifo": "S3FIFO", "lru": "LRU", "fifo": "FIFO", "lfu": "LFU"}


def ours(trace: Trace, name: str, capacity_blocks: int) -> Callable[[], float]:
    """A job: CPU of one replay, its kernel at hand."""
    policy = load_policy(name)
    kernel = kernels.kernel(policy)
    return lambda: cpu_seconds(lambda: replay.replay(trace, policy, capacity_blocks, kernel=kernel))


def bare_loop(trace: Trace) -> Callable[[], float]:
    import numba

    def bump(state: Any, ids: Any) -> None:
        for i in range(ids.size):
            state[ids[i]] += 1

    compiled: Any = numba.njit(bump)
    return lambda: cpu_seconds(lambda: compiled(np.zeros(trace.distinct_blocks, np.uint8), trace.blocks))


def main() -> None:
    options = arguments(__doc__, 9, with_trace=True)
    trace, judged = read_trace(options.trace), options.trace != CHATS
    jobs = {f"hitlab {name}": ours(trace, name, CAPACITY_BLOCKS) for name in families.names("policies")}
    with tempfile.TemporaryDirectory() as folder:
        if libcachesim_is_here():
            binary = Path(folder) / "trace.oracleGeneral"
            write_oracle_general(trace, binary)
            jobs |= {
                f"libcachesim {name}": libcachesim_seconds(binary, name, CAPACITY_BLOCKS) for name in THEIRS.values()
            }
        jobs["bare loop"] = bare_loop(trace)
        taken = in_turn(jobs, options.rounds, repeat=3)
    command = (*HITLAB, "replay", options.trace, "--capacity", CAPACITY_BLOCKS)
    taken |= in_turn(
        {
            "whole command": lambda: command_cpu_seconds(*command),
            "import numba": lambda: command_cpu_seconds(sys.executable, "-c", "import numba"),
        },
        min(options.rounds, 5),
    )
    print(f"{options.trace.name}: {trace.blocks.size:,} accesses, median of {options.rounds}\n")
    for name in jobs:
        print(f"{name:<34}{trace.blocks.size / median(taken[name]) / 1e6:>8.1f} M accesses a CPU second")
    print()
    bars = {"s3fifo": 20, "lru": 8}
    passed = [
        target(
            f"libcachesim / hitlab, {name}",
            ratio(taken, f"libcachesim {theirs}", f"hitlab {name}"),
            at_least=bar,
            judged=judged,
        )
        for name, bar in bars.items()
        if f"libcachesim {(theirs := THEIRS[name])}" in taken
    ]
    passed.append(target("s3fifo / bare loop", ratio(taken, "hitlab s3fifo", "bare loop"), at_most=15, judged=judged))
    passed.append(
        target(
            "whole command / import numba", ratio(taken, "whole command", "import numba"), at_most=2.5, judged=judged
        )
    )
    leave(passed)


if __name__ == "__main__":
    main()
