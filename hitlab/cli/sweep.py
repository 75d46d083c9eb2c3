"""`hitlab sweep`: policies times capacities on one trace."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hitlab.cli import options as opt
from hitlab.cli import trace_options as given
from hitlab.errors import InputError, InterruptedRunError, UsageError

if TYPE_CHECKING:
    from hitlab.curve import Curve
    from hitlab.grid import Sweep
    from hitlab.sweep import Choice, Point
    from hitlab.trace import Trace

SMALLEST_AUTO = 10  # blocks; every policy works with so many at its default options


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
    as_json: opt.Json = False,
) -> None:
    """Replay a trace at many cache sizes: how much cache it needs, and whether the policy matters.

    Cold is the whole trace from an empty cache, steady the requests after the warm-up. LRU's points come from one
    pass, those of others from a replay each, on all cores. Ctrl-C keeps the finished points; the same command goes
    on from there.

    Example: hitlab sweep conversation_trace.jsonl --policy s3fifo,lru --capacity 1000:100000:log30 --plot curves.svg
    """
    from hitlab import grid, kernels, replay, requestfile, traces
    from hitlab.cli.progress import progress

    if weight not in ("token", "request"):
        raise UsageError(f"no weight named {weight!r}", todo="choose token or request")
    if not 0 <= warmup < 1:
        raise UsageError(f"a warm-up of {warmup}", todo="choose a share from 0 to below 1")
    if requests_out:
        requestfile.check(requests_out)
    choices = _choices(policy)
    token_bytes = _token_bytes(bytes_per_token, model, kv_bytes)
    sizes = _sizes(capacity, memory, token_bytes)
    grid.check(choices, sizes(512, None) or [SMALLEST_AUTO])  # before a long file is read
    with progress(f"reading {trace.name}") as on_progress:
        requests = traces.read_trace(
            trace, block_size, format_name=form, skip_malformed=skip_malformed, on_progress=on_progress
        )

    curves: list[Curve] = []

    def curve() -> "Curve":
        if not curves:
            from hitlab.curve import lru_curve

            curves.append(lru_curve(requests, engine_cap=engine_cap, kernel=kernels.curve_kernel()))
        return curves[0]

    capacities = sizes(requests.block_tokens, curve) or [SMALLEST_AUTO]
    grid.check(choices, capacities)
    wanted = grid.Sweep(requests, choices, capacities, replay.first_warm(requests.requests, warmup), engine_cap, {})
    partial = grid.partial_file(out, wanted)
    workers = grid.Workers(jobs, backend, scheduler, work_folder)
    stopped: InterruptedRunError | None = None
    try:
        with progress(f"{wanted.size:,} points") as on_progress, kernels.announced(_announce):
            grid.run(wanted, curve, workers, partial, on_progress)
    except KeyboardInterrupt:
        kept = f"{len(wanted.points):,} of {wanted.size:,} points are kept in {partial}"
        stopped = InterruptedRunError(f"interrupted, {kept}", todo="the same command goes on from there")
    points = wanted.ordered()
    block_bytes = token_bytes * requests.block_tokens if token_bytes else None
    if as_json:
        opt.print_json(_document(wanted, points, trace, warmup, block_bytes, stopped is None))
    else:
        _print(wanted, points, trace, warmup, weight, block_bytes)
    if csv:
        _write_csv(points, csv, block_bytes)
    if plot and points:
        from hitlab.plot import draw

        rate = f"{'steady' if wanted.first_steady else 'cold'}_{weight}_hit_rate"
        draw(points, plot, title=_title(wanted, trace), rate=rate, block_bytes=block_bytes)
    if stopped:
        raise stopped
    if requests_out:
        with requestfile.opened(requests_out) as write, progress("requests") as on_progress:
            for number, (label, replayed) in enumerate(grid.replays(wanted), 1):
                write(replayed, {"policy": label, "capacity_blocks": replayed.capacity_blocks})
                on_progress(number, wanted.size)


def _announce() -> None:
    print("compiling kernels, once ...", file=sys.stderr, flush=True)


def _choices(text: str) -> "list[Choice]":
    from hitlab import families
    from hitlab.sweep import Choice

    named = families.names("policies") if text.strip().lower() == "all" else text.split(",")
    return list({each.strip(): Choice.of(each.strip()) for each in named}.values())


def _token_bytes(stated: int | None, model: str | None, kv_bytes: int) -> int | None:
    from hitlab import kvsize

    if stated is not None and model is not None:
        raise UsageError("both --bytes-per-token and --model are given", todo="give one of them")
    if stated is not None and stated < 1:
        raise UsageError(f"{stated} bytes per token", todo="give 1 or more")
    return kvsize.architecture(model).bytes_per_token(kv_bytes) if model else stated


def _sizes(capacity: str | None, memory: str | None, token_bytes: int | None) -> Any:
    """A function of block size and curve: the capacities, or None where they wait for a curve."""
    from hitlab import sweep

    if capacity is not None and memory is not None:
        raise UsageError("both --capacity and --memory are given", todo="give one of them")
    if memory is not None:
        if token_bytes is None:
            raise UsageError("--memory needs to know what a token takes", todo="add --bytes-per-token or --model")
        return lambda block_tokens, curve: sweep.memory_capacities(memory, token_bytes, block_tokens)
    listed = sweep.capacities(capacity or "auto")
    if listed is not None:
        return lambda block_tokens, curve: listed
    return lambda block_tokens, curve: curve and sweep.auto_capacities(curve(), SMALLEST_AUTO)


def _title(wanted: "Sweep", path: Path) -> str:
    trace: Trace = wanted.trace
    return f"{path.name}: {trace.requests:,} requests, blocks of {trace.block_tokens:,} tokens"


def _document(
    wanted: "Sweep", points: "Sequence[Point]", path: Path, warmup: float, block_bytes: int | None, complete: bool
) -> dict[str, Any]:
    from hitlab import kernels, replay

    policies = {}
    for choice in wanted.choices:
        policy = kernels.policy_named(choice.policy)
        options = replay.options_of(policy) | dict(choice.options)
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


def _write_csv(points: "Sequence[Point]", path: Path, block_bytes: int | None) -> None:
    import csv

    import msgspec

    from hitlab.sweep import Point

    columns = list(Point.__struct_fields__)
    try:
        with path.open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow([*columns, *(["memory_bytes"] if block_bytes else [])])
            for each in points:
                memory = [each.capacity_blocks * block_bytes] if block_bytes else []
                rows.writerow([*msgspec.structs.astuple(each), *memory])
    except OSError as error:
        raise InputError(f"the points can't be written: {error.strerror}", where=str(path)) from None


def _print(
    wanted: "Sweep", points: "Sequence[Point]", path: Path, warmup: float, weight: str, block_bytes: int | None
) -> None:

    console = opt.console()
    console.print(_title(wanted, path))
    counted = "floor((L-1)/B)*B, as engines do" if wanted.engine_cap else "min(k*B, L)"
    console.print(f"hits are the longest resident prefix; k blocks of B tokens count {counted}")
    if wanted.trace.skipped_rows:
        console.print(f"skipped rows: {wanted.trace.skipped_rows:,}, first {wanted.trace.first_skipped}")
    labels = [choice.label for choice in wanted.choices]
    if len(labels) == 1:
        console.print(_one_policy(points, block_bytes))
        return
    phases = {"cold": "cold: all requests, from an empty cache"}
    if wanted.first_steady:
        phases["steady"] = f"steady: requests after the first {warmup:.0%}"
    for phase, said in phases.items():
        rate = f"{phase}_{weight}_hit_rate"
        console.print(f"\n{said}; hit rate in %, {weight}-weighted")
        for table in _policy_tables(points, labels, rate, block_bytes):
            console.print(table)
        for line in _crossings(points, labels, rate):
            console.print(line)


def _crossings(points: "Sequence[Point]", labels: Sequence[str], rate: str) -> Iterator[str]:
    """Where a policy and LRU change places, if they do so once."""
    from hitlab import sweep

    for label in labels:
        found = list(sweep.crossings(points, label, "lru", rate)) if "lru" in labels and label != "lru" else []
        if len(found) == 1:
            leader, below, above = found[0]
            other = label if leader == "lru" else "lru"
            yield f"{leader} beats {other} up to {below:,} blocks and loses to it from {above:,}"


def _one_policy(points: "Sequence[Point]", block_bytes: int | None) -> Any:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD)
    memory = ["GiB"] if block_bytes else []
    names = ["cold\ntokens", "cold\nrequests", "steady\ntokens", "steady\nrequests"]
    for name in ("blocks", *memory, *names, "resident\nat the end"):
        table.add_column(name, justify="right")
    for each in points:
        rates = (
            each.cold_token_hit_rate,
            each.cold_request_hit_rate,
            each.steady_token_hit_rate,
            each.steady_request_hit_rate,
        )
        table.add_row(
            f"{each.capacity_blocks:,}",
            *([_gib(each.capacity_blocks, block_bytes)] if block_bytes else []),
            *(_percent(rate, " %") for rate in rates),
            f"{each.final_blocks:,}",
        )
    return table


def _policy_tables(
    points: "Sequence[Point]", labels: Sequence[str], rate: str, block_bytes: int | None
) -> "Iterator[Any]":
    """A column a policy, as many as 80 columns hold, then the next ones."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    rates = {(each.policy, each.capacity_blocks): getattr(each, rate) for each in points}
    capacities = sorted({each.capacity_blocks for each in points})
    rest = list(labels)
    while rest:
        room = 80 - (24 if block_bytes else 13)
        shown: list[str] = []
        while rest and (not shown or room >= max(5, len(rest[0])) + 2):
            room -= max(5, len(rest[0])) + 2
            shown.append(rest.pop(0))
        table = Table(box=SIMPLE_HEAD, padding=(0, 1))
        for name in ("blocks", *(["GiB"] if block_bytes else []), *shown):
            table.add_column(name, justify="right", overflow="fold")
        for capacity in capacities:
            memory = [_gib(capacity, block_bytes)] if block_bytes else []
            cells = (_percent(rates.get((label, capacity))) for label in shown)
            table.add_row(f"{capacity:,}", *memory, *cells)
        yield table


def _percent(rate: float | None, unit: str = "") -> str:
    return "-" if rate is None else f"{100 * rate:.2f}{unit}"


def _gib(blocks: int, block_bytes: int) -> str:
    return f"{blocks * block_bytes / 2**30:,.1f}"
