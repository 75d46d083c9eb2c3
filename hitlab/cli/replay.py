"""`hitlab replay`: a trace through one policy at one capacity."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from hitlab.cli import _options as opt
from hitlab.cli import _signals, _written
from hitlab.cli import _trace_options as given
from hitlab.cli._format import count, percent
from hitlab.cli._tables import Column, fitted, sheet
from hitlab.errors import UsageError
from hitlab.files import claim
from hitlab.simulation import kernel_store, replay, request_file
from hitlab.simulation.policy import Choice, check
from hitlab.simulation.replay import Replay
from hitlab.traces.trace import Trace


def command(
    trace: given.TraceFile,
    capacity: Annotated[
        int, typer.Option("--capacity", "--capacity-blocks", help="Blocks the cache holds.", show_default=False)
    ],
    policy: Annotated[
        str, typer.Option("--policy", help="Which block to evict: a file of policies/; options as 2q:in_ratio=0.3.")
    ] = "s3fifo",
    block_size: given.BlockSize = None,
    form: given.Format = None,
    small_ratio: Annotated[
        float | None,
        typer.Option("--small-ratio", help="s3fifo: the small queue's share of the capacity.", show_default="0.1"),
    ] = None,
    max_freq: Annotated[
        int | None, typer.Option("--max-freq", help="s3fifo: where use counts stop.", show_default="3")
    ] = None,
    per_request: Annotated[bool, typer.Option("--per-request", help="List each request's tokens, too.")] = False,
    requests_out: Annotated[
        Path | None, typer.Option("--requests-out", help="Write each request's tokens: .parquet or .jsonl.")
    ] = None,
    warmup: given.Warmup = 0.0,
    engine_cap: given.EngineCap = False,
    skip_malformed: given.SkipMalformed = False,
    check_invariants: Annotated[
        bool,
        typer.Option("--check-invariants", help="Afterwards, look for faults in the policy's own queues."),
    ] = False,
    force: opt.Force = False,
    as_json: opt.Json = False,
) -> None:
    """Replay a trace through a prefix cache of fixed size: hit tokens, longest prefix only.

    A request hits its leading resident blocks; then each of its blocks, hit or not, is accessed in order.

    A trace's ids are its blocks: nothing is tokenized or hashed again.

    k blocks of B tokens count min(k*B, L) of a prompt's L tokens.

    Example: hitlab replay conversation_trace.jsonl --policy s3fifo --capacity 4096
    """
    from hitlab.simulation import kernels  # here, for it loads numba

    choice = Choice.of(policy)
    chosen = choice.load()
    stated = {"small_ratio": small_ratio, "max_freq": max_freq}
    options = {**choice.options, **{name: value for name, value in stated.items() if value is not None}}
    check(chosen, capacity, options)  # before a long file is read
    if not 0 <= warmup < 1:
        raise UsageError(f"a warm-up of {warmup}", todo="choose a share from 0 to below 1")
    if requests_out:
        claim([request_file.output(requests_out)], [trace], force=force)
    requests = given.read(trace, block_size, form, skip_malformed)

    def announce() -> None:
        kept = "once" if kernels.folder(chosen) else "for this run only: there is no folder to keep it in"
        print(f"compiling the {choice.policy} kernel, {kept} ...", file=sys.stderr, flush=True)

    with kernel_store.announced(announce), kernel_store.undisturbed(_signals.held):
        result = replay.replay(
            requests,
            chosen,
            capacity,
            options,
            kernel=kernels.kernel(chosen),
            engine_cap=engine_cap,
            check_invariants=check_invariants,
        )
    first_steady = replay.first_warm(requests.requests, warmup)
    if requests_out:
        with request_file.opened(requests_out) as write:
            write(result, {})
        print(f"requests: {_written.said(requests_out)}", file=sys.stderr)
    if as_json:
        opt.print_json(_document(result, requests, first_steady, engine_cap, per_request))
    else:
        _print(result, requests, trace, first_steady, engine_cap, per_request)


def _document(result: Replay, trace: Trace, first_steady: int, engine_cap: bool, per_request: bool) -> dict[str, Any]:
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
        "request_hit_rate": result.request_hit_rate(),
        "final_cache_blocks": result.final_blocks,
        "engine_cap": engine_cap,
        "skipped_rows": trace.skipped_rows,
    }
    if first_steady:
        steady = result.tally_from(first_steady)
        document["first_steady_request"] = first_steady
        document["steady_prompt_tokens"] = steady.queried_tokens
        document["steady_hit_tokens"] = steady.hit_tokens
        document["steady_hit_rate"] = steady.hit_rate
        document["steady_request_hit_rate"] = result.request_hit_rate(first_steady)
    if trace.skipped_rows:
        document["first_skipped"] = trace.first_skipped
    if per_request:
        pairs = zip(result.hit_tokens.tolist(), result.prompt_tokens.tolist(), strict=True)
        document["per_request"] = [{"hit_tokens": hit, "prompt_tokens": prompt} for hit, prompt in pairs]
    return document


def _print(result: Replay, trace: Trace, path: Path, first_steady: int, engine_cap: bool, per_request: bool) -> None:
    tally = result.tally
    capped = ", counted up to floor((L-1)/B)*B a request" if engine_cap else ""
    rows = {
        "trace": f"{path.name}, blocks of {result.block_tokens:,} tokens",
        "policy": ", ".join([result.policy, *(f"{name} {value}" for name, value in result.options.items())]),
        "variant": result.variant,
        "requests": f"{trace.requests:,}",
        "prompt tokens": f"{tally.queried_tokens:,}",
        "hit tokens": f"{tally.hit_tokens:,}{capped}",
        "hit rate": _rates(tally.hit_rate, result.request_hit_rate()),
        "blocks at the end": f"{result.final_blocks:,} of {result.capacity_blocks:,}",
    }
    if first_steady:
        rates = _rates(result.tally_from(first_steady).hit_rate, result.request_hit_rate(first_steady))
        rows["hit rate, steady"] = f"{rates}, from request {first_steady + 1:,} on"
    if trace.skipped_rows:
        rows["skipped rows"] = f"{trace.skipped_rows:,}, first {trace.first_skipped}"
    console = opt.console()
    console.print(sheet(rows))
    if per_request:
        columns = [Column(heading) for heading in ("request", "prompt tokens", "hit tokens", "hit rate")]
        pairs = zip(result.prompt_tokens.tolist(), result.hit_tokens.tolist(), strict=True)
        table = [
            (count(number), count(prompt), count(hit), percent(hit / prompt if prompt else None, unit="%"))
            for number, (prompt, hit) in enumerate(pairs, 1)
        ]
        console.print(fitted(columns, table, console.width, gap=3, indent=2))


def _rates(tokens: float | None, requests: float | None) -> str:
    if tokens is None or requests is None:
        return "none: no prompt tokens"
    return f"{percent(tokens, unit='%')} of tokens, {percent(requests, unit='%')} as a mean of requests"
