"""How the points of a sweep are shown: tables, a JSON document, a picture."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hitlab.cli import _options as opt
from hitlab.cli._format import count, percent
from hitlab.cli._tables import Column, least_width, unfitted
from hitlab.report import sweep_plot
from hitlab.simulation import sweep
from hitlab.simulation.policy import Choice, options_of
from hitlab.simulation.sweep import Point
from hitlab.simulation.sweep_runner import Sweep
from hitlab.traces.trace import Trace

TABLE_WIDTH = 80
GAP = 3  # spaces between columns


def document(
    wanted: Sweep, points: Sequence[Point], path: Path, warmup: float, block_bytes: int | None, complete: bool
) -> dict[str, Any]:
    """The sweep as one JSON document; `complete` is False where it was stopped."""
    policies = {}
    for choice in wanted.choices:
        policy = choice.load()
        options = options_of(policy) | dict(choice.options)
        policies[choice.label] = {"policy": policy.NAME, "variant": policy.VARIANT, **options}
    return {
        "schema_version": 1,
        "trace": path.name,
        "block_size": wanted.trace.block_tokens,
        "total_requests": wanted.trace.requests,
        "skipped_rows": wanted.trace.skipped_rows,
        "warmup": warmup,
        "first_steady_request": wanted.first_steady,
        "engine_cap": wanted.engine_cap,
        "block_bytes": block_bytes,
        "complete": complete,
        "policies": policies,
        "points": points,
    }


def _title(wanted: Sweep, path: Path) -> str:
    trace: Trace = wanted.trace
    return f"{path.name}: {trace.requests:,} requests, blocks of {trace.block_tokens:,} tokens"


def draw(wanted: Sweep, points: Sequence[Point], plot: Path, path: Path, weight: str, block_bytes: int | None) -> None:
    """Draw the curves of all policies into the file `plot`; `path` is the trace's."""
    rate = f"{'steady' if wanted.first_steady else 'cold'}_{weight}_hit_rate"
    sweep_plot.draw(points, plot, title=_title(wanted, path), rate=rate, block_bytes=block_bytes)


def print_points(
    wanted: Sweep, points: Sequence[Point], path: Path, warmup: float, weight: str, block_bytes: int | None
) -> None:
    """Print the points on stdout: a table for one policy, else tables with a column each for cold and steady."""
    console = opt.console()
    console.print(_title(wanted, path))
    counted = "floor((L-1)/B)*B, as engines do" if wanted.engine_cap else "min(k*B, L)"
    console.print(f"hits are the longest resident prefix; k blocks of B tokens count {counted}")
    if wanted.trace.skipped_rows:
        console.print(f"skipped rows: {wanted.trace.skipped_rows:,}, first {wanted.trace.first_skipped}")
    labels = [choice.label for choice in wanted.choices]
    if len(labels) == 1:
        _show(*_one_policy(points, block_bytes))
        return
    phases = {"cold": "cold: all requests, from an empty cache"}
    if wanted.first_steady:
        phases["steady"] = f"steady: requests after the first {percent(warmup, 0, unit='%')}"
    for phase, said in phases.items():
        rate = f"{phase}_{weight}_hit_rate"
        console.print(f"\n{said}; hit rate in %, {weight}-weighted")
        for columns, rows in _policy_tables(points, labels, rate, block_bytes):
            _show(columns, rows)
        for line in _comparisons(points, wanted.choices, rate):
            console.print(line)


def _comparisons(points: Sequence[Point], choices: Sequence[Choice], rate: str) -> Iterator[str]:
    """Each policy beside LRU, or the first one where LRU is not among them; no upper bounds."""
    labels = [each.label for each in choices if each.load().BOUNDED]
    baseline = "lru" if "lru" in labels else next(iter(labels), "")
    lines = (sweep.comparison(points, label, baseline, rate) for label in labels if label != baseline)
    yield from filter(None, lines)


Rows = list[list[str]]


def _one_policy(points: Sequence[Point], block_bytes: int | None) -> tuple[list[Column], Rows]:
    headings = ["cold\ntokens", "cold\nrequests", "steady\ntokens", "steady\nrequests"]
    rows = [
        [
            *_sizes(each.capacity_blocks, block_bytes),
            percent(each.cold_token_hit_rate, 2),
            percent(each.cold_request_hit_rate, 2),
            percent(each.steady_token_hit_rate, 2),
            percent(each.steady_request_hit_rate, 2),
            count(each.final_blocks),
        ]
        for each in points
    ]
    return [*_size_columns(block_bytes), *map(Column, headings), Column("resident\nat the end")], rows


def _policy_tables(
    points: Sequence[Point], labels: Sequence[str], rate: str, block_bytes: int | None
) -> Iterator[tuple[list[Column], Rows]]:
    """A column a policy, as many as 80 columns hold, then the next ones."""
    rates = {(each.policy, each.capacity_blocks): getattr(each, rate) for each in points}
    capacities = sorted({each.capacity_blocks for each in points})
    sizes = _size_columns(block_bytes)

    def table(shown: Sequence[str]) -> tuple[list[Column], Rows]:
        rows = [
            [
                *_sizes(capacity, block_bytes),
                *(percent(rates.get((label, capacity)), 2, unit="") for label in shown),
            ]
            for capacity in capacities
        ]
        return [*sizes, *map(Column, shown)], rows

    shown: list[str] = []
    for label in labels:
        if shown and least_width(*table([*shown, label]), gap=GAP) > TABLE_WIDTH:
            yield table(shown)
            shown = []
        shown.append(label)
    yield table(shown)


def _size_columns(block_bytes: int | None) -> list[Column]:
    return [Column("blocks"), *([Column("GiB")] if block_bytes else [])]


def _sizes(blocks: int, block_bytes: int | None) -> list[str]:
    """A capacity as the cells of a row: blocks, and GiB where a block's bytes are known."""
    return [count(blocks), *([f"{blocks * block_bytes / 2**30:,.1f}"] if block_bytes else [])]


def _show(columns: Sequence[Column], rows: Rows) -> None:
    """Print a table at its own width: on a narrower terminal lines wrap, numbers are never cut."""
    opt.console().print(unfitted(columns, rows, gap=GAP, indent=2), crop=False)
