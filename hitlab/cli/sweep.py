"""`hitlab sweep`: policies times capacities on one trace."""

import sys
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hitlab import families
from hitlab.cli import _options as opt
from hitlab.cli import _trace_options as given
from hitlab.errors import InterruptedRunError, UsageError

if TYPE_CHECKING:
    from hitlab.simulation.hit_curve import Curves
    from hitlab.simulation.policy import Choice
    from hitlab.simulation.sweep import Point
    from hitlab.simulation.sweep_runner import Sweep
    from hitlab.traces.trace import Trace

MAX_ELEMENT_BYTES = 16
TABLE_WIDTH = 80
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
    force: opt.Force = False,
    as_json: opt.Json = False,
) -> None:
    """Replay a trace at many cache sizes: how much cache it needs, and whether the policy matters.

    Cold is the whole trace from an empty cache, steady the requests after the warm-up.

    LRU's points come from one pass, those of others from a replay each, on all cores.

    Ctrl-C keeps the finished points; the same command goes on from there.

    Example: hitlab sweep conversation_trace.jsonl --policy s3fifo,lru --capacity 1000:100000:log30 --plot curves.svg
    """
    from hitlab.cli import _points
    from hitlab.cli._progress import progress
    from hitlab.simulation import kernel_store, replay, request_file, sweep_runner
    from hitlab.simulation.hit_curve import Curves
    from hitlab.simulation.workers import Workers

    _check(weight, warmup, jobs)
    _claim(trace, csv, plot, requests_out, force)
    choices = _choices(policy, drawn=plot is not None)
    token_bytes = _token_bytes(bytes_per_token, model, kv_bytes)
    sizes = _sizes(capacity, memory, token_bytes)
    # before a long file is read, whose blocks may turn out larger
    sweep_runner.check(choices, sizes(max(block_size or 1, 1), None) or [SMALLEST_AUTO])
    requests = given.read(trace, block_size, form, skip_malformed)

    curves = Curves(requests, engine_cap=engine_cap)
    capacities = sizes(requests.block_tokens, curves) or [SMALLEST_AUTO]
    sweep_runner.check(choices, capacities)
    wanted = sweep_runner.Sweep(
        requests, choices, capacities, replay.first_warm(requests.requests, warmup), engine_cap, {}
    )
    partial = sweep_runner.partial_file(out, wanted)
    workers = Workers(jobs, backend, scheduler, work_folder)
    stopped: InterruptedRunError | None = None
    try:
        with progress(f"{wanted.size:,} points") as on_progress, kernel_store.announced(_announce):
            sweep_runner.run(wanted, curves, workers, partial, on_progress)
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
        _points.write(points, csv, block_bytes)
        _say(f"csv: {csv}")
    if plot and points:
        _draw(wanted, points, plot, _title(wanted, trace), weight, block_bytes)
    if stopped:
        raise stopped
    if requests_out:
        with request_file.opened(requests_out) as write, progress("requests") as on_progress:
            for number, (label, replayed) in enumerate(sweep_runner.replays(wanted), 1):
                write(replayed, {"policy": label, "capacity_blocks": replayed.capacity_blocks})
                on_progress(number, wanted.size)
        _say(f"requests: {requests_out}")


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


def _claim(trace: Path, csv: Path | None, plot: Path | None, requests_out: Path | None, force: bool) -> None:
    """Raise UsageError or InputError for a file that can't be written, or must not be."""
    from hitlab.cli import _points
    from hitlab.files import Output, claim
    from hitlab.report import generator, sweep_plot
    from hitlab.simulation import request_file

    outputs: list[Output] = []
    if csv:
        outputs.append(Output("--csv", csv, "a table of points", _points.wrote))
    if plot:
        sweep_plot.check_form(plot)
        outputs.append(Output("--plot", plot, "a picture", generator.drew))
    if requests_out:
        outputs.append(request_file.output(requests_out))
    claim(outputs, [trace], force=force)


def _choices(text: str, drawn: bool) -> "list[Choice]":
    from hitlab.report.sweep_plot import check_lines
    from hitlab.simulation.policy import Choice

    named = families.names("policies") if text.strip().lower() == "all" else text.split(",")
    choices: list[Choice] = []
    for each in map(Choice.of, map(str.strip, named)):
        if any((each.policy, each.options) == (other.policy, other.options) for other in choices):
            raise UsageError(f"--policy has {each.label} twice", todo="name each policy once")
        choices.append(each)
    if drawn:
        check_lines(len(choices))
    return choices


def _token_bytes(stated: int | None, model: str | None, kv_bytes: int) -> int | None:
    from hitlab.simulation import kv_size

    if stated is not None and model is not None:
        raise UsageError("both --bytes-per-token and --model are given", todo="give one of them")
    if stated is not None and not 1 <= stated <= kv_size.MAX_MEMORY_BYTES:
        raise UsageError(f"--bytes-per-token is {stated}", todo=f"give 1 to {kv_size.MAX_MEMORY_BYTES:,}")
    if not 1 <= kv_bytes <= MAX_ELEMENT_BYTES:
        raise UsageError(f"--kv-bytes is {kv_bytes}", todo=f"give 1 to {MAX_ELEMENT_BYTES}: 1 for FP8, 2 for 16 bits")
    return stated if model is None else kv_size.architecture(model).bytes_per_token(kv_bytes)


def _sizes(capacity: str | None, memory: str | None, token_bytes: int | None) -> Any:
    """A function of block size and curves: the capacities, or None where they wait for LRU's hit-ratio curve."""
    from hitlab.simulation import sweep

    if capacity is not None and memory is not None:
        raise UsageError("both --capacity and --memory are given", todo="give one of them")
    if memory is not None:
        if token_bytes is None:
            raise UsageError("--memory needs to know what a token takes", todo="add --bytes-per-token or --model")
        return lambda block_tokens, curves: sweep.memory_capacities(memory, token_bytes, block_tokens)
    listed = sweep.capacities("auto" if capacity is None else capacity)
    if listed is not None:
        return lambda block_tokens, curves: listed

    def automatic(block_tokens: int, curves: "Curves | None") -> list[int] | None:
        from hitlab.simulation.hit_curve import lru_curve

        return None if curves is None else sweep.auto_capacities(curves.of(lru_curve), SMALLEST_AUTO)

    return automatic


def _title(wanted: "Sweep", path: Path) -> str:
    trace: Trace = wanted.trace
    return f"{path.name}: {trace.requests:,} requests, blocks of {trace.block_tokens:,} tokens"


def _document(
    wanted: "Sweep", points: "Sequence[Point]", path: Path, warmup: float, block_bytes: int | None, complete: bool
) -> dict[str, Any]:
    from hitlab.simulation.policy import options_of

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


def _draw(
    wanted: "Sweep", points: "Sequence[Point]", path: Path, title: str, weight: str, block_bytes: int | None
) -> None:
    from hitlab.report.sweep_plot import draw

    rate = f"{'steady' if wanted.first_steady else 'cold'}_{weight}_hit_rate"
    draw(points, path, title=title, rate=rate, block_bytes=block_bytes)
    _say(f"plot: {path}")


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
        _show(_one_policy(points, block_bytes))
        return
    phases = {"cold": "cold: all requests, from an empty cache"}
    if wanted.first_steady:
        phases["steady"] = f"steady: requests after the first {warmup:.0%}"
    for phase, said in phases.items():
        rate = f"{phase}_{weight}_hit_rate"
        console.print(f"\n{said}; hit rate in %, {weight}-weighted")
        for columns in _policy_tables(points, labels, rate, block_bytes):
            _show(columns)
        for line in _comparisons(points, wanted.choices, rate):
            console.print(line)


def _comparisons(points: "Sequence[Point]", choices: "Sequence[Choice]", rate: str) -> Iterator[str]:
    """Each policy beside LRU, or the first one where LRU is not among them; no upper bounds."""
    from hitlab.simulation import sweep

    labels = [each.label for each in choices if each.load().BOUNDED]
    baseline = "lru" if "lru" in labels else next(iter(labels), "")
    lines = (sweep.comparison(points, label, baseline, rate) for label in labels if label != baseline)
    yield from filter(None, lines)


Column = list[str]  # a heading, of one line or more, and cells


def _one_policy(points: "Sequence[Point]", block_bytes: int | None) -> list[Column]:
    names = ["cold\ntokens", "cold\nrequests", "steady\ntokens", "steady\nrequests"]
    rates = ["cold_token_hit_rate", "cold_request_hit_rate", "steady_token_hit_rate", "steady_request_hit_rate"]
    return [
        *_size_columns([each.capacity_blocks for each in points], block_bytes),
        *([name, *(_percent(getattr(p, rate), " %") for p in points)] for name, rate in zip(names, rates, strict=True)),
        ["resident\nat the end", *(f"{each.final_blocks:,}" for each in points)],
    ]


def _policy_tables(
    points: "Sequence[Point]", labels: Sequence[str], rate: str, block_bytes: int | None
) -> "Iterator[list[Column]]":
    """A column a policy, as many as 80 columns hold, then the next ones."""
    rates = {(each.policy, each.capacity_blocks): getattr(each, rate) for each in points}
    capacities = sorted({each.capacity_blocks for each in points})
    sizes = _size_columns(capacities, block_bytes)
    shown = list(sizes)
    for label in labels:
        column = [label, *(_percent(rates.get((label, capacity))) for capacity in capacities)]
        if len(shown) > len(sizes) and _table_width([*shown, column]) > TABLE_WIDTH:
            yield shown
            shown = list(sizes)
        shown.append(column)
    yield shown


def _size_columns(capacities: Sequence[int], block_bytes: int | None) -> list[Column]:
    columns = [["blocks", *(f"{capacity:,}" for capacity in capacities)]]
    if block_bytes:
        columns.append(["GiB", *(_gib(capacity, block_bytes) for capacity in capacities)])
    return columns


def _table_width(columns: Sequence[Column]) -> int:
    """Of the printed table: cells with a space on both sides, a gap between columns and one at each end."""
    return 1 + sum(3 + max(map(len, chain(*map(str.splitlines, column)))) for column in columns)


def _show(columns: Sequence[Column]) -> None:
    """Print a table at its own width: on a narrower terminal lines wrap, numbers are never cut."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, width=_table_width(columns))
    for heading, *_ in columns:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in zip(*(cells for _, *cells in columns), strict=True):
        table.add_row(*row)
    opt.console().print(table, crop=False)


def _percent(rate: float | None, unit: str = "") -> str:
    return "-" if rate is None else f"{100 * rate:.2f}{unit}"


def _gib(blocks: int, block_bytes: int) -> str:
    return f"{blocks * block_bytes / 2**30:,.1f}"
