"""Engine logs on disk: read whole, or followed from now on in place of counters."""

import gzip
import sys
import zlib
from collections.abc import Iterator
from io import BufferedReader, TextIOWrapper
from pathlib import Path
from typing import IO, cast

from hitlab.client.dialect import Counters, Engine
from hitlab.client.log_lines import LogReading
from hitlab.errors import InputError, MetricsError, UsageError


def log_lines(path: Path) -> Iterator[str]:
    """The lines of a log, plain, gzipped or zstandard-compressed; `-` is stdin. Raises InputError."""
    name = "stdin" if str(path) == "-" else str(path)
    try:
        with (
            cast(BufferedReader, sys.stdin.buffer) if name == "stdin" else path.open("rb") as file,
            TextIOWrapper(_unpacked(file), encoding="utf-8", errors="replace") as text,
        ):
            yield from text
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"damaged archive: {error}", where=name, todo="get the file again") from None
    except OSError as error:
        raise InputError(error.strerror or str(error), where=name, todo="is that the right file?") from None


def _unpacked(file: BufferedReader) -> IO[bytes]:
    start = file.peek(4)[:4]
    if start.startswith(b"\x1f\x8b"):
        return cast(IO[bytes], gzip.open(file))
    if start == b"\x28\xb5\x2f\xfd":
        import zstandard

        return cast(IO[bytes], zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True))
    return file


class FollowedLog:
    """A log that is being written: the lines added since this was made."""

    def __init__(self, engine: Engine, path: Path) -> None:
        """Raises InputError without a file."""
        self._engine, self.path = engine, path
        self._reading = LogReading()
        self._begun = b""  # of a line that is not whole yet
        self.inode, self._offset = self._stat()

    def read(self) -> LogReading:
        """What they say up to now. A log that was cut or replaced starts over. Raises MetricsError when it is gone."""
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
            raise InputError(error.strerror or str(error), where=str(self.path), todo="check --log") from None
        return stat.st_ino, stat.st_size


class LogCounters:
    """A log that is being written, read like counters: tokens of the lines added since this was made."""

    def __init__(self, engine: Engine, path: Path) -> None:
        """Raises UsageError for an engine whose log does not count tokens, InputError without a file."""
        if engine.LOG_LACKS:
            raise UsageError(f"--log can't stand in for counters: {engine.LOG_LACKS}", todo=engine.NO_METRICS)
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
            pairs={self.source: tally},
            preemptions=reading.preemptions,
            raw={
                f"{path}: tokens looked up": tally.queried_tokens,
                f"{path}: tokens found": tally.hit_tokens,
            },
            births={str(path): self._log.inode},
        )
