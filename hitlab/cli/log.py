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
    from hitlab.client.log_servers import RankLog, Servers


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
    from hitlab.client.engine_log import FOR_EYEBALLING, log_lines, read_log
    from hitlab.client.log_interval import Between
    from hitlab.errors import InputError

    dialect = families.engine(engine)
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
            print(f"note: {note}", file=sys.stderr)
    if reading.preemptions:
        print(f"note: {reading.preemptions:,} retracted requests are counted twice", file=sys.stderr)
    print(f"note: {FOR_EYEBALLING}", file=sys.stderr)


def _left_out(reading: "LogReading") -> str:
    """What an interval left out, in words: lines outside it, and apart from them those whose time can't be read."""
    outside, undated = reading.outside, reading.undated
    said = [f"{outside:,} {'lies' if outside == 1 else 'lie'} outside the interval"] if outside else []
    if undated:
        said.append(f"{undated:,} {'carries' if undated == 1 else 'carry'} no time that can be read")
    return " and ".join(said)


def _document(dialect: "EngineApi", reading: "LogReading", servers: "Servers") -> dict[str, object]:
    from hitlab.client.engine_log import FOR_EYEBALLING
    from hitlab.client.log_interval import in_words

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


def _print(dialect: "EngineApi", reading: "LogReading", servers: "Servers") -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from hitlab.client.log_interval import in_words

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
    table = Table(box=SIMPLE_HEAD)
    if several:
        table.add_column("server", overflow="fold")
    table.add_column("rank", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for each in _shown(servers):
        names = (each.server or "all", "all" if each.rank is None else str(each.rank))
        table.add_row(*names[0 if several else 1 :], *_cells(each))
    console.print(table)


def _shown(servers: "Servers") -> list["RankLog"]:
    """The rows of the table: ranks only where a server has several, and everything only where it is a sum."""
    rows = servers.ranks()
    ranks = {
        name: sum(row.server == name and row.rank is not None for row in rows) for name in {r.server for r in rows}
    }
    shown = [row for row in rows[:-1] if row.rank is None or ranks[row.server] > 1]
    if len(servers.entries) == 1 or rows[-1].tally is not None:
        shown.append(rows[-1])
    return shown


def _cells(row: "RankLog") -> tuple[str, ...]:
    """What a row says: tokens where its lines count them, else rates of the window."""
    if row.tally is None:
        rates = (row.last_window_hit_rate, row.min_window_hit_rate, row.max_window_hit_rate)
        return f"{row.entries:,}", *(_percent(rate, 1) for rate in rates)
    new = row.tally.queried_tokens - row.tally.hit_tokens
    return f"{row.entries:,}", f"{new:,}", f"{row.tally.hit_tokens:,}", _percent(row.tally.hit_rate, 3)


def _percent(rate: float | None, decimals: int) -> str:
    return "-" if rate is None else f"{100 * rate:.{decimals}f} %"
