"""`hitlab sweep`: policies times capacities on one trace."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from hitlab.cli import _options as opt
from hitlab.cli import _signals, _written
from hitlab.cli import _trace_options as given
from hitlab.cli._progress import progress
from hitlab.errors import InterruptedRunError, UsageError
from hitlab.simulation import kernel_store, replay, request_file
from hitlab.simulation.workers import Workers


def command(
    trace: given.TraceFile,
    policy: Annotated[
        str,
        typer.Option("--policy", help="Names, comma-separated, or all; options as s3fifo:max_freq=1."),
    ] = "s3fifo,lru,unbounded",
    capacity: Annotated[
        str | None,
        typer.Option(
            "--capacity", help="Blocks: 500,1000 or 1000:100000:log30 (or :lin10) or auto.", show_default="auto"
        ),
    ] = None,
    memory: Annotated[
        str | None, typer.Option("--memory", help="Capacities as KV memory instead: 8GiB:200GiB:log30.")
    ] = None,
    bytes_per_token: Annotated[
        int | None, typer.Option("--bytes-per-token", help="KV cache bytes a token takes, on all GPUs together.")
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="A model whose KV size is known, as llama-3.1-8b (16-bit KV).")
    ] = None,
    kv_bytes: Annotated[int, typer.Option("--kv-bytes", help="With --model: bytes an element has, 1 for FP8.")] = 2,
    warmup: given.Warmup = 0.5,
    engine_cap: given.EngineCap = False,
    block_size: given.BlockSize = None,
    form: given.Format = None,
    skip_malformed: given.SkipMalformed = False,
    weight: Annotated[
        str, typer.Option("--weight", help="What tables and plot of several policies show: token or request.")
    ] = "token",
    plot: Annotated[Path | None, typer.Option("--plot", help="Draw the curves: .svg, .png or .pdf.")] = None,
    csv: Annotated[Path | None, typer.Option("--csv", help="Write every point, all four rates.")] = None,
    requests_out: Annotated[
        Path | None,
        typer.Option("--requests-out", help="Write each point's requests, .parquet or .jsonl; replays once more."),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option("--jobs", "-j", help="Worker processes (default: all cores, if it is worth it).")
    ] = None,
    backend: Annotated[str, typer.Option("--backend", help="joblib's: loky, threading, dask or ray.")] = "loky",
    scheduler: Annotated[str, typer.Option("--scheduler", help="Address of the Dask scheduler or Ray cluster.")] = "",
    work_folder: Annotated[
        Path | None, typer.Option("--work-folder", help="Where workers map the trace; a cluster's must all see it.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder for points of a sweep that is stopped.")] = Path("results"),
    force: opt.Force = False,
    as_json: opt.Json = False,
) -> None:
    """Replay a trace at many cache sizes: how much cache it needs, and whether the policy matters.

    Cold is the whole trace from an empty cache, steady the requests after the warm-up.

    LRU's points come from one pass, those of others from a replay each, on all cores.

    Ctrl-C keeps the finished points; the same command goes on from there.

    Example: hitlab sweep conversation_trace.jsonl --policy s3fifo,lru --capacity 1000:100000:log30 --plot curves.svg
    """
    # Here, for all of them load numba.
    from hitlab.cli import _points, _sweep_asked, _sweep_result
    from hitlab.simulation import sweep_runner
    from hitlab.simulation.hit_curve import Curves

    _check(weight, warmup, jobs)
    _sweep_asked.claim_outputs(trace, csv, plot, requests_out, force)
    choices = _sweep_asked.choices(policy, drawn=plot is not None)
    token_bytes = _sweep_asked.token_bytes(bytes_per_token, model, kv_bytes)
    sizes = _sweep_asked.sizes(capacity, memory, token_bytes)
    # before a long file is read, whose blocks may turn out larger
    sweep_runner.check(choices, sizes(max(block_size or 1, 1), None) or [_sweep_asked.SMALLEST_AUTO])
    requests = given.read(trace, block_size, form, skip_malformed)

    curves = Curves(requests, engine_cap=engine_cap)
    with kernel_store.undisturbed(_signals.held):  # auto asks for a curve
        capacities = sizes(requests.block_tokens, curves) or [_sweep_asked.SMALLEST_AUTO]
    sweep_runner.check(choices, capacities)
    wanted = sweep_runner.Sweep(
        requests, choices, capacities, replay.first_warm(requests.requests, warmup), engine_cap, {}
    )
    partial = sweep_runner.partial_file(out, wanted)
    workers = Workers(jobs, backend, scheduler, work_folder)
    stopped: InterruptedRunError | None = None
    try:
        with (
            progress(f"{wanted.size:,} points") as on_progress,
            kernel_store.announced(_announce),
            kernel_store.undisturbed(_signals.held),
        ):
            sweep_runner.run(wanted, curves, workers, partial, on_progress)
    except KeyboardInterrupt:
        kept = f"{len(wanted.points):,} of {wanted.size:,} points are kept in {partial}"
        kept += f", and not written to {' and '.join(map(str, filter(None, (csv, plot))))}" if csv or plot else ""
        stopped = InterruptedRunError(f"interrupted, {kept}", todo="the same command goes on from there")
    points = wanted.ordered()
    block_bytes = token_bytes * requests.block_tokens if token_bytes else None
    # Files before the screen, which may be a full disk or a pipe that is closed. The points of a sweep that was stopped
    # are in its partial file: they are no reason to replace yesterday's whole table and picture.
    if csv and not stopped:
        _points.write(points, csv, block_bytes)
        _say(f"csv: {_written.said(csv)}")
    if plot and points and not stopped:
        _sweep_result.draw(wanted, points, plot, trace, weight, block_bytes)
        _say(f"plot: {_written.said(plot)}")
    if as_json:
        opt.print_json(_sweep_result.document(wanted, points, trace, warmup, block_bytes, stopped is None))
    else:
        _sweep_result.print_points(wanted, points, trace, warmup, weight, block_bytes)
    sys.stdout.flush()
    if stopped:
        raise stopped
    if requests_out:
        with (
            request_file.opened(requests_out) as write,
            progress("requests") as on_progress,
            kernel_store.undisturbed(_signals.held),
        ):
            for number, (label, replayed) in enumerate(sweep_runner.replays(wanted), 1):
                write(replayed, {"policy": label, "capacity_blocks": replayed.capacity_blocks})
                on_progress(number, wanted.size)
        _say(f"requests: {_written.said(requests_out)}")
    partial.unlink(missing_ok=True)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _announce() -> None:
    _say("compiling kernels, once ...")


def _check(weight: str, warmup: float, jobs: int | None) -> None:
    if weight not in ("token", "request"):
        raise UsageError(f"no weight named {weight!r}", todo="choose token or request")
    if not 0 <= warmup < 1:
        raise UsageError(f"a warm-up of {warmup}", todo="choose a share from 0 to below 1")
    if jobs is not None and jobs < 1:
        raise UsageError(f"--jobs is {jobs}", todo="give 1 or more")
