"""Read a trace file: JSON Lines as Mooncake publishes them, plain, gzipped or zstandard-compressed.

One request a line: {"input_length": tokens, "hash_ids": [block id, ...]}, other keys ignored. The file is
read in pieces; what is kept of it is 8 bytes a block reference.
"""

import zlib
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from hitlab.errors import TraceError
from hitlab.trace import BlockId, Trace, TraceBuilder

PIECE_BYTES = 1 << 16
MAX_LINE_BYTES = 1 << 28

OnProgress = Callable[[int, int], None]


class Row(msgspec.Struct, gc=False):
    """One line of a trace."""

    input_length: int
    hash_ids: list[BlockId]


def read_trace(
    path: Path, block_tokens: int, *, skip_malformed: bool = False, on_progress: OnProgress | None = None
) -> Trace:
    """The requests of a file, in file order.

    Raises TraceError, with the line number, for a row that is no request or cannot have that many blocks;
    with `skip_malformed` such rows are counted instead. A damaged archive is always an error. `on_progress`
    is told the bytes of the file read so far, and its size, now and then.
    """
    builder = TraceBuilder(block_tokens)
    decode = msgspec.json.Decoder(Row).decode
    for number, line in enumerate(_lines(path, on_progress), 1):
        if not line or line.isspace():
            continue
        try:
            row = decode(line)
            builder.add(row.input_length, row.hash_ids)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, TraceError) as error:
            misfit = _located(error, f"{path}:{number}")
            if not skip_malformed:
                raise misfit from None
            builder.skip(f"{misfit.where}: {misfit.what}")
    return builder.trace()


def _located(error: Exception, where: str) -> TraceError:
    if isinstance(error, TraceError):
        what, todo = error.what, f"{error.todo}; --skip-malformed leaves such rows out"
    elif isinstance(error, msgspec.ValidationError):
        what, todo = f"not a request: {error}", "correct the row, or leave such rows out with --skip-malformed"
    else:
        what, todo = f"not JSON: {error}", "correct the row, or leave such rows out with --skip-malformed"
    return TraceError(what, where=where, todo=todo)


def _lines(path: Path, on_progress: OnProgress | None) -> Iterator[bytes]:
    """Lines without their line feeds; a byte-order mark before the first is dropped."""
    begun: list[bytes] = []  # of a line that goes on in the next piece
    begun_bytes, expected = 0, b"\xef\xbb\xbf"
    for piece in _unpacked(_pieces(path, on_progress), str(path)):
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
        raise TraceError(error.strerror or str(error), where=str(path), todo="is that the right file?") from None


def _unpacked(pieces: Iterator[bytes], name: str) -> Iterator[bytes]:
    first = next(pieces, b"")
    packed = chain([first], pieces)
    if first.startswith(b"\x1f\x8b"):
        return _frames(packed, name, lambda: zlib.decompressobj(wbits=31), zlib.error)
    if first.startswith(b"\x28\xb5\x2f\xfd") or (first[:1] in _NOTES and first[1:4] == b"\x2a\x4d\x18"):
        import zstandard

        unpackers = zstandard.ZstdDecompressor(max_window_size=1 << 31)  # as `zstd --long=31` needs
        return _frames(packed, name, unpackers.decompressobj, zstandard.ZstdError)
    return packed


# A zstandard file may begin with a frame that carries somebody's notes.
_NOTES = [bytes([first]) for first in range(0x50, 0x60)]


def _frames(
    packed: Iterator[bytes], name: str, new_unpacker: Callable[[], Any], damage: type[Exception]
) -> Iterator[bytes]:
    """The contents of compressed frames that follow one another."""
    unpacker = None
    for piece in packed:
        rest = piece
        while rest:
            unpacker = unpacker or new_unpacker()
            try:
                content = unpacker.decompress(rest)
            except damage as error:
                raise TraceError(f"damaged archive: {error}", where=name, todo="get the file again") from None
            rest = b""
            if unpacker.eof:
                rest, unpacker = unpacker.unused_data, None
            yield content
    if unpacker:
        raise TraceError("the archive ends too early", where=name, todo="get the file again")
