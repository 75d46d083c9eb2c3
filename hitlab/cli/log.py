"""`hitlab log`: what an engine's log says of its prefix cache."""

from pathlib import Path
from typing import Annotated

import typer

from hitlab.cli import _options as opt
from hitlab.cli import _server_options as given
from hitlab.cli._format import count, percent
from hitlab.cli._tables import Column, fitted
from hitlab.client.dialect import EngineApi, load_engine
from hitlab.client.engine_log import FOR_EYEBALLING, Between, LogReading, in_words, log_lines, read_log
from hitlab.errors import InputError


def command(
    file: Annotated[Path, typer.Argument(help="The engine's log; plain, .gz or .zst; - is stdin.")],
    engine: given.EngineName,
    since: Annotated[str | None, typer.Option("--since", help="Lines from then on: [[YYYY-]MM-DD ]HH:MM[:SS].")] = None,
    until: Annotated[str | None, typer.Option("--until", help="Lines up to then, in the same form.")] = None,
    as_json: opt.Json = False,
) -> None:
    """Read an engine's log: tokens where its lines count them, else the window's rate. For eyeballing only.

    SGLang prints both tokens of every prefill batch; vLLM the hit rate of its last 1,000 requests.

    Example: hitlab log sglang.log --engine sglang --since 21:14 --until 21:15
    """
    dialect = load_engine(engine)
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
        opt.note(f"{reading.undated:,} lines without a time were left out")
    if reading.preemptions:
        opt.note(f"{reading.preemptions:,} retracted requests are counted twice")
    opt.note(FOR_EYEBALLING)


def _document(dialect: EngineApi, reading: LogReading) -> dict[str, object]:
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


def _print(dialect: EngineApi, reading: LogReading) -> None:
    console = opt.console()
    lines = "line" if len(reading.entries) == 1 else "lines"
    span = f", {in_words(reading.moments[0])} to {in_words(reading.moments[1])}" if reading.moments else ""
    console.print(f"{dialect.TITLE} log: {len(reading.entries):,} {lines}{span}")
    if dialect.LOG_LACKS:
        console.print(f"{dialect.LOG_LACKS}: a change shows late and smeared")
        headings = ["rank", "lines", "last", "lowest", "highest"]
    else:
        headings = ["rank", "lines", "new tokens", "cached tokens", "hit rate"]
    rows: list[tuple[str, ...]] = []
    ranks = reading.ranks()
    for each in ranks if len(ranks) > 2 else ranks[-1:]:
        name = "all" if each.rank is None else str(each.rank)
        if each.tally is None:
            rates = (each.last_window_hit_rate, each.min_window_hit_rate, each.max_window_hit_rate)
            rows.append((name, count(each.entries), *(percent(rate, 1) for rate in rates)))
        else:
            new = each.tally.queried_tokens - each.tally.hit_tokens
            rows.append(
                (name, count(each.entries), count(new), count(each.tally.hit_tokens), percent(each.tally.hit_rate))
            )
    columns = [Column(heading, left=heading == "rank") for heading in headings]
    console.print(fitted(columns, rows, console.width, gap=3, indent=2))
