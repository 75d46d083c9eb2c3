"""`hitlab log`: what an engine's log says of its prefix cache."""

from pathlib import Path
from typing import Annotated

import typer

from hitlab.cli import _options as opt
from hitlab.cli import _server_options as given
from hitlab.cli._format import count, percent
from hitlab.cli._tables import Column, fitted
from hitlab.client.dialect import EngineApi, load_engine
from hitlab.client.engine_log import FOR_EYEBALLING, LogReading, log_lines, read_log
from hitlab.client.log_interval import Between, in_words
from hitlab.client.log_servers import RankLog, Servers
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
    between = Between.parse(since, until)
    reading = read_log(log_lines(file), dialect.read_log_line, between)
    left_out = _left_out(reading)
    if not reading.entries:
        why = left_out or "is it this engine's, at its usual log level?"
        where = "" if between.open else " in the interval"
        raise InputError(f"no line of {dialect.TITLE}'s prefix cache{where}; {why}", where=str(file))
    servers = reading.servers()
    if as_json:
        opt.print_json(_document(dialect, reading, servers))
    else:
        _print(dialect, reading, servers)
    for note in (left_out, *servers.notes):
        if note:
            opt.note(note)
    if reading.preemptions:
        opt.note(f"{reading.preemptions:,} retracted requests are counted twice")
    opt.note(FOR_EYEBALLING)


def _left_out(reading: LogReading) -> str:
    """What an interval left out, in words: lines outside it, and apart from them those whose time can't be read."""
    outside, undated = reading.outside, reading.undated
    said = [f"{outside:,} {'lies' if outside == 1 else 'lie'} outside the interval"] if outside else []
    if undated:
        said.append(f"{undated:,} {'carries' if undated == 1 else 'carry'} no time that can be read")
    return " and ".join(said)


def _document(dialect: EngineApi, reading: LogReading, servers: Servers) -> dict[str, object]:
    moments = reading.moments
    return {
        "engine": dialect.NAME,
        "kind": "window" if dialect.LOG_LACKS else "tokens",
        "lines": len(reading.entries),
        "lines_outside": reading.outside,
        "lines_without_time": reading.undated,
        "first": in_words(moments[0]) if moments else None,
        "last": in_words(moments[1]) if moments else None,
        "preemptions": reading.preemptions,
        "note": FOR_EYEBALLING,
        "notes": list(servers.notes),
        "servers": list(servers.entries),
        "ranks": [
            {
                "server": each.server,
                "rank": each.rank,
                "lines": each.entries,
                "queried_tokens": each.tally and each.tally.queried_tokens,
                "hit_tokens": each.tally and each.tally.hit_tokens,
                "hit_rate": each.tally and each.tally.hit_rate,
                "last_window_hit_rate": each.last_window_hit_rate,
                "min_window_hit_rate": each.min_window_hit_rate,
                "max_window_hit_rate": each.max_window_hit_rate,
            }
            for each in servers.ranks()
        ],
    }


def _print(dialect: EngineApi, reading: LogReading, servers: Servers) -> None:
    console = opt.console()
    lines = "line" if len(reading.entries) == 1 else "lines"
    moments = reading.moments
    span = f", {in_words(moments[0])} to {in_words(moments[1])}" if moments else ""
    several = len(servers.entries) > 1
    of = f" of {len(servers.entries):,} servers" if several else ""
    console.print(f"{dialect.TITLE} log: {len(reading.entries):,} {lines}{of}{span}")
    if dialect.LOG_LACKS:
        console.print(f"{dialect.LOG_LACKS}: a change shows late and smeared")
        headings = ["lines", "last", "lowest", "highest"]
    else:
        headings = ["lines", "new tokens", "cached tokens", "hit rate"]
    columns = [Column("rank", left=True), *map(Column, headings)]
    shown = _shown(servers)
    rows = [("all" if each.rank is None else str(each.rank), *_cells(each)) for each in shown]
    if several:
        columns.insert(0, Column("server", left=True))
        rows = [(each.server or "all", *row) for each, row in zip(shown, rows, strict=True)]
    console.print(fitted(columns, rows, console.width, gap=3, indent=2))


def _shown(servers: Servers) -> list[RankLog]:
    """The rows of the table: ranks only where a server has several, and everything only where it is a sum."""
    rows = servers.ranks()
    ranks = {
        name: sum(row.server == name and row.rank is not None for row in rows) for name in {r.server for r in rows}
    }
    shown = [row for row in rows[:-1] if row.rank is None or ranks[row.server] > 1]
    if len(servers.entries) == 1 or rows[-1].tally is not None:
        shown.append(rows[-1])
    return shown


def _cells(row: RankLog) -> tuple[str, ...]:
    """What a row says: tokens where its lines count them, else rates of the window."""
    if row.tally is None:
        rates = (row.last_window_hit_rate, row.min_window_hit_rate, row.max_window_hit_rate)
        return count(row.entries), *(percent(rate, 1) for rate in rates)
    new = row.tally.queried_tokens - row.tally.hit_tokens
    return count(row.entries), count(new), count(row.tally.hit_tokens), percent(row.tally.hit_rate)
