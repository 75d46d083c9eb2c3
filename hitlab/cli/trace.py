"""`hitlab trace info`: a trace in numbers, before anything is replayed."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from hitlab.cli import _options as opt
from hitlab.cli import _trace_options as given
from hitlab.cli._format import percent
from hitlab.cli._tables import sheet

if TYPE_CHECKING:
    from hitlab.simulation.trace_info import Arrivals, Inspection

app = typer.Typer(help="Look at a trace.\n\nExample: hitlab trace info conversation_trace.jsonl", no_args_is_help=True)


@app.callback()
def _trace() -> None:
    """Look at a trace."""


@app.command("info")
def info(
    trace: given.TraceFile,
    block_size: given.BlockSize = None,
    form: given.Format = None,
    skip_malformed: given.SkipMalformed = False,
    as_json: opt.Json = False,
) -> None:
    """Say what a trace holds: requests, blocks, reuse, the most any cache could hit, how requests arrive.

    Ceilings are hit rates of a cache that never evicts.

    The engine's ceiling counts at most floor((L-1)/B)*B of a prompt's L tokens, in blocks of B.

    Example: hitlab trace info conversation_trace.jsonl
    """
    from hitlab.simulation import hit_curve, trace_info  # here, for they load numba

    requests = given.read(trace, block_size, form, skip_malformed)
    found = trace_info.inspect(
        requests,
        hit_curve.lru_curve(requests),
        hit_curve.lru_curve(requests, engine_cap=True),
    )
    if as_json:
        opt.print_json(found)
    else:
        _print(found, trace)


def _print(found: "Inspection", path: Path) -> None:
    references = max(1, found.block_references)
    rows = {
        "trace": f"{path.name}, blocks of {found.block_tokens:,} tokens",
        "requests": f"{found.requests:,}",
        "prompt tokens": f"{found.prompt_tokens:,}, median {found.median_prompt_tokens:,}, "
        f"longest {found.longest_prompt_tokens:,} a request",
        "block references": f"{found.block_references:,} to {found.distinct_blocks:,} distinct blocks",
        "reused": f"{percent(found.reused_references / references, 1, unit='%')} of references; "
        f"{found.blocks_used_once:,} blocks used once, one {found.most_used_block:,} times",
        "ceiling": f"{_percent(found.ceiling)} of tokens, {_percent(found.ceiling_requests)} as a mean of requests",
        "ceiling, engine": f"{_percent(found.ceiling_engine)} of tokens: whole blocks, never a prompt's last token",
        "LRU needs": ", ".join(
            f"{blocks:,} blocks for {percent(float(share), 0, unit='%')} of it"
            for share, blocks in found.lru_blocks_for_share.items()
        ),
        **_arrivals(found.arrivals),
    }
    if found.skipped_rows:
        rows["skipped rows"] = f"{found.skipped_rows:,}"
    opt.console().print(sheet(rows))


def _percent(rate: float | None) -> str:
    return percent(rate, unit="%", missing="none")


def _arrivals(arrivals: "Arrivals | None") -> dict[str, str]:
    if arrivals is None:
        return {"arrivals": "not said"}
    return {
        "arrivals": f"{arrivals.requests_per_s:,.2f} requests/s over {arrivals.duration_s:,.0f} s, "
        f"{arrivals.peak_requests_per_s:,.2f} in the fullest minute",
        "gaps": f"standard deviation {arrivals.gap_variation:.2f} times the mean (1 is random arrivals)",
        "order": f"rows are {'in' if arrivals.in_order else 'NOT in'} order of time",
    }
