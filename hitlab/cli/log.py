"""`hitlab log`: what an engine's log says of its prefix cache."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hitlab import families
from hitlab.cli import _options as opt
from hitlab.cli import _target

if TYPE_CHECKING:
    from hitlab.client.dialect import EngineApi
    from hitlab.client.engine_log import LogReading


def command(
    file: Annotated[Path, typer.Argument(help="The engine's log; plain, .gz or .zst; - is stdin.")],
    engine: _target.EngineName,
    since: Annotated[str | None, typer.Option("--since", help="Lines from then on: [[YYYY-]MM-DD ]HH:MM[:SS].")] = None,
    until: Annotated[str | None, typer.Option("--until", help="Lines up to then, in the same form.")] = None,
    as_json: opt.Json = False,
) -> None:
    """Read an engine's log: tokens where its lines count them, else the window's rate. For eyeballing only.

    SGLang prints both tokens of every prefill batch; vLLM the hit rate of its last 1,000 requests.

    Example: hitlab log sglang.log --engine sglang --since 21:14 --until 21:15
    """
    from hitlab.client.engine_log import FOR_EYEBALLING, Between, log_lines, read_log
    from hitlab.errors import InputError

    dialect = families.engine(engine)
    reading = read_log(log_lines(file), dialect.read_log_line, Between.parse(since, until))
    if not reading.entries:
        left_out = reading.outside + reading.undated
        why = f"{left_out:,} lie outside the interval" if left_out else "is it this engine's, at its usual log level?"
        raise InputError(f"no line of {dialect.TITLE}'s prefix cache; {why}", where=str(file))
    if as_json:
        opt.print_json(_document(dialect, reading))
    else:
        _print(dialect, reading)
    if reading.undated:
        print(f"note: {reading.undated:,} lines without a time were left out", file=sys.stderr)
    if reading.preemptions:
        print(f"note: {reading.preemptions:,} retracted requests are counted twice", file=sys.stderr)
    print(f"note: {FOR_EYEBALLING}", file=sys.stderr)


def _document(dialect: "EngineApi", reading: "LogReading") -> dict[str, object]:
    from hitlab.client.engine_log import FOR_EYEBALLING, in_words

    return {
        "engine": dialect.NAME,
        "kind": "window" if dialect.LOG_LACKS else "tokens",
        "lines": len(reading.entries),
        "first": in_words(reading.moments[0]) if reading.moments else None,
        "last": in_words(reading.moments[1]) if reading.moments else None,
        "preemptions": reading.preemptions,
        "note": FOR_EYEBALLING,
        "ranks": [
            {
                "rank": each.rank,
                "lines": each.entries,
                "queried_tokens": each.tally and each.tally.queried_tokens,
                "hit_tokens": each.tally and each.tally.hit_tokens,
                "hit_rate": each.tally and each.tally.hit_rate,
                "last_window_hit_rate": each.last_window_hit_rate,
                "min_window_hit_rate": each.min_window_hit_rate,
                "max_window_hit_rate": each.max_window_hit_rate,
            }
            for each in reading.ranks()
        ],
    }


def _print(dialect: "EngineApi", reading: "LogReading") -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from hitlab.client.engine_log import in_words

    console = opt.console()
    lines = "line" if len(reading.entries) == 1 else "lines"
    span = f", {in_words(reading.moments[0])} to {in_words(reading.moments[1])}" if reading.moments else ""
    console.print(f"{dialect.TITLE} log: {len(reading.entries):,} {lines}{span}")
    if dialect.LOG_LACKS:
        console.print(f"{dialect.LOG_LACKS}: a change shows late and smeared")
        headings = ["rank", "lines", "last", "lowest", "highest"]
    else:
        headings = ["rank", "lines", "new tokens", "cached tokens", "hit rate"]
    table = Table(box=SIMPLE_HEAD)
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "rank" else "right")
    ranks = reading.ranks()
    for each in ranks if len(ranks) > 2 else ranks[-1:]:
        name = "all" if each.rank is None else str(each.rank)
        if each.tally is None:
            rates = (each.last_window_hit_rate, each.min_window_hit_rate, each.max_window_hit_rate)
            table.add_row(name, f"{each.entries:,}", *(_percent(rate, 1) for rate in rates))
        else:
            new = each.tally.queried_tokens - each.tally.hit_tokens
            cells = (f"{each.entries:,}", f"{new:,}", f"{each.tally.hit_tokens:,}", _percent(each.tally.hit_rate, 3))
            table.add_row(name, *cells)
    console.print(table)


def _percent(rate: float | None, decimals: int) -> str:
    return "-" if rate is None else f"{100 * rate:.{decimals}f} %"
