"""Unpacks gzip and zstandard while reading; which of them it is, if any, is detected from the first four bytes.

Archives of several members or frames, zero padding after gzip members, skippable zstandard frames and windows of up to
2 GiB (`zstd --long=31`) are read. An archive that ends before its end mark is an error.
"""

import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from io import BufferedReader, RawIOBase
from itertools import chain
from typing import Any

PIECE_BYTES = 1 << 16

_GZIP = b"\x1f\x8b"
_ZSTANDARD = b"\x28\xb5\x2f\xfd"
_SKIPPABLE = {bytes([first]) + b"\x2a\x4d\x18" for first in range(0x50, 0x60)}  # frames that carry somebody's notes
_MAGIC_BYTES = 4


class ArchiveError(Exception):
    """A damaged archive: `kind` of archive and `detail` of the damage; `cut` when it only ends too early."""

    def __init__(self, kind: str, detail: str, cut: bool = False) -> None:
        self.kind, self.detail, self.cut = kind, detail, cut
        super().__init__(detail if cut else f"damaged archive: {detail}")


def pieces_of(file: BufferedReader) -> Iterator[bytes]:
    """What a binary file holds, in pieces; of a pipe, whatever is there by then. Raises OSError."""
    while piece := file.read1(PIECE_BYTES):
        yield piece


def unpacked(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The contents of a file of which these are the pieces, in pieces; the same ones where nothing is packed.

    Raises ArchiveError, and what the pieces raise.
    """
    source = iter(pieces)
    begun = b""
    while len(begun) < _MAGIC_BYTES and (piece := next(source, b"")):
        begun += piece
    everything = chain([begun], source) if begun else source
    if begun.startswith(_GZIP):
        return _frames(everything, _gzip())
    if begun.startswith(_ZSTANDARD) or begun[:_MAGIC_BYTES] in _SKIPPABLE:
        return _frames(everything, _zstandard())
    return everything


def as_file(pieces: Iterable[bytes]) -> BufferedReader:
    """Pieces as a binary file that can be read once, from beginning to end."""
    return BufferedReader(_Pieces(iter(pieces)))


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of archive, whose members or frames are unpacked by objects with the interface of zlib.decompressobj."""

    name: str
    new: Callable[[], Any]
    damage: type[Exception]
    step_bytes: int  # most to give to `decompress` at a time, and ...
    limits: tuple[int, ...] = ()  # ... the arguments that limit what it returns
    padding: bytes = b""


def _gzip() -> _Kind:
    return _Kind(
        "gzip", lambda: zlib.decompressobj(wbits=31), zlib.error, PIECE_BYTES, limits=(1 << 20,), padding=b"\0"
    )


def _zstandard() -> _Kind:
    import zstandard

    unpacker = zstandard.ZstdDecompressor(max_window_size=1 << 31)
    # It returns all that is in what it is given, which may be 32,768 times as much: hence the small steps.
    return _Kind("zstandard", unpacker.decompressobj, zstandard.ZstdError, step_bytes=1 << 12)


def _frames(pieces: Iterator[bytes], kind: _Kind) -> Iterator[bytes]:
    """The contents of members or frames that follow one another, and whatever padding there is after each."""
    frame = None
    for step in _steps(pieces, kind.step_bytes):
        rest = step
        while rest:
            if frame is None and not (rest := rest.lstrip(kind.padding)):
                break
            frame = frame or kind.new()
            try:
                content = frame.decompress(rest, *kind.limits)
            except kind.damage as error:
                raise ArchiveError(kind.name, str(error)) from None
            if frame.eof:
                rest, frame = frame.unused_data, None
            else:
                rest = frame.unconsumed_tail
            if content:
                yield content
    if frame:
        raise ArchiveError(kind.name, "the archive ends too early", cut=True)


def _steps(pieces: Iterator[bytes], most_bytes: int) -> Iterator[bytes]:
    for piece in pieces:
        for start in range(0, len(piece), most_bytes):
            yield piece[start : start + most_bytes]


class _Pieces(RawIOBase):
    """An iterator of pieces as a raw binary file."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._rest = pieces, b""

    def readable(self) -> bool:
        """It is for reading only."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """Fill the buffer as far as one piece goes; 0 at the end."""
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._rest = piece
        size = min(len(buffer), len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        return size
