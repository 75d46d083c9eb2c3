"""How `hitlab watch` shows intervals: as JSON lines, as lines for a pipe, as a table in a terminal."""

import re
import sys
from contextlib import AbstractContextManager
from datetime import datetime

import msgspec
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from hitlab.cli import _options as opt
from hitlab.cli._format import count as counted
from hitlab.cli._format import percent
from hitlab.cli._tables import Column, fitted
from hitlab.measurement.watch import Interval, Row
from hitlab.tokens import Tally

_BAR_WIDTH = 12
_HEADINGS = ("time", "hit rate", "0 to 100 %", "hit tokens", "of prompt", "tokens/s", "evicted")
_LEFT = ("time", "0 to 100 %")
_SPARE = ("tokens/s", "evicted", "0 to 100 %")  # what goes where the terminal is narrow, the last first


def view(title: list[str], best: Tally | None, as_json: bool) -> "AnyView":
    """Where intervals are shown: as JSON, as a table in a terminal, or line by line."""
    if as_json:
        return _Json(title, best)
    console = opt.console()
    return _Live(console, title, best) if console.is_terminal else _Lines(title, best)


def _cells(interval: Interval, best: Tally | None) -> tuple[str, ...]:
    if interval.kind != "interval":
        return (_clock(interval), "-", "", "", "", "", "")
    return (_clock(interval), *_numbers(interval, best), counted(interval.evicted_tokens))


def _numbers(counts: Interval | Row, best: Tally | None, seconds: float | None = None) -> tuple[str, ...]:
    """From the hit rate to tokens a second; "-" for what is unknown, and for all of an idle interval."""
    idle = not counts.queried_tokens
    seconds = counts.seconds if isinstance(counts, Interval) else seconds
    queried = counts.queried_tokens or 0
    return (
        percent(counts.hit_rate),
        _bar(counts.hit_rate, best),
        counted(None if idle else counts.hit_tokens),
        counted(None if idle else queried),
        "-" if idle or not seconds else f"{queried / seconds:,.0f}",
    )


def _tiers(counts: Interval | Row) -> str:
    """Hits of the tiers behind the cache, where there were any; "" otherwise.

    >>> _tiers(Interval(kind="interval", at_utc="t", seconds=1.0, queried_tokens=10_000, external_hit_tokens=9000,
    ...                 local_hit_tokens=0, overall_hit_rate=0.9, computed_tokens=1000))
    'local 0, external 9,000: 90.000 % in all, 1,000 computed'
    """
    behind = {"host": counts.host_hit_tokens, "storage": counts.storage_hit_tokens}
    if not any(behind.values()):
        behind = {"external": counts.external_hit_tokens}
    if not any(behind.values()):
        return ""
    tiers = {"local": counts.local_hit_tokens, **behind}
    found = ", ".join(f"{tier} {counted(tokens)}" for tier, tokens in tiers.items() if tokens is not None)
    return f"{found}: {percent(counts.overall_hit_rate)} in all, {counted(counts.computed_tokens)} computed"


def _clock(interval: Interval) -> str:
    return f"{datetime.fromisoformat(interval.at_utc).astimezone():%H:%M:%S}"


def _event(interval: Interval) -> str:
    """What a person has to know besides the numbers; empty for a plain interval."""
    if interval.kind == "restart":
        return f"{_clock(interval)} restart: {re.sub('{.*}', '', interval.detail)}; counting begins again"
    if interval.kind == "missed":
        return f"{_clock(interval)} no reading: {interval.detail}"
    preempted = f"{interval.preemptions:,} preempted requests: their prompts are computed again"
    said = [interval.detail, _tiers(interval), preempted if interval.preemptions else ""]
    told = "; ".join(filter(None, said))
    return f"{_clock(interval)} {told}" if told else ""


def _bar(rate: float | None, best: Tally | None) -> str:
    """The rate as a bar; `|` stands where the ceiling is."""
    filled = round((rate or 0.0) * _BAR_WIDTH)
    bar = "█" * filled + "·" * (_BAR_WIDTH - filled)
    mark = round((best.hit_rate or 0.0) * _BAR_WIDTH) if best else _BAR_WIDTH
    return bar if mark >= _BAR_WIDTH else f"{bar[:mark]}|{bar[mark + 1 :]}"


class _View(AbstractContextManager["_View"]):
    """Where intervals are shown."""

    def __init__(self, title: list[str], best: Tally | None) -> None:
        self._title, self._best = title, best

    def __exit__(self, *error: object) -> None:
        """Nothing to close."""


class _Json(_View):
    """One JSON line each on stdout, the title on stderr."""

    def __enter__(self) -> "_Json":
        for line in self._title:
            print(line, file=sys.stderr, flush=True)
        return self

    def show(self, interval: Interval) -> None:
        ceiling = {"ceiling_hit_rate": self._best.hit_rate if self._best else None}
        print(msgspec.json.encode(msgspec.structs.asdict(interval) | ceiling).decode(), flush=True)


class _Lines(_View):
    """One line each, for a file or a pipe."""

    _WIDTHS = (8, 10, _BAR_WIDTH + 1, 12, 12, 10, 10)

    def __enter__(self) -> "_Lines":
        for line in self._title:
            print(line)
        print(self._line(_HEADINGS), flush=True)
        return self

    def show(self, interval: Interval) -> None:
        event = _event(interval)
        if interval.kind == "interval":
            for row in interval.rows:
                print(f"{row.label}:")
                print(self._line((_clock(interval), *_numbers(row, self._best, interval.seconds), "")))
                if said := "; ".join(filter(None, (row.detail, _tiers(row)))):
                    print(f"  {said}")
            if interval.rows and interval.queried_tokens is not None:
                print("all:")
            if not interval.rows or interval.queried_tokens is not None:
                print(self._line(_cells(interval, self._best)))
        if event and not (interval.rows and interval.queried_tokens is None and interval.kind == "interval"):
            print(event)
        sys.stdout.flush()

    def _line(self, cells: tuple[str, ...]) -> str:
        return "".join(f"{cell:>{width}}" for cell, width in zip(cells, self._WIDTHS, strict=True))


class _Live(_View):
    """A table that grows at its end and stays as high as the terminal."""

    def __init__(self, console: Console, title: list[str], best: Tally | None) -> None:
        super().__init__(title, best)
        self._console = console
        self._intervals: list[Interval] = []
        self._events: list[str] = []
        self._live = Live(console=console, auto_refresh=False)

    def __enter__(self) -> "_Live":
        self._live.start()
        self._live.update(self._picture(), refresh=True)
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def show(self, interval: Interval) -> None:
        self._intervals = [*self._intervals, interval][-200:]
        self._events = [*self._events, *filter(None, [_event(interval)])][-3:]
        self._live.update(self._picture(), refresh=True)

    def _picture(self) -> Group:
        width, height = self._console.size
        lines = sum(-(-len(line) // width) for line in self._title)
        room = height - lines - 2 * len(self._events) - 6
        rows = 1 + max((len(each.rows) for each in self._intervals), default=0)
        table = self._table(self._intervals[-max(3, room // rows) :], width)
        return Group(*map(Text, self._title), table, *(Text(event, style="yellow") for event in self._events))

    def _table(self, intervals: list[Interval], width: int) -> Table:
        columns = [
            Column(heading, left=heading in _LEFT, spare=_SPARE.index(heading) + 1 if heading in _SPARE else 0)
            for heading in _HEADINGS
        ]
        rows = [cells for each in intervals for cells in self._rows(each)]
        if all(each.evicted_tokens is None for each in self._intervals):  # as of an engine that does not count them
            without = _HEADINGS.index("evicted")
            columns.pop(without)
            rows = [(*row[:without], *row[without + 1 :]) for row in rows]
        return fitted(columns, rows, width)

    def _rows(self, interval: Interval) -> list[tuple[str, ...]]:
        """A row, and before it one of each model or server, called by its name in place of the time."""
        parts = [(row.label, *_numbers(row, self._best, interval.seconds), "") for row in interval.rows]
        return [*parts, _cells(interval, self._best)]


AnyView = _Json | _Lines | _Live
