"""`hitlab results`: the runs kept in results/, listed, shown again, compared."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.padding import Padding

from hitlab.cli import _options as opt
from hitlab.cli._format import count, percent, signed
from hitlab.cli._run_result import print_result
from hitlab.cli._tables import Column, fitted
from hitlab.errors import InputError
from hitlab.experiment.shape import Role, scored
from hitlab.results import store
from hitlab.results.diff import Difference, Side, difference
from hitlab.results.reproduce import asked_in_words
from hitlab.results.run_result import PhaseResult, Result

app = typer.Typer(
    no_args_is_help=True,
    help="List, show and compare the results that measure has kept.\n\nExample: hitlab results list",
)

_Folder = Annotated[Path, typer.Option("--folder", help="Where measure put them, with its --out.")]
_NAME = "A file, the beginning of a result's name, or latest."


@app.command("list")
def list_(folder: _Folder = Path("results"), as_json: opt.Json = False) -> None:
    """List every kept result, the oldest first: when, which engine, what was asked, what came out.

    Example: hitlab results list
    """
    found: list[tuple[Path, Result]] = []
    for path in store.kept(folder):
        try:
            found.append((path, store.load(path)))
        except InputError as error:
            opt.note(f"left out: {error}")
    if as_json:
        opt.print_json([_row(path, result) for path, result in found])
        return
    names = store.short_names(store.kept(folder), folder)
    columns = (
        Column("result", left=True),
        Column("engine", left=True, spare=1, wraps=True),
        Column("asked", left=True, spare=2, wraps=True),
        Column("hit rate"),
        Column("verdict", left=True, wraps=True),
    )
    rows = [
        (names[path], _server(result), asked_in_words(result), _percent(result), _outcome(result))
        for path, result in found
    ]
    opt.console().print(fitted(columns, rows, opt.console().width))
    if any(_probed(result) for _, result in found):
        opt.console().print("hit rate after a flood: of the one request that probes what it left")
    opt.console().print(f"{len(found):,} result{'s'[: len(found) != 1]} in {folder}; hitlab results show RESULT")


@app.command()
def show(
    result: Annotated[str, typer.Argument(help=_NAME)],
    folder: _Folder = Path("results"),
    as_json: opt.Json = False,
) -> None:
    """Show a kept result as measure showed it.

    Example: hitlab results show latest
    """
    path = store.find(result, folder)
    loaded = store.load(path)
    if as_json:
        opt.print_json(loaded)
        return
    print_result(loaded)
    opt.console().print(f"asked: {asked_in_words(loaded)}, seed {loaded.seed}, {loaded.started_utc}")
    print(f"result: {path}", file=sys.stderr)


@app.command()
def diff(
    a: Annotated[str, typer.Argument(help=_NAME)],
    b: Annotated[str, typer.Argument(help=_NAME)],
    folder: _Folder = Path("results"),
    as_json: opt.Json = False,
) -> None:
    """Compare two kept results: what was asked differently, and the tokens of each phase.

    Exit status: 0 the same tokens in every phase, 3 not.

    Example: hitlab results diff 20261129T231012 latest
    """
    paths = [store.find(name, folder) for name in (a, b)]
    found = difference(*map(store.load, paths))
    if as_json:
        opt.print_json(found)
    else:
        _print_difference(found, paths)
    if not found.same_tokens:
        raise typer.Exit(3)


def _row(path: Path, result: Result) -> dict[str, object]:
    return {
        "file": str(path),
        "started_utc": result.started_utc,
        "engine": result.engine,
        "experiment": result.experiment,
        "hit_rate": _hit_rate(result),
        "valid": result.valid,
        "agrees": result.agrees,
        "complete": result.complete,
        "verdict": result.verdict,
    }


def _hit_rate(result: Result) -> float | None:
    """The hit rate of the phases that the break is judged by; after a flood, of the probe."""
    phases = _probed(result) or scored(result.phases)
    queried = sum(phase.queried_tokens for phase in phases)
    return sum(phase.hit_tokens for phase in phases) / queried if queried else None


def _probed(result: Result) -> list[PhaseResult]:
    """Phases that probe the cache after a flood: the rest of the pass stores again what was lost, and hides it."""
    return [phase for phase in result.phases if phase.role is Role.PROBE]


def _percent(result: Result) -> str:
    return percent(_hit_rate(result) if result.valid else None)


def _server(result: Result) -> str:
    engine = result.engine
    version = (engine.version or "?").replace("+emulated", "")
    return f"{engine.title} {version}{' EMULATED' if engine.source == 'emulated' else ''}, B={engine.block_tokens}"


def _outcome(result: Result) -> str:
    return result.verdict if result.valid else "INVALID" if result.complete else "interrupted"


def _print_difference(found: Difference, paths: list[Path]) -> None:
    console = opt.console()
    console.print(f"A {paths[0]}\nB {paths[1]}\n")
    if found.asked:
        asked = [Column(heading, left=True, wraps=True) for heading in ("asked differently", "A", "B")]
        values = [(each.name, _value(each.a), _value(each.b)) for each in found.asked]
        console.print(Padding(fitted(asked, values, console.width - 1, edge=False), (0, 0, 0, 1)))
    else:
        console.print("asked: the same")
    headings = ("phase", "A hit tokens", "of", "B hit tokens", "of", "B - A", "points", "prompts")
    spare = {"points": 1, "prompts": 2}
    columns = [Column(each, left=each in ("phase", "prompts"), spare=spare.get(each, 0)) for each in headings]
    rows = []
    for phase in found.phases:
        sides = [count(tokens) for side in (phase.a, phase.b) for tokens in _tokens(side)]
        prompts = "-" if not (phase.a and phase.b) else "same" if phase.same_prompts else "others"
        rows.append((phase.name, *sides, *_moved(phase.a, phase.b), prompts))
    console.print(fitted(columns, rows, console.width))
    words = [
        f"{verdict}{'' if valid else ' (INVALID)'}"
        for verdict, valid in ((found.a_verdict, found.a_valid), (found.b_verdict, found.b_valid))
    ]
    console.print(f"verdict: {words[0]}" if words[0] == words[1] else f"verdict: A {words[0]}, B {words[1]}")


def _tokens(side: Side | None) -> tuple[int | None, int | None]:
    return (side.hit_tokens, side.queried_tokens) if side else (None, None)


def _moved(a: Side | None, b: Side | None) -> tuple[str, str]:
    """Tokens and percentage points from A to B."""
    if not (a and b):
        return "-", "-"
    tokens = b.hit_tokens - a.hit_tokens
    points = "-" if a.hit_rate is None or b.hit_rate is None else f"{100 * (b.hit_rate - a.hit_rate):+.3f}"
    return signed(tokens), points.replace("+0.000", "0")


def _value(value: object) -> str:
    return count(value) if value is None or type(value) is int else str(value)
