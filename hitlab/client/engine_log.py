"""Engine logs: what their lines add up to over an interval, read whole or followed from now on.

A log is for eyeballing: lines are lost, cut and late, and a sliding window smears every change (lab page, section 2).
Counters are for measuring.
"""

import codecs
import io
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from io import BufferedReader, TextIOWrapper
from pathlib import Path
from typing import cast

from hitlab.client.counters import Counters, Part
from hitlab.client.dialect import EngineApi, LogEntry
from hitlab.client.log_documents import LogLines
from hitlab.client.log_interval import Between, days_of, in_time_order
from hitlab.client.log_servers import RankLog, Servers, servers_of
from hitlab.client.log_times import Moment
from hitlab.errors import InputError, MetricsError, UsageError
from hitlab.files import ArchiveError, as_file, pieces_of, unpacked
from hitlab.tokens import Tally

FOR_EYEBALLING = "a log is for eyeballing: lines can be lost or late; measure with the counters (watch, measure)"

# Marks of byte order, the longer ones first: that of UTF-32 begins as that of UTF-16 does.
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
    (codecs.BOM_UTF8, "utf-8-sig"),
)
_MARK_BYTES = 4


@dataclass(slots=True)
class LogReading:
    """The entries of a log so far, and what they add up to."""

    between: Between = field(default_factory=Between)
    entries: list[LogEntry] = field(default_factory=list)
    undated: int = 0  # entries left out because they have no time that can be read
    outside: int = 0  # entries left out because their time is not in the interval

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
        """Tokens of all servers and ranks."""
        return self.servers().tally

    @property
    def preemptions(self) -> int:
        """Requests that were computed twice."""
        return sum(entry.preemptions for entry in self.entries)

    @property
    def moments(self) -> tuple[Moment, Moment] | None:
        """The earliest and the latest time, whatever the log's order; None without a time."""
        dated = in_time_order([entry for entry in self.entries if entry.moment])
        return (dated[0].moment or (), dated[-1].moment or ()) if dated else None

    def servers(self) -> Servers:
        """The entries by the server that wrote them."""
        return servers_of(self.entries)

    def ranks(self) -> list[RankLog]:
        """What each rank of each server says that names itself, in order; last, everything together."""
        return self.servers().ranks()


def read_log(
    lines: Iterable[str], read_line: Callable[[str], LogEntry | None], between: Between | None = None
) -> LogReading:
    """Read a whole log. Raises UsageError for times of day in a log of several days."""
    reading = LogReading(between or Between())
    moments: set[Moment] = set()
    for entry in LogLines(read_line).all_entries(lines):
        reading.add(entry)
        if entry.moment and reading.between.needs_one_day:
            moments.add(entry.moment)
    if (days := days_of(moments)) > 1:
        raise UsageError(f"the log has lines of {days:,} days", todo="give `since` and `until` a date, as 11-29 21:14")
    return reading


def log_lines(path: Path) -> Iterator[str]:
    """The lines of a log, plain, gzipped or zstandard-compressed; `-` is stdin. Raises InputError.

    They are UTF-8 or what a mark of byte order says. Of a last line without an end the last number may be cut short,
    and is left out where nothing follows it.
    """
    name = "stdin" if str(path) == "-" else str(path)
    try:
        with (
            cast(BufferedReader, sys.stdin.buffer) if name == "stdin" else path.open("rb") as file,
            as_file(unpacked(pieces_of(file))) as content,
            TextIOWrapper(content, encoding=_encoding(content.peek(_MARK_BYTES)), errors="replace") as text,
        ):
            for line in text:
                yield line if line.endswith("\n") else re.sub(r"[\d.]+$", "", line)
    except ArchiveError as error:
        raise InputError(f"damaged archive: {error.detail}", where=name, todo="get the file again") from None
    except OSError as error:
        raise InputError(error.strerror or str(error), where=name, todo="is that the right file?") from None


def _encoding(begin: bytes) -> str:
    """The encoding that a file's first bytes are marked with; UTF-8 without a mark."""
    return next((name for mark, name in _MARKS if begin.startswith(mark)), "utf-8")


class FollowedLog:
    """A log that is still being written: the lines added to it since this object was made."""

    def __init__(self, engine: EngineApi, path: Path) -> None:
        """Raises InputError without a file."""
        self._engine, self.path = engine, path
        self._begun = ""  # of a line that is not whole yet
        self.inode, size = self._stat()
        self._start_over()
        self._offset = size - size % self._unit_bytes

    def read(self) -> LogReading:
        """What the added lines say. A log cut or replaced starts over; without it MetricsError is raised."""
        try:
            inode, size = self._stat()
            if inode != self.inode or size < self._offset:
                self.inode, self._offset = inode, 0
            if self._offset == 0:
                self._start_over()
            with self.path.open("rb") as file:
                file.seek(self._offset)
                added = file.read()
        except (OSError, InputError):
            raise MetricsError("the log is gone", where=str(self.path)) from None
        self._offset += len(added)
        *whole, self._begun = (self._begun + self._decoder.decode(added)).split("\n")
        for line in whole:
            for entry in self._lines.entries(line):
                self._reading.add(entry)
        return self._reading

    def _start_over(self) -> None:
        """Forget what was read, and find the encoding of the file. Raises OSError."""
        with self.path.open("rb") as file:
            begin = file.read(_MARK_BYTES)
        encoding = _encoding(begin)
        self._unit_bytes = {"utf-16": 2, "utf-32": 4}.get(encoding, 1)
        decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
        decoder.decode(next((mark for mark, _ in _MARKS if begin.startswith(mark)), b""))  # the rest is in its order
        self._decoder = io.IncrementalNewlineDecoder(decoder, translate=True)
        self._reading, self._lines = LogReading(), LogLines(self._engine.read_log_line)
        self._begun = ""

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
