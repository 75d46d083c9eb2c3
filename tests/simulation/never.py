"""A policy for tests: bounded, keeps nothing, and has a hit-ratio curve of its own that says so."""

from typing import Final, NamedTuple

import numpy as np

from hitlab.simulation.curve import Curve
from hitlab.simulation.structures import rule
from hitlab.traces.trace import Trace

NAME = "NEVER"
VARIANT = "keeps nothing"
UNIT: Final = "block"
BOUNDED = True


class Cache(NamedTuple):
    capacity_blocks: int


def CURVE(trace: Trace, *, engine_cap: bool = False) -> Curve:  # noqa: N802
    nothing = np.zeros(0, np.uint32)
    return Curve(nothing, np.zeros(0, np.int64), nothing, trace.distinct_blocks, resident_blocks=0, bounded=True)


def new(trace: Trace, capacity_blocks: int, *, depth: int = 1) -> Cache:
    return Cache(capacity_blocks)


@rule
def resident(cache: Cache, block: int) -> bool:
    return False


@rule
def access(cache: Cache, block: int) -> None:
    pass


def size_blocks(cache: Cache) -> int:
    return 0


def invariant_violations(cache: Cache) -> list[str]:
    return []
