"""`hitlab lab`: experiments that ask one question each, listed, explained and run."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.padding import Padding

from hitlab import families, files
from hitlab.cli import _options as opt
from hitlab.cli import _server_options as given
from hitlab.cli import _signals, _target
from hitlab.cli._lab_result import print_lab
from hitlab.cli._progress import progress
from hitlab.cli._tables import sheet
from hitlab.client.dialect import load_engine
from hitlab.client.http import root_url
from hitlab.errors import InterruptedRunError, UsageError
from hitlab.experiment.lab import Lab, load_lab
from hitlab.experiment.plan import Experiment, check_numbers
from hitlab.experiment.shape import SharedPrefix
from hitlab.measurement.asked import Asked
from hitlab.measurement.lab import LabRun
from hitlab.report import lab_plot
from hitlab.results import store
from hitlab.results.reproduce import lab_command
from hitlab.servers.cpu.recipe import load_cpu_recipe

app = typer.Typer(
    no_args_is_help=True,
    help="Experiments that ask one question each: predict, run, look at the picture.\n\nExample: hitlab lab list",
)

Name = Annotated[str, typer.Argument(help="A lab; `lab list` lists them.")]


@app.command("list")
def list_(as_json: opt.Json = False) -> None:
    """List the labs and the question each asks.

    Example: hitlab lab list
    """
    labs = {name: load_lab(name) for name in families.names("labs")}
    if as_json:
        opt.print_json([{"name": name, "title": lab.title, "question": lab.question} for name, lab in labs.items()])
        return
    opt.console().print(sheet({name: lab.question for name, lab in labs.items()}))
    opt.console().print("\nhitlab lab show NAME says what to predict first")


@app.command()
def show(name: Name, as_json: opt.Json = False) -> None:
    """Explain a lab: its question, what to predict before running it, what the picture should look like.

    Example: hitlab lab show break-staircase
    """
    lab = load_lab(name)
    parts = {
        "question": lab.question,
        "predict": lab.predict,
        "picture": lab.picture,
        "swept": lab.axis.label,
        "source": lab.source,
    }
    if as_json:
        opt.print_json({"name": name, "title": lab.title, **parts})
        return
    console = opt.console()
    console.print(lab.title)
    headings = ("The question", "Predict before you run it", "The picture, once you have", "Swept", "Source")
    for heading, text in zip(headings, parts.values(), strict=True):
        console.print(f"\n{heading}")
        console.print(Padding(text, (0, 0, 0, 2)))
    console.print(f"\nRun it: hitlab lab run {name} --engine vllm --emulate")


@app.command()
def run(
    name: Name,
    engine: given.EngineName,
    base_url: given.BaseUrl = None,
    metrics_url: given.MetricsUrl = None,
    emulate: given.Emulate = False,
    cpu: given.Cpu = False,
    block_size: Annotated[
        str | None,
        typer.Option(
            "--block-size",
            "--page-size",
            help="Of servers started here, one after another, as 1,16 (default: the lab's).",
        ),
    ] = None,
    capacity_blocks: given.CapacityBlocks = None,
    dp: given.Ranks = None,
    quick: Annotated[bool, typer.Option("--quick", help="Only the points that matter, not a dense curve.")] = False,
    cold_by: opt.ColdBy = "reset",
    seed: Annotated[int, typer.Option("--seed", help="Of the first trial; each later one takes the next.")] = 0,
    vocab_range: opt.VocabRange = None,
    vocab_size: opt.VocabSize = None,
    api_key_env: given.ApiKeyEnv = None,
    admin_key_env: given.AdminKeyEnv = None,
    timeout: given.Timeout = 120.0,
    fault: given.Fault = None,
    engine_arg: given.EngineArg = None,
    log: Annotated[
        Path | None, typer.Option("--log", help="The engine's log, read after each step and shown beside the counters.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder for the result and its pictures.")] = Path("results"),
    as_json: opt.Json = False,
) -> None:
    """Run a lab and draw it: a JSON file with every point, and the picture as SVG and PNG.

    Exit status: 0 all points agree with the model, 3 some do not, 4 a run can't be trusted, 1 error, 2 usage.

    Example: hitlab lab run break-staircase --engine sglang --emulate
    """
    check_numbers(Experiment(SharedPrefix(1, 1, 1), cold_by=cold_by))
    lab = load_lab(name)
    started_here = emulate or cpu
    sizes = _block_sizes(block_size) or (_own_sizes(lab, engine, cpu) if started_here else [None])
    if log and started_here:
        raise UsageError("--log is for a server that was started elsewhere", todo="leave it out, or name --base-url")
    if len(sizes) > 1 and not started_here:
        raise UsageError("a running server has one block size", todo="give --block-size one number")
    asked = Asked(
        capacity_blocks=capacity_blocks, ranks=dp, vocab_range=opt.token_range(vocab_range), vocab_tokens=vocab_size
    )
    targets = [
        _target.Target(
            engine=engine,
            base_url=base_url,
            metrics_urls=tuple(metrics_url or ()),
            emulate=emulate,
            cpu=cpu,
            asked=_sized(replace(asked, block_tokens=size), lab, engine, cpu) if started_here else asked,
            api_key_env=api_key_env,
            admin_key_env=admin_key_env,
            timeout_s=timeout,
            faults=tuple(fault or ()),
            engine_args=tuple(engine_arg or ()),
        )
        for size in sizes
    ]
    if not started_here:
        targets = [replace(targets[0], asked=replace(asked, block_tokens=sizes[0]))]
    where = ["--emulate"] if emulate else ["--cpu"] if cpu else ["--base-url", root_url(base_url)] if base_url else []
    options = {
        "--block-size": block_size,
        "--capacity-blocks": capacity_blocks,
        "--dp": dp,
        "--quick": quick,
        "--cold-by": None if cold_by == "reset" else cold_by,
        "--vocab-range": vocab_range,
        "--seed": seed or None,
        "--log": log,
    }
    command = lab_command(name, engine, where, options)
    _run(LabRun(name.lower(), lab, command, seed, quick, cold_by, log), targets, out, as_json)


_NOTHING = "nothing had been measured yet"


def _run(lab_run: LabRun, targets: list[_target.Target], out: Path, as_json: bool) -> None:
    files.check_folder(out)
    if any(where.emulate for where in targets):
        print("EMULATED: a model of the engine answers, nothing here is a measurement of a real one", file=sys.stderr)
    stopped: Exception | None = None
    path: Path | None = None
    try:
        for where in targets:
            with where.connected(connections=64) as (loop, client), progress(f"lab {lab_run.name}") as told:
                try:
                    loop.run(lab_run.on(client, where.asked, told))
                    lab_run.complete = where is targets[-1]
                except BaseException:  # before a server of ours is ended, which may take a while
                    path = _saved(lab_run, out)
                    raise
    except KeyboardInterrupt:
        stopped = InterruptedRunError("interrupted", todo=f"what was measured is in {path}" if path else _NOTHING)
    except Exception as error:  # as when the server dies: what was measured before is worth as much
        stopped = error
    try:
        path = path or _saved(lab_run, out)
        if path is None:
            raise stopped or UsageError(f"lab {lab_run.name} has no points on this server")
        print(f"result: {path}", file=sys.stderr, flush=True)
        result = lab_run.result()
        files.write_new(out, path.stem, lab_plot.svg(result).encode(), ".svg")
        files.write_new(out, path.stem, lab_plot.png(result), ".png")
        print("beside it .svg and .png", file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        raise InterruptedRunError("interrupted", todo=f"the result is {path}" if path else _NOTHING) from None
    if as_json:
        opt.print_json(result)
    else:
        print_lab(result)
    if stopped:
        raise stopped
    raise typer.Exit(result.exit_status)


def _saved(lab_run: LabRun, out: Path) -> Path | None:
    """Save what has been found so far, under a name that the pictures can have, too; None where nothing was."""
    with _signals.held():
        result = lab_run.result()
        return store.save_lab(result, out, beside=(".svg", ".png")) if result.parts else None


def _block_sizes(text: str | None) -> list[int | None]:
    """What --block-size lists; nothing where it is not given. Raises UsageError."""
    if text is None:
        return []
    words = text.split(",")
    if not all(word.isdecimal() and int(word) for word in words):
        raise UsageError(f"--block-size {text!r} is no number of tokens", todo="give 16, or 1,16 for one after another")
    return [int(word) for word in words]


def _own_sizes(lab: Lab, engine: str, cpu: bool) -> list[int | None]:
    """The lab's block sizes, as far as a server started here can have them, each once."""
    default = _default_block_tokens(engine, cpu)
    multiple = load_cpu_recipe(engine).block_multiple if cpu else 1
    sizes = dict.fromkeys(size or default for size in lab.block_tokens)
    return [size for size in sizes if size % multiple == 0]


def _sized(asked: Asked, lab: Lab, engine: str, cpu: bool) -> Asked:
    """With the lab's pool, where the user names none."""
    if asked.capacity_blocks is not None or lab.pool_tokens is None:
        return asked
    block_tokens = asked.block_tokens or _default_block_tokens(engine, cpu)
    return replace(asked, capacity_blocks=max(2, lab.pool_tokens // block_tokens))


def _default_block_tokens(engine: str, cpu: bool) -> int:
    return load_cpu_recipe(engine).block_tokens if cpu else load_engine(engine).DEFAULT_BLOCK_TOKENS
