"""Entries of an engine's log in what people keep of it: plain lines, lines in JSON, exports of many in one document.

Docker's json-file driver, journald, Loki, Grafana, OpenTelemetry and others differ in the names of their fields. The
reader needs none of them: it looks for a text that the engine's reader understands, and for times and names around it.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import msgspec

from hitlab.client.dialect import LogEntry
from hitlab.client.log_prefixes import PROCESS, Wrapping, file_named, source_of, unwrapped
from hitlab.client.log_times import Moment, completed, moment_in, moment_of, plain

ReadLine = Callable[[str], LogEntry | None]

_DOCUMENT = re.compile(r"""\{\s*"|\[\s*[\[{"]""")
_NEXT_LINE = re.compile(r"(?=\[(?:\d{4}-\d\d-\d\d[ T])?\d\d:\d\d:\d\d)")
_BLOCK_ENDS = {"{": "}", "[": "]"}
_BLOCK_LINES = 2_000_000  # no document in so many lines is waited for
_DEPTH = 40  # documents in texts of documents
# Names of fields in lower case, the best first; others are looked at after them.
_TEXTS = ("message", "msg", "log", "line", "body", "text", "textpayload", "event", "content")
_TIMES = (
    *("timestamp", "@timestamp", "time", "ts", "date", "datetime", "asctime", "timeunixnano", "@t", "t"),
    *("_source_realtime_timestamp", "__realtime_timestamp", "observedtimeunixnano", "eventtime", "created"),
)
_BYTES = 256


class LogLines:
    """Reads the lines of one log in order, and keeps what one line says of those after it."""

    def __init__(self, read_line: ReadLine) -> None:
        """`read_line` is the reader of an engine (EngineApi.read_log_line)."""
        self._read_line = read_line
        self._around = Wrapping()  # of the file that tail named last

    def entries(self, line: str) -> Iterator[LogEntry]:
        """What one line says: mostly nothing or one entry; of an export, all of them."""
        if named := file_named(line):
            self._around = Wrapping().within(None, {"file": named})
        else:
            yield from self._text(line, self._around, 0)

    def all_entries(self, lines: Iterable[str]) -> Iterator[LogEntry]:
        """What all lines say; a document that is laid out over many lines is read as one."""
        block: list[str] = []
        end = ""
        for line in lines:
            if block:
                block.append(line)
                if line.rstrip().rstrip(",") == end or len(block) > _BLOCK_LINES:
                    yield from self._block(block)
                    block = []
            elif (bare := line.rstrip()) in _BLOCK_ENDS:
                block, end = [line], _BLOCK_ENDS[bare]
            else:
                yield from self.entries(line)
        yield from self._block(block)

    def _block(self, lines: list[str]) -> Iterator[LogEntry]:
        documents = _documents("\n".join(line.rstrip("\r\n") for line in lines)) if lines else []
        found = [entry for each in documents for entry in self._document(each, self._around, 0)]
        if found:
            yield from found
        else:
            for line in lines:
                yield from self.entries(line)

    def _text(self, text: str, outer: Wrapping, depth: int) -> Iterator[LogEntry]:
        """The entries of a line or of a text of several lines, in which another document may be."""
        if depth > _DEPTH:
            return
        if "\n" in (text := text.strip("\ufeff\0 \t\r\n")):
            for line in text.splitlines():
                yield from self._text(line, outer, depth + 1)
            return
        if _DOCUMENT.match(text) and (documents := _documents(text)):
            for each in documents:
                yield from self._document(each, outer, depth + 1)
            return
        text = plain(text)
        entry = self._read_line(text)
        if entry is None and not _DOCUMENT.search(text):
            return
        rest, wrapping = unwrapped(text, outer)
        if (start := _DOCUMENT.search(rest)) and (documents := _documents(rest[start.start() :])):
            wrapping = wrapping.within(moment_in(rest[: start.start()]), {})
            found = [entry for each in documents for entry in self._document(each, wrapping, depth + 1)]
            if found:
                yield from found
                return
        if rest != text:
            entry = self._read_line(rest) or entry
        if entry is not None:
            yield _placed(entry, rest, wrapping)
            for glued in self._glued(rest):
                yield _placed(glued, rest, wrapping)

    def _glued(self, text: str) -> Iterator[LogEntry]:
        """Entries after the first of a text in which processes wrote over each other's ends of lines."""
        if text.count("[") < 2:
            return
        found = [entry for part in _NEXT_LINE.split(text) if (entry := self._read_line(part))]
        yield from found[1:]

    def _may_hold(self, text: str) -> bool:
        """Whether an entry can be in a text; most lines of a log have none, and are done with at once."""
        return bool("\n" in text.strip() or _DOCUMENT.search(text) or self._read_line(plain(text)))

    def _document(self, node: Any, outer: Wrapping, depth: int) -> Iterator[LogEntry]:
        if depth > _DEPTH:
            return
        if isinstance(node, dict):
            texts = _texts(node)
            nested = any(isinstance(value, (dict, list)) for value in node.values())
            if not nested and not any(map(self._may_hold, texts)):
                return
            wrapping = outer.within(_time(node), source_of(dict(_fields(node))))
            for text in texts:
                if found := list(self._text(text, wrapping, depth + 1)):
                    yield from found  # fields beside it often hold it once more
                    return
            parts: Iterable[Any] = node.values()
        elif isinstance(node, list):
            moments = [moment_of(part) for part in node[:1] if not isinstance(part, (dict, list))]
            wrapping = outer.within(next(filter(None, moments), None), {})  # ["1789000000000000000", "the line"]
            for part in node:
                if isinstance(part, str):
                    yield from self._text(part, wrapping, depth + 1)
            parts = node
        else:
            return
        for part in parts:
            if isinstance(part, (dict, list)):
                yield from self._document(part, wrapping, depth + 1)


def _placed(entry: LogEntry, text: str, wrapping: Wrapping) -> LogEntry:
    """The entry with what its wrapping says, where the line itself does not."""
    moment = wrapping.moment if entry.moment is None else completed(entry.moment, wrapping.moment)
    process = PROCESS.match(text)
    return replace(entry, moment=moment, source=wrapping.source, process=process[1] if process else "")


def _documents(text: str) -> list[Any]:
    """The JSON documents in a text; of one that is cut short, the whole parts before the cut. Empty without any."""
    try:
        return [msgspec.json.decode(text.rstrip().rstrip(","))]
    except (msgspec.DecodeError, RecursionError, ValueError):
        pass
    decoder, found = json.JSONDecoder(), []
    start = re.compile(r"[\s,]*\[?(?=\s*[\[{])\s*")
    at = start.match(text)
    try:
        while at is not None and at.end() < len(text):
            value, end = decoder.raw_decode(text, at.end())
            found.append(value)
            at = start.match(text, end)
    except (ValueError, RecursionError):
        pass
    return found


def _texts(node: Mapping[str, Any]) -> list[str]:
    """The texts among the fields of a document, the likeliest first; journald writes some as a list of bytes."""

    def rank(name: str) -> int:
        return _TEXTS.index(name.lower()) if name.lower() in _TEXTS else len(_TEXTS)

    texts = []
    for name in sorted(node, key=rank):
        value = node[name]
        if isinstance(value, list) and value and all(type(part) is int and 0 <= part < _BYTES for part in value):
            value = bytes(value).decode(errors="replace")
        if isinstance(value, str):
            texts.append(value)
    return texts


def _time(node: Mapping[str, Any]) -> Moment | None:
    """The time of a document: that of the best known field, else a text that begins with a date."""
    by_name = {name.lower(): value for name, value in node.items()}
    for name in _TIMES:
        if name in by_name and (moment := moment_of(by_name[name])):
            return moment
    return next((moment_of(v) for v in node.values() if isinstance(v, str) and _DATED.fullmatch(v)), None)


_DATED = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d\S*")


def _fields(node: Mapping[str, Any], path: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Every text in a document and those within it, by its path with dots; OpenTelemetry's attributes among them."""
    for name, value in node.items():
        here = f"{path}.{name}" if path else str(name)
        if isinstance(value, dict) and depth < 4:
            yield from _fields(value, here, depth + 1)
        elif isinstance(value, list):
            for pair in value:
                if isinstance(pair, dict) and isinstance(pair.get("key"), str):
                    held = pair.get("value")
                    yield pair["key"], held.get("stringValue") if isinstance(held, dict) else held
        else:
            yield here, value
