"""A trace in numbers: its size, how many blocks are used again, the most a cache could hit, when requests arrive."""

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from hitlab.simulation.curve import Curve
from hitlab.tokens import Tally
from hitlab.traces.trace import Trace


class Arrivals(msgspec.Struct, frozen=True):
    """When requests arrive, from their time stamps in ascending order."""

    duration_s: float
    requests_per_s: float
    peak_requests_per_s: float  # in the fullest minute
    gap_variation: float  # standard deviation over mean of the gaps; 1 if at random, more in bursts
    in_order: bool  # the file's order is that of the time stamps


class Inspection(msgspec.Struct, frozen=True):
    """A trace in numbers. Rates are 0 to 1, or None if no tokens were asked for."""

    block_tokens: int
    requests: int
    prompt_tokens: int
    median_prompt_tokens: int
    longest_prompt_tokens: int
    block_references: int
    distinct_blocks: int
    reused_references: int  # to a block referenced before
    blocks_used_once: int
    most_used_block: int  # references to the most used block
    ceiling: float | None  # hit rate of an unbounded cache, in tokens
    ceiling_engine: float | None  # the same with floor((L-1)/B)*B at most per request
    ceiling_requests: float | None  # the same as a mean over requests
    lru_blocks_for_share: dict[str, int]  # by share of the ceiling, the smallest LRU cache that reaches it
    arrivals: Arrivals | None
    skipped_rows: int


def inspect(trace: Trace, curve: Curve, engine_curve: Curve) -> Inspection:
    """The numbers of a trace; the hit-ratio curves are LRU's, without and with the engine's cap."""
    uses = np.bincount(trace.blocks, minlength=trace.distinct_blocks)
    prompts = trace.prompt_tokens
    everything = [np.iinfo(np.int64).max]
    whole = int(prompts.sum())
    return Inspection(
        block_tokens=trace.block_tokens,
        requests=trace.requests,
        prompt_tokens=whole,
        median_prompt_tokens=int(np.median(prompts)) if prompts.size else 0,
        longest_prompt_tokens=int(prompts.max(initial=0)),
        block_references=trace.blocks.size,
        distinct_blocks=trace.distinct_blocks,
        reused_references=trace.blocks.size - trace.distinct_blocks,
        blocks_used_once=int(np.count_nonzero(uses == 1)),
        most_used_block=int(uses.max(initial=0)),
        ceiling=Tally(whole, int(curve.at(everything)[0])).hit_rate,
        ceiling_engine=Tally(whole, int(engine_curve.at(everything)[0])).hit_rate,
        ceiling_requests=_mean_of(curve, prompts),
        lru_blocks_for_share={f"{share:g}": curve.capacity_for(share) for share in (0.5, 0.9, 0.99, 1)},
        arrivals=_arrivals(trace.arrival_s),
        skipped_rows=trace.skipped_rows,
    )


def _mean_of(curve: Curve, prompts: NDArray[np.int64]) -> float | None:
    asked = int(np.count_nonzero(prompts))
    if not asked:
        return None
    everything: Any = curve.at([np.iinfo(np.int64).max], 1 / np.maximum(prompts, 1))[0]
    return float(everything / asked)


def _arrivals(arrival_s: NDArray[np.float64]) -> Arrivals | None:
    """When requests arrive; None if a request has no time stamp or all have the same."""
    if arrival_s.size < 2 or not np.isfinite(arrival_s).all():
        return None
    times = np.sort(arrival_s)
    duration_s = float(times[-1] - times[0])
    if duration_s == 0:
        return None
    gaps = np.diff(times)
    in_minute = np.searchsorted(times, times + 60, side="left") - np.arange(times.size)
    return Arrivals(
        duration_s=duration_s,
        requests_per_s=gaps.size / duration_s,
        peak_requests_per_s=float(in_minute.max()) / min(60.0, duration_s),
        gap_variation=float(gaps.std() / gaps.mean()),
        in_order=bool((np.diff(arrival_s) >= 0).all()),
    )
