"""How fast policies, LRU's whole curve and a whole sweep are, beside native simulators.

    pip install libcachesim kvcache-simulator
    python -m benchmarks.sweep [path/to/conversation_trace.jsonl]

Ours count everything that a replay does once the trace is read. Exit status 1 if a bar is missed. The bars are
meant for Mooncake's conversation trace; without a trace the shipped example is replayed and judged by none.
"""

import tempfile
from pathlib import Path
from statistics import median

from benchmarks.common import CHATS, HITLAB, arguments, command_cpu_seconds, cpu_seconds, in_turn, leave, ratio, target
from benchmarks.native import (
    kvcache_simulator_seconds,
    libcachesim_is_here,
    libcachesim_seconds,
    write_oracle_general,
)
from benchmarks.replay import ours
from hitlab import families
from hitlab.simulation.hit_curve import lru_curve
from hitlab.traces.reader import read_trace

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
    options = arguments(__doc__, 9, with_trace=True)
    trace, judged = read_trace(options.trace), options.trace != CHATS
    passed = []
    with tempfile.TemporaryDirectory() as name_of_folder:
        folder = Path(name_of_folder)
        jobs = {name: ours(trace, name, CAPACITY_BLOCKS) for name in families.names("policies")}
        if libcachesim_is_here():
            binary = folder / "trace.oracleGeneral"
            write_oracle_general(trace, binary)
            for name, theirs in THEIRS.items():
                jobs[f"libcachesim {name}"] = libcachesim_seconds(binary, theirs, CAPACITY_BLOCKS)
        jobs["LRU's whole curve"] = lambda: cpu_seconds(lambda: lru_curve(trace))
        taken = in_turn(jobs, options.rounds, repeat=3)
        print(f"{options.trace.name}: {trace.blocks.size:,} accesses, median of {options.rounds}\n")
        for name in jobs:
            seconds = median(taken[name])
            print(f"{name:<34}{1000 * seconds:>8.2f} ms CPU{trace.blocks.size / seconds / 1e6:>9.1f} M blocks/s")
        print()
        for name in THEIRS:
            if f"libcachesim {name}" in taken:
                bar = 20 if name == "s3fifo" else 5
                value = ratio(taken, f"libcachesim {name}", name)
                passed.append(target(f"libcachesim / hitlab, {name}", value, at_least=bar, judged=judged))
        passed.append(
            target("whole curve / lru replay", ratio(taken, "LRU's whole curve", "lru"), at_most=3, judged=judged)
        )
        core = kvcache_simulator_seconds(trace, CAPACITY_BLOCKS, folder, min(options.rounds, 5))
        if core is not None:
            passed.append(
                target("kvcache-simulator / hitlab, lru", core / median(taken["lru"]), at_least=10, judged=judged)
            )
        replays = ("sweep", options.trace, "--policy", ",".join(THEIRS), *GRID, "--out", folder)
        single = ("replay", options.trace, "--policy", "lru", "--capacity", CAPACITY_BLOCKS)
        taken |= in_turn(
            {
                "whole sweep": lambda: command_cpu_seconds(*HITLAB, *replays, "--csv", folder / "points.csv"),
                "whole replay": lambda: command_cpu_seconds(*HITLAB, *single),
            },
            min(options.rounds, 3),
        )
        sweep_name = f"sweep of {len(THEIRS)} x 30 / one replay"
        passed.append(target(sweep_name, ratio(taken, "whole sweep", "whole replay"), at_most=10, judged=judged))
    leave(passed)


if __name__ == "__main__":
    main()
