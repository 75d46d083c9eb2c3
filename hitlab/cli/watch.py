"""`hitlab watch`: the hit rate of a running server, interval by interval."""

import math
import re
import sys
from contextlib import AbstractContextManager, suppress
from datetime import datetime
from typing import Annotated

import msgspec
import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from hitlab.cli import _options as opt
from hitlab.cli import _server_options as given
from hitlab.cli import _target
from hitlab.cli._format import count as counted
from hitlab.cli._format import percent
from hitlab.cli._tables import Column, fitted
from hitlab.client.dialect import ServerFacts
from hitlab.client.http import EngineClient
from hitlab.errors import UsageError
from hitlab.experiment.closed_form import check_shape
from hitlab.experiment.shape import SharedPrefix
from hitlab.measurement.asked import Asked
from hitlab.measurement.watch import Interval, Meter, begin, ceiling, intervals
from hitlab.tokens import Tally

_BAR_WIDTH = 12
_HEADINGS = ("time", "hit rate", "0 to 100 %", "hit tokens", "of prompt", "tokens/s", "evicted")
_LEFT = ("time", "0 to 100 %")
_SPARE = ("tokens/s", "evicted", "0 to 100 %")  # what goes where the terminal is narrow, the last first


def command(
    engine: given.EngineName,
    base_url: given.BaseUrl = None,
    metrics_url: given.MetricsUrl = None,
    interval: Annotated[float, typer.Option("--interval", help="Seconds between two readings.")] = 5.0,
    count: Annotated[int | None, typer.Option("--count", help="Stop after so many intervals.")] = None,
    prefix_len: Annotated[
        int | None, typer.Option("--prefix-len", help="P: tokens your requests share; with S, shows the ceiling.")
    ] = None,
    suffix_len: Annotated[int | None, typer.Option("--suffix-len", help="S: tokens of each request's own.")] = None,
    block_size: Annotated[
        int | None, typer.Option("--block-size", "--page-size", help="B, where the server does not say.")
    ] = None,
    api_key_env: given.ApiKeyEnv = None,
    timeout: given.Timeout = 10.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON line an interval on stdout.")] = False,
) -> None:
    """Watch a running server's interval hit rate, from its counters; sends no prompt and empties nothing.

    Ctrl-C, or SIGTERM, ends it, with a summary and exit status 0. A restart or a reading that fails is said.

    Example: hitlab watch --engine vllm --base-url http://127.0.0.1:8000 --prefix-len 1000 --suffix-len 200
    """
    if not 0 < interval < math.inf or (count is not None and count < 1):
        raise UsageError(
            "--interval and --count must be numbers of more than 0", todo="leave them out for every 5 s, endlessly"
        )
    if (prefix_len is None) != (suffix_len is None):
        raise UsageError("the ceiling needs both --prefix-len and --suffix-len", todo="give both or neither")
    where = _target.Target(
        engine=engine,
        base_url=base_url,
        metrics_urls=tuple(metrics_url or ()),
        asked=Asked(block_tokens=block_size),
        api_key_env=api_key_env,
        timeout_s=timeout,
    )
    meter: Meter | None = None
    with where.connected() as (loop, client), suppress(KeyboardInterrupt):
        facts = loop.run(client.facts())
        meter = loop.run(begin(client))
        best = _ceiling(prefix_len, suffix_len, facts.block_tokens or block_size)
        title = _title(client.engine.TITLE, client.base_url, facts, interval, best)
        loop.run(_show(client, meter, interval, count, _view(title, best, as_json)))
    if meter is not None:
        print(_summary(meter), file=sys.stderr if as_json else sys.stdout)


async def _show(
    client: EngineClient, meter: Meter, interval_s: float, count: int | None, view: "_Json | _Lines | _Live"
) -> None:
    with view:
        async for each in intervals(client, meter, interval_s, count):
            view.show(each)


def _ceiling(prefix_tokens: int | None, suffix_tokens: int | None, block_tokens: int | None) -> Tally | None:
    if prefix_tokens is None or suffix_tokens is None:
        return None
    if block_tokens is None:
        raise UsageError("the server does not say its block size", todo="give --block-size")
    check_shape(SharedPrefix(1, prefix_tokens, suffix_tokens), block_tokens, 1)
    return ceiling(prefix_tokens, suffix_tokens, block_tokens)


def _title(engine: str, url: str, facts: ServerFacts, interval_s: float, best: Tally | None) -> list[str]:
    emulated = "EMULATED " if facts.emulated else ""
    blocks = f"{facts.block_tokens:,} tokens a block, " if facts.block_tokens else ""
    version = facts.version or "(version unknown)"
    lines = [f"{emulated}{engine} {version} at {url}", f"{blocks}every {interval_s:g} s; Ctrl-C ends"]
    if best:
        lines.append(
            f"ceiling {percent(best.hit_rate or 0.0)}: "
            f"{best.hit_tokens:,} of {best.queried_tokens:,} tokens of a warm request"
        )
    return lines


def _summary(meter: Meter) -> str:
    tally = meter.tally
    hit = "no prompt tokens"
    if tally.hit_rate is not None:
        hit = f"{tally.hit_tokens:,} of {tally.queried_tokens:,} prompt tokens hit ({percent(tally.hit_rate)})"
    counts = (("evicted tokens", meter.evicted_tokens), ("restarts", meter.restarts))
    more = [f"{name}: {count:,}" for name, count in (*counts, ("failed readings", meter.missed_readings)) if count]
    return "\n".join(filter(None, (f"{meter.intervals:,} intervals in {meter.seconds:.1f} s: {hit}", ", ".join(more))))


def _view(title: list[str], best: Tally | None, as_json: bool) -> "_Json | _Lines | _Live":
    if as_json:
        return _Json(title, best)
    console = opt.console()
    return _Live(console, title, best) if console.is_terminal else _Lines(title, best)


def _cells(interval: Interval, best: Tally | None) -> tuple[str, ...]:
    if interval.kind != "interval":
        return (_clock(interval), "-", "", "", "", "", "")
    idle = interval.hit_rate is None
    return (
        _clock(interval),
        percent(interval.hit_rate),
        _bar(interval.hit_rate, best),
        counted(None if idle else interval.hit_tokens),
        counted(None if idle else interval.queried_tokens),
        "-" if idle else f"{interval.queried_tokens_per_s:,.0f}",
        counted(interval.evicted_tokens),
    )


def _clock(interval: Interval) -> str:
    return f"{datetime.fromisoformat(interval.at_utc).astimezone():%H:%M:%S}"


def _event(interval: Interval) -> str:
    """What a person has to know besides the numbers; empty for a plain interval."""
    if interval.kind == "restart":
        return f"{_clock(interval)} restart: {re.sub('{.*}', '', interval.detail)}; counting begins again"
    if interval.kind == "missed":
        return f"{_clock(interval)} no reading: {interval.detail}"
    if interval.preemptions:
        return f"{_clock(interval)} {interval.preemptions:,} preempted requests: their prompts are computed again"
    return ""


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
            print(self._line(_cells(interval, self._best)))
        if event:
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
        table = self._table(self._intervals[-max(3, room) :], width)
        return Group(*map(Text, self._title), table, *(Text(event, style="yellow") for event in self._events))

    def _table(self, intervals: list[Interval], width: int) -> Table:
        columns = [
            Column(heading, left=heading in _LEFT, spare=_SPARE.index(heading) + 1 if heading in _SPARE else 0)
            for heading in _HEADINGS
        ]
        rows = [_cells(each, self._best) for each in intervals]
        if all(each.evicted_tokens is None for each in self._intervals):  # as of an engine that does not count them
            without = _HEADINGS.index("evicted")
            columns.pop(without)
            rows = [(*row[:without], *row[without + 1 :]) for row in rows]
        return fitted(columns, rows, width)
