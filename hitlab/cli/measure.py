"""`hitlab measure`: drive an engine, read its counters, compare them with both predictions."""

import random
import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from hitlab import files
from hitlab.cli import _options as opt
from hitlab.cli import _server_options as given
from hitlab.cli import _signals, _target
from hitlab.cli._plan import print_plan
from hitlab.cli._progress import RunProgress
from hitlab.cli._run_result import print_result
from hitlab.errors import InputError, InterruptedRunError, UsageError
from hitlab.experiment.closed_form import check_shape, shape_of
from hitlab.experiment.plan import Experiment, plan
from hitlab.experiment.shape import BreakOptions
from hitlab.flags import in_flags
from hitlab.measurement.asked import Asked
from hitlab.measurement.prepare import Prepared
from hitlab.measurement.run import Run, prepare_run
from hitlab.results import store
from hitlab.results.run_result import Result


def command(
    engine: given.EngineName,
    base_url: given.BaseUrl = None,
    metrics_url: given.MetricsUrl = None,
    emulate: given.Emulate = False,
    cpu: given.Cpu = False,
    requests: opt.Requests = 64,
    prefix_len: opt.PrefixLen = 1000,
    suffix_len: opt.SuffixLen = 200,
    groups: opt.Groups = 1,
    per_group: opt.PerGroup = None,
    workload: opt.Workload = "shared-prefix",
    output_len: opt.OutputLen = 1,
    block_size: given.BlockSize = None,
    capacity_blocks: given.CapacityBlocks = None,
    dp: given.Ranks = None,
    break_mode: opt.BreakMode = "none",
    break_at: opt.BreakAt = 0,
    break_fixed: opt.BreakFixed = False,
    flood_requests: Annotated[
        str, typer.Option("--flood-requests", help="Prompts in the flood, or auto: as many as fill the pool.")
    ] = "400",
    flood_len: Annotated[int, typer.Option("--flood-len", help="Tokens of each flood prompt.")] = 4096,
    concurrency: Annotated[
        int, typer.Option("--concurrency", help="Requests in flight, once a phase's first has completed.")
    ] = 1,
    cold_by: opt.ColdBy = "reset",
    seed: Annotated[
        int | None, typer.Option("--seed", help="Same seed, same prompts (default: 0; random with fresh-prefix).")
    ] = None,
    vocab_range: opt.VocabRange = None,
    vocab_size: opt.VocabSize = None,
    api_key_env: given.ApiKeyEnv = None,
    admin_key_env: given.AdminKeyEnv = None,
    timeout: given.Timeout = 120.0,
    fault: given.Fault = None,
    engine_arg: given.EngineArg = None,
    log: Annotated[
        Path | None, typer.Option("--log", help="Count tokens in the engine's log, where it runs without metrics.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder for the result file.")] = Path("results"),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and send nothing.")] = False,
    as_json: opt.Json = False,
) -> None:
    """Measure an engine's prefix-cache hit rate and compare it with the prediction, to the token.

    Exit status: 0 agrees, 3 measured well but disagrees, 4 the run can't be trusted, 1 error, 2 usage.

    Example: hitlab measure --engine vllm --emulate --break-mode capacity
    """
    shape = shape_of(requests, prefix_len, suffix_len, groups, per_group)
    check_shape(shape, 1 if block_size is None else block_size, 1 if dp is None else dp)
    auto = flood_requests == "auto"
    if not auto and not (flood_requests.isdecimal() and len(flood_requests) < 10):
        raise UsageError(f"--flood-requests {flood_requests!r} is no number", todo="give a number, or auto")
    opt.note_unused_break_options(break_mode, break_at, break_fixed)
    if seed is None:
        # A prefix is fresh only if no earlier run sent it.
        seed = random.SystemRandom().randrange(2**31) if cold_by == "fresh-prefix" else 0
    experiment = Experiment(
        shape,
        break_mode,
        BreakOptions(break_at, break_fixed),
        seed,
        concurrency=concurrency,
        flood_requests=0 if auto else int(flood_requests),
        flood_tokens=flood_len,
        cold_by=cold_by,
        workload=workload,
        output_tokens=output_len,
    )
    plan(experiment, dp or 1)  # what can't be sent is said before anything is started
    asked = Asked(
        block_tokens=block_size,
        capacity_blocks=capacity_blocks,
        ranks=dp,
        auto_flood=auto,
        vocab_range=opt.token_range(vocab_range),
        vocab_tokens=vocab_size,
    )
    if log and (emulate or cpu):
        raise UsageError("--log is for a server that runs without metrics", todo="leave it out, or name --base-url")
    if dry_run:
        print_plan(engine, experiment, asked, as_json)
        return
    _measure(
        _target.Target(
            engine=engine,
            base_url=base_url,
            metrics_urls=tuple(metrics_url or ()),
            emulate=emulate,
            cpu=cpu,
            asked=asked,
            api_key_env=api_key_env,
            admin_key_env=admin_key_env,
            timeout_s=timeout,
            faults=tuple(fault or ()),
            engine_args=tuple(engine_arg or ()),
        ),
        experiment,
        asked,
        log,
        out,
        as_json,
    )


def _measure(
    where: _target.Target, experiment: Experiment, asked: Asked, log: Path | None, out: Path, as_json: bool
) -> None:
    err = opt.console(stderr=True)
    files.check_folder(out)
    run: Run | None = None
    walked, result = False, None
    saved: Path | InputError | None = None
    try:
        with where.connected(experiment.concurrency) as (loop, client), RunProgress(err) as watch:
            try:
                run = loop.run(prepare_run(client, asked, experiment, log))
                _announce(run.prepared, err)
                loop.run(run.walk(watch))
                walked = True
            finally:  # before a server of ours is ended, which may take a while
                if run and (walked or run.phases):
                    with _signals.held():
                        result = _result(run, where, log)
                        saved = _saved(result, out)
    except KeyboardInterrupt:
        raise InterruptedRunError("interrupted", todo=_kept(saved) or "nothing had been measured yet") from None
    except Exception:
        if kept := _kept(saved):
            print(f"hitlab: {in_flags(kept)}", file=sys.stderr)
        raise
    assert result is not None
    _show(result, saved, as_json)
    raise typer.Exit(result.exit_status)


def _show(result: Result, saved: Path | InputError | None, as_json: bool) -> None:
    """Print the result and where it was saved. Raises why it could not be."""
    # A full disk or a full pipe takes at most one of the two, the file or what is shown.
    try:
        if as_json:
            opt.print_json(result)
        else:
            print_result(result)
        sys.stdout.flush()
    finally:
        if isinstance(saved, Path):
            print(f"result: {saved}", file=sys.stderr)
    if isinstance(saved, InputError):
        raise saved


def _saved(result: Result, out: Path) -> Path | InputError:
    """Save a result and return its file, or why that could not be done: it can still be shown."""
    try:
        return store.save(result, out)
    except InputError as error:
        return error


def _kept(saved: Path | InputError | None) -> str:
    """What became of a run that was cut short, in words; nothing where nothing was measured."""
    return f"what was measured is in {saved}" if isinstance(saved, Path) else str(saved or "")


def _announce(prepared: Prepared, err: Console) -> None:
    """What has to be said of a run before it begins."""
    if prepared.facts.emulated:
        err.print("EMULATED: a model of the engine answers, nothing here is a measurement of a real one")
    for warning in prepared.warnings:
        err.print(f"note: {in_flags(warning)}")
    for check in prepared.checks:
        if not check.ok:
            err.print(f"note: {check.name}: {check.detail}; the run will not be valid")


def _result(run: Run, where: _target.Target, log: Path | None) -> Result:
    """What the run has measured, and how its server was asked for."""
    return msgspec.structs.replace(run.result(), server=where.as_asked(log))
