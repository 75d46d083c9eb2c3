"""Engine logs: what their lines add up to over an interval, read whole or followed from now on.

A log is for eyeballing: lines are lost, cut and late, and a sliding window smears every change (lab page, section 2).
Counters are for measuring.
"""

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from io import BufferedReader, TextIOWrapper
from itertools import groupby
from pathlib import Path
from typing import cast

from hitlab.client.counters import Counters, Part
from hitlab.client.dialect import EngineApi, LogEntry
from hitlab.errors import InputError, MetricsError, UsageError
from hitlab.files import ArchiveError, as_file, pieces_of, unpacked
from hitlab.tokens import NOTHING, Tally

FOR_EYEBALLING = "a log is for eyeballing: lines can be lost or late; measure with the counters (watch, measure)"

Moment = tuple[int, ...]
_MOMENT = re.compile(r"(?:(?:(\d{4})-)?(\d\d)-(\d\d)[ T])?(\d\d):(\d\d)(?::(\d\d))?")
_TIME_OF_DAY = 3  # hour, minute, second
_TIME_FORM = "give HH:MM[:SS], with MM-DD or YYYY-MM-DD before it"
_LEAP_YEAR = ("2000", "01", "01", "00", "00", "00")  # what a bound does not say: 02-29 is a day of some year


@dataclass(frozen=True, slots=True)
class Between:
    """An interval of a log, both ends included; None is open.

    Only what both a bound and a line say is compared: a line without a year is in every year.

    >>> between = Between.parse("11-29 21:14", "11-29 21:15")
    >>> [(2026, 11, 29, 21, 15, 59) in between, (11, 29, 21, 16, 0) in between]
    [True, False]
    """

    since: Moment | None = None
    until: Moment | None = None

    @classmethod
    def parse(cls, since: str | None, until: str | None) -> "Between":
        """Bounds as [[YYYY-]MM-DD ]HH:MM[:SS]; without seconds, the whole minute is in. Raises UsageError."""
        return cls(_moment("`since`", since, "00"), _moment("`until`", until, "59"))

    @property
    def open(self) -> bool:
        """Whether every line is in it."""
        return self.since is None and self.until is None

    @property
    def needs_one_day(self) -> bool:
        """Whether a bound says a time of day and no date."""
        return any(bound is not None and len(bound) == _TIME_OF_DAY for bound in (self.since, self.until))

    def __contains__(self, moment: Moment) -> bool:
        after = self.since is None or _compared(self.since, moment) <= _compared(moment, self.since)
        return after and (self.until is None or _compared(moment, self.until) <= _compared(self.until, moment))


@dataclass(frozen=True, slots=True)
class RankLog:
    """What the log says of one data-parallel rank or, where `rank` is None, of all of them.

    Window rates of several ranks are not combined: nothing says how many tokens each is of.
    """

    rank: int | None
    entries: int
    tally: Tally | None  # None where no line counts tokens
    last_window_hit_rate: float | None
    min_window_hit_rate: float | None
    max_window_hit_rate: float | None


@dataclass(slots=True)
class LogReading:
    """The entries of a log so far, and what they add up to."""

    between: Between = field(default_factory=Between)
    entries: list[LogEntry] = field(default_factory=list)
    undated: int = 0  # entries without a time, which no interval can hold
    outside: int = 0

    def add(self, entry: LogEntry) -> None:
        """Take one more entry, if it lies in the interval."""
        if self.between.open:
            self.entries.append(entry)
        elif entry.moment is None:
            self.undated += 1
        elif entry.moment in self.between:
            self.entries.append(entry)
        else:
            self.outside += 1

    @property
    def tally(self) -> Tally:
        """Tokens of all ranks."""
        return _tally(self.entries)

    @property
    def preemptions(self) -> int:
        """Requests that were computed twice."""
        return sum(entry.preemptions for entry in self.entries)

    @property
    def moments(self) -> tuple[Moment, Moment] | None:
        """The first and the last time in the log's order."""
        dated = [entry.moment for entry in self.entries if entry.moment]
        return (dated[0], dated[-1]) if dated else None

    def ranks(self) -> list[RankLog]:
        """What each rank says that names itself, in order; last, all ranks together."""
        by_rank = sorted((entry for entry in self.entries if entry.rank is not None), key=_rank)
        named = [_rank_log(rank, list(entries)) for rank, entries in groupby(by_rank, _rank)]
        everything = _rank_log(None, self.entries)
        if len(named) > 1:
            everything = replace(
                everything, last_window_hit_rate=None, min_window_hit_rate=None, max_window_hit_rate=None
            )
        return [*named, everything]


def read_log(
    lines: Iterable[str], read_line: Callable[[str], LogEntry | None], between: Between | None = None
) -> LogReading:
    """Read a whole log. Raises UsageError for times of day in a log of several days."""
    reading = LogReading(between or Between())
    days: set[Moment] = set()
    for line in lines:
        entry = read_line(line)
        if entry is not None:
            reading.add(entry)
            if entry.moment:
                days.add(entry.moment[:-_TIME_OF_DAY])
    if reading.between.needs_one_day and len(days) > 1:
        raise UsageError(
            f"the log has lines of {len(days):,} days", todo="give `since` and `until` a date, as 11-29 21:14"
        )
    return reading


def in_words(moment: Moment) -> str:
    """A moment as a log prints it.

    >>> in_words((11, 29, 21, 4, 6)), in_words((2026, 11, 29, 21, 4, 6))
    ('11-29 21:04:06', '2026-11-29 21:04:06')
    """
    date, time = moment[:-_TIME_OF_DAY], moment[-_TIME_OF_DAY:]
    return f"{'-'.join(f'{part:02}' for part in date)} {':'.join(f'{part:02}' for part in time)}".strip()


def _moment(option: str, text: str | None, seconds: str) -> Moment | None:
    if text is None:
        return None
    found = _MOMENT.fullmatch(text.strip())
    if not found:
        raise UsageError(f"{option} {text!r} is no time", todo=_TIME_FORM)
    parts = (*found.groups()[:5], found[6] or seconds)
    whole = [part or default for part, default in zip(parts, _LEAP_YEAR, strict=True)]
    try:
        datetime.fromisoformat("{}-{}-{}T{}:{}:{}".format(*whole))
    except ValueError as error:
        raise UsageError(f"{option} {text!r} is no time: {error}", todo=_TIME_FORM) from None
    return tuple(int(part) for part in parts if part is not None)


def _compared(moment: Moment, other: Moment) -> Moment:
    """The units of a moment that the other moment has as well."""
    return moment[-min(len(moment), len(other)) :]


def _rank(entry: LogEntry) -> int:
    return -1 if entry.rank is None else entry.rank


def _tally(entries: Iterable[LogEntry]) -> Tally:
    """Tokens added up over the ranks; of replicas that report the same tokens, only the one that reports most."""
    sums: dict[int, dict[str, Tally]] = {}
    for entry in entries:
        replicas = sums.setdefault(_rank(entry), {})
        replicas[entry.replica] = replicas.get(entry.replica, NOTHING) + (entry.tally or NOTHING)
    return sum((max(each.values(), key=lambda tally: tally.queried_tokens) for each in sums.values()), NOTHING)


def _rank_log(rank: int | None, entries: list[LogEntry]) -> RankLog:
    rates = [entry.window_hit_rate for entry in entries if entry.window_hit_rate is not None]
    counted = any(entry.tally is not None for entry in entries)
    return RankLog(
        rank=rank,
        entries=len(entries),
        tally=_tally(entries) if counted else None,
        last_window_hit_rate=rates[-1] if rates else None,
        min_window_hit_rate=min(rates, default=None),
        max_window_hit_rate=max(rates, default=None),
    )


def log_lines(path: Path) -> Iterator[str]:
    """The lines of a log, plain, gzipped or zstandard-compressed; `-` is stdin. Raises InputError."""
    name = "stdin" if str(path) == "-" else str(path)
    try:
        with (
            cast(BufferedReader, sys.stdin.buffer) if name == "stdin" else path.open("rb") as file,
            TextIOWrapper(as_file(unpacked(pieces_of(file))), encoding="utf-8", errors="replace") as text,
        ):
            yield from text
    except ArchiveError as error:
        raise InputError(f"damaged archive: {error.detail}", where=name, todo="get the file again") from None
    except OSError as error:
        raise InputError(error.strerror or str(error), where=name, todo="is that the right file?") from None


class FollowedLog:
    """A log that is still being written: the lines added to it since this object was made."""

    def __init__(self, engine: EngineApi, path: Path) -> None:
        """Raises InputError without a file."""
        self._engine, self.path = engine, path
        self._reading = LogReading()
        self._begun = b""  # of a line that is not whole yet
        self.inode, self._offset = self._stat()

    def read(self) -> LogReading:
        """What the added lines say. A log cut or replaced starts over; without it MetricsError is raised."""
        try:
            inode, size = self._stat()
            if inode != self.inode or size < self._offset:
                self._reading, self._begun, self.inode, self._offset = LogReading(), b"", inode, 0
            with self.path.open("rb") as file:
                file.seek(self._offset)
                added = file.read()
        except (OSError, InputError):
            raise MetricsError("the log is gone", where=str(self.path)) from None
        self._offset += len(added)
        *whole, self._begun = (self._begun + added).split(b"\n")
        for line in whole:
            entry = self._engine.read_log_line(line.decode(errors="replace"))
            if entry is not None:
                self._reading.add(entry)
        return self._reading

    def _stat(self) -> tuple[int, int]:
        try:
            stat = self.path.stat()
        except OSError as error:
            raise InputError(error.strerror or str(error), where=str(self.path), todo="check `log`") from None
        return stat.st_ino, stat.st_size


class LogCounters:
    """A log that is still being written, read in place of counters: the tokens of lines added since it was opened."""

    def __init__(self, engine: EngineApi, path: Path) -> None:
        """Raises UsageError for an engine whose log does not count tokens, InputError without a file."""
        if engine.LOG_LACKS:
            raise UsageError(f"`log` can't stand in for counters: {engine.LOG_LACKS}", todo=engine.NO_METRICS)
        self._log = FollowedLog(engine, path)

    @property
    def source(self) -> str:
        """What a tally was read from, in words."""
        return f"prefill lines of {self._log.path}"

    async def scrape(self) -> Counters:
        """The counters now. A log that was cut or replaced starts over. Raises MetricsError when it is gone."""
        reading = self._log.read()
        path, tally = self._log.path, reading.tally
        return Counters(
            parts=(Part(pairs={self.source: tally}),),
            preemptions=reading.preemptions,
            raw={
                f"{path}: tokens looked up": tally.queried_tokens,
                f"{path}: tokens found": tally.hit_tokens,
            },
            births={str(path): self._log.inode},
        )
