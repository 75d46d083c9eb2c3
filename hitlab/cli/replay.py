"""`hitlab replay`: a trace against one cache."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hitlab.cli import options as opt

if TYPE_CHECKING:
    from hitlab.replay import Replay
    from hitlab.trace import Trace


def command(
    trace: Annotated[
        Path,
        typer.Argument(help="A trace in Mooncake's form: one JSON object a line; plain, .gz or .zst."),
    ],
    capacity: Annotated[
        int, typer.Option("--capacity", "--capacity-blocks", help="Blocks the cache holds.", show_default=False)
    ],
    policy: Annotated[str, typer.Option("--policy", help="Which block to evict: a file of policies/.")] = "s3fifo",
    block_size: Annotated[int, typer.Option("--block-size", "-B", help="Tokens a block of the trace has.")] = 512,
    small_ratio: Annotated[
        float | None,
        typer.Option("--small-ratio", help="s3fifo: the small queue's share of the capacity.", show_default="0.1"),
    ] = None,
    max_freq: Annotated[
        int | None, typer.Option("--max-freq", help="s3fifo: where use counts stop.", show_default="3")
    ] = None,
    per_request: Annotated[bool, typer.Option("--per-request", help="List each request's tokens, too.")] = False,
    skip_malformed: Annotated[
        bool, typer.Option("--skip-malformed", help="Leave out rows that are no requests, and count them.")
    ] = False,
    check_invariants: Annotated[
        bool,
        typer.Option("--check-invariants", help="Afterwards, look for faults in the policy's own queues."),
    ] = False,
    as_json: opt.Json = False,
) -> None:
    """Replay a trace through a prefix cache of fixed size: hit tokens, longest prefix only.

    A request hits the leading blocks that are all resident when it arrives; then each of its blocks is
    accessed in order. A trace's ids are its blocks: nothing is tokenized or hashed again.

    Example: hitlab replay conversation_trace.jsonl --policy s3fifo --capacity 4096
    """
    from hitlab import kernels, replay, traces
    from hitlab.cli.progress import progress

    chosen = kernels.policy_named(policy)
    given = {"small_ratio": small_ratio, "max_freq": max_freq}
    options = {name: value for name, value in given.items() if value is not None}
    replay.check(chosen, capacity, options)  # before a long file is read
    with progress(f"reading {trace.name}") as on_progress:
        requests = traces.read_trace(trace, block_size, skip_malformed=skip_malformed, on_progress=on_progress)

    def announce() -> None:
        kept = "once" if kernels.folder(chosen) else "for this run only: there is no folder to keep it in"
        print(f"compiling the {policy.lower()} kernel, {kept} ...", file=sys.stderr, flush=True)

    with kernels.announced(announce):
        result = replay.replay(
            requests,
            chosen,
            capacity,
            options,
            kernel=kernels.kernel(chosen),
            check_invariants=check_invariants,
        )
    if as_json:
        opt.print_json(_document(result, requests, per_request))
    else:
        _print(result, requests, trace, per_request)


def _document(result: "Replay", trace: "Trace", per_request: bool) -> dict[str, Any]:
    tally = result.tally
    document: dict[str, Any] = {
        "policy": result.policy,
        "variant": result.variant,
        **result.options,
        "block_size": result.block_tokens,
        "cache_capacity_blocks": result.capacity_blocks,
        "total_requests": trace.requests,
        "total_prompt_tokens": tally.queried_tokens,
        "total_hit_tokens": tally.hit_tokens,
        "overall_hit_rate": tally.hit_rate,
        "final_cache_blocks": result.final_blocks,
        "skipped_rows": trace.skipped_rows,
    }
    if trace.skipped_rows:
        document["first_skipped"] = trace.first_skipped
    if per_request:
        pairs = zip(result.hit_tokens.tolist(), result.prompt_tokens.tolist(), strict=True)
        document["per_request"] = [{"hit_tokens": hit, "prompt_tokens": prompt} for hit, prompt in pairs]
    return document


def _print(result: "Replay", trace: "Trace", path: Path, per_request: bool) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    tally = result.tally
    rate = "none: no prompt tokens" if tally.hit_rate is None else f"{tally.hit_rate:.3%}"
    sheet = Table(box=None, show_header=False, pad_edge=False)
    sheet.add_column()
    sheet.add_column(overflow="fold")
    rows = {
        "trace": f"{path.name}, blocks of {result.block_tokens:,} tokens",
        "policy": ", ".join([result.policy, *(f"{name} {value}" for name, value in result.options.items())]),
        "variant": result.variant,
        "requests": f"{trace.requests:,}",
        "prompt tokens": f"{tally.queried_tokens:,}",
        "hit tokens": f"{tally.hit_tokens:,}",
        "hit rate": rate,
        "blocks at the end": f"{result.final_blocks:,} of {result.capacity_blocks:,}",
    }
    if trace.skipped_rows:
        rows["skipped rows"] = f"{trace.skipped_rows:,}, first {trace.first_skipped}"
    for name, text in rows.items():
        sheet.add_row(name, text)
    opt.console().print(sheet)
    if per_request:
        table = Table("request", "prompt tokens", "hit tokens", "hit rate", box=SIMPLE_HEAD)
        for column in table.columns:
            column.justify = "right"
        for number, (prompt, hit) in enumerate(
            zip(result.prompt_tokens.tolist(), result.hit_tokens.tolist(), strict=True), 1
        ):
            share = f"{hit / prompt:.3%}" if prompt else "-"
            table.add_row(f"{number:,}", f"{prompt:,}", f"{hit:,}", share)
        opt.console().print(table)
