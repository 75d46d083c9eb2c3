"""Reads a trace: a file with one request a line, or agents' sessions, one file or a folder of them (formats.py).

Files may be plain, gzipped or zstandard-compressed. They are read in pieces, and only 8 bytes a block reference are
kept.
"""

from array import array
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

import msgspec

from hitlab.errors import TraceError
from hitlab.files import ArchiveError, unpacked
from hitlab.traces import formats
from hitlab.traces.formats import Format
from hitlab.traces.trace import MAX_TOKENS, Trace, TraceBuilder, check_prompt

PIECE_BYTES = 1 << 16
MAX_LINE_BYTES = 1 << 28

OnProgress = Callable[[int, int], None]


def read_trace(
    path: Path,
    block_tokens: int | None = None,
    *,
    format_name: str | None = None,
    skip_malformed: bool = False,
    on_progress: OnProgress | None = None,
) -> Trace:
    """The requests of a file, in file order, or of a folder of sessions, by time.

    The format is detected from the first line, the block size from the format or the file, unless they are given.
    Raises TraceError, with the line number, for a row that is no request or cannot have that many blocks;
    with `skip_malformed` such rows are counted instead. A damaged archive is always an error. `on_progress`
    is called now and then with the bytes of the file read so far and its size, or with files read and all files.
    """
    chosen = formats.named(format_name) if format_name is not None else None
    files = _session_files(path)
    if files is not None:
        return _read_sessions(files, block_tokens, skip_malformed, on_progress)
    begun, contents = _beginning(_unpacked(_pieces(path, on_progress), str(path)))
    form = chosen or formats.detect(begun)
    if form.name == formats.SESSIONS:
        return _read_sessions([path], block_tokens, skip_malformed, on_progress)
    if block_tokens is None:
        block_tokens = form.block_tokens or formats.declared_block_tokens(begun)
        if block_tokens is not None:
            _check_block_size(block_tokens, str(path))
    if block_tokens is None:
        raise TraceError("the trace does not say its block size", where=str(path), todo="give it with `block_tokens`")
    return _read_rows(path, contents, form, TraceBuilder(block_tokens), skip_malformed)


def _read_rows(
    path: Path, contents: Iterator[bytes], form: Format, builder: TraceBuilder, skip_malformed: bool
) -> Trace:
    decode = msgspec.json.Decoder(formats.Row).decode
    for number, line in enumerate(_lines(contents, path), 1):
        if not line or line.isspace():
            continue
        try:
            row = decode(line)
            row.check(builder.block_tokens)
            builder.add(row.input_length, row.hash_ids, row.arrival_s(form.per_second), loose=form.loose)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, TraceError) as error:
            misfit = _located(error, f"{path}:{number}")
            if not skip_malformed:
                raise misfit from None
            builder.skip(f"{misfit.where}: {misfit.what}")
    return builder.trace()


def _session_files(folder: Path) -> list[Path] | None:
    """The sessions in this folder; None if it is no folder."""
    try:
        if not folder.is_dir():
            return None
        files = sorted(each for each in folder.iterdir() if ".json" in each.suffixes)
    except OSError as error:  # a name that is too long, a folder that may not be read
        raise _unreadable(error, folder) from None
    if not files:
        raise TraceError("no session in this folder", where=str(folder), todo="name a folder of .json files")
    return files


def _read_sessions(
    files: list[Path], block_tokens: int | None, skip_malformed: bool, on_progress: OnProgress | None
) -> Trace:
    """All sessions as one trace, merged by time; every session starts at 0 s."""
    decode = msgspec.json.Decoder(formats.Session).decode
    rows: list[tuple[float, int, array[int]]] = []
    numbers: dict[tuple[int, int], int] = {}  # of a block: its session, its id there
    skipped = []
    for index, file in enumerate(files):
        try:
            session = decode(b"".join(_unpacked(_pieces(file, None), str(file))).removeprefix(_MARK))
            _check_block_size(session.block_size, str(file))
            if session.block_size != (block_tokens or session.block_size):
                raise TraceError(
                    f"block_size is {session.block_size}, but the trace is read at {block_tokens}",
                    todo="all sessions need one block size",
                )
            requests = list(formats.flat(session.requests))
            for _, tokens, _ in requests:
                check_prompt(tokens)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, TraceError) as error:
            misfit = _located(error, str(file))
            if not skip_malformed:
                raise misfit from None
            skipped.append(f"{misfit.where}: {misfit.what}")
        else:
            block_tokens = session.block_size
            scope = -1 if session.hash_id_scope == "global" else index
            rows += [
                (arrival_s, tokens, array("q", [numbers.setdefault((scope, each), len(numbers)) for each in hash_ids]))
                for arrival_s, tokens, hash_ids in requests
            ]
        if on_progress:
            on_progress(index + 1, len(files))
    rows.sort(key=lambda row: row[0])
    builder = TraceBuilder(block_tokens or 1)
    for arrival_s, tokens, hash_ids in rows:
        builder.add(tokens, hash_ids, arrival_s, loose=True)
    for reason in skipped:
        builder.skip(reason)
    return builder.trace()


def _check_block_size(block_tokens: int, where: str) -> None:
    if not 1 <= block_tokens <= MAX_TOKENS:
        raise TraceError(f"block_size is {block_tokens}", where=where, todo=f"a block has 1 to {MAX_TOKENS} tokens")


def _located(error: Exception, where: str) -> TraceError:
    if isinstance(error, TraceError):
        what, todo = error.what, f"{error.todo}; `skip_malformed` leaves such rows out"
    elif isinstance(error, msgspec.ValidationError):
        what, todo = f"not a request: {error}", "correct the row, or leave such rows out with `skip_malformed`"
    else:
        what, todo = f"not JSON: {error}", "correct the row, or leave such rows out with `skip_malformed`"
    return TraceError(what, where=where, todo=todo)


_MARK = b"\xef\xbb\xbf"  # a byte-order mark


def _beginning(pieces: Iterator[bytes]) -> tuple[bytes, Iterator[bytes]]:
    """The first line, or its first PIECE_BYTES if it is longer; and an iterator of all pieces."""
    begun: list[bytes] = []
    for piece in pieces:
        begun.append(piece)
        if b"\n" in piece or sum(map(len, begun)) >= PIECE_BYTES:
            break
    return b"".join(begun), chain(begun, pieces)


def _lines(pieces: Iterator[bytes], path: Path) -> Iterator[bytes]:
    """Lines without their line feeds; a byte-order mark at the start of the file is dropped."""
    begun: list[bytes] = []  # of a line that goes on in the next piece
    begun_bytes, expected = 0, _MARK
    for piece in pieces:
        lines = piece.split(b"\n")
        begun.append(lines[0])
        begun_bytes += len(lines[0])
        if len(lines) > 1:
            yield b"".join(begun).removeprefix(expected)
            yield from lines[1:-1]
            begun, begun_bytes, expected = [lines[-1]], len(lines[-1]), b""
        if begun_bytes > MAX_LINE_BYTES:
            raise TraceError(
                f"a line of more than {MAX_LINE_BYTES >> 20} MiB", where=str(path), todo="is it JSON Lines?"
            )
    yield b"".join(begun).removeprefix(expected)


def _pieces(path: Path, on_progress: OnProgress | None) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            size_bytes, read_bytes = path.stat().st_size, 0
            while piece := file.read(PIECE_BYTES):
                read_bytes += len(piece)
                if on_progress:
                    on_progress(read_bytes, size_bytes)
                yield piece
    except OSError as error:
        raise _unreadable(error, path) from None


def _unreadable(error: OSError, path: Path) -> TraceError:
    return TraceError(error.strerror or str(error), where=str(path), todo="is that the right file?")


def _unpacked(pieces: Iterator[bytes], name: str) -> Iterator[bytes]:
    """The contents of the file of these pieces. Raises TraceError for a damaged archive."""
    try:
        yield from unpacked(pieces)
    except ArchiveError as error:
        raise TraceError(str(error), where=name, todo="get the file again") from None
