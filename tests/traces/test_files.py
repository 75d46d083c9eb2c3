"""Files in every encoding, damaged ones, and what cannot be opened."""

import gzip
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zstandard
from traces.rows import ROWS, rows

from hitlab.errors import TraceError
from hitlab.traces import reader
from hitlab.traces.reader import read_trace
from hitlab.traces.trace import Trace

ENCODINGS: dict[str, Callable[[bytes], bytes]] = {
    "plain": lambda content: content,
    "no line feed at the end": lambda content: content.rstrip(b"\n"),
    "byte-order mark": lambda content: b"\xef\xbb\xbf" + content,
    "CRLF": lambda content: content.replace(b"\n", b"\r\n"),
    "blank lines": lambda content: content.replace(b"\n", b"\n \n\n"),
    "gzip": gzip.compress,
    "gzip members": lambda content: b"".join(gzip.compress(part) for part in (content[:50], b"", content[50:])),
    "gzip of a byte-order mark and CRLF": lambda content: gzip.compress(
        b"\xef\xbb\xbf" + content.replace(b"\n", b"\r\n")
    ),
    "gzip with padding": lambda content: gzip.compress(content) + bytes(1000),
    "gzip members with padding": lambda content: b"".join(
        gzip.compress(part) + bytes(9) for part in (content[:50], content[50:])
    ),
    "zstandard": zstandard.ZstdCompressor().compress,
    "zstandard frames": lambda content: b"".join(
        zstandard.ZstdCompressor(write_checksum=True).compress(part) for part in (content[:50], content[50:])
    ),
    "zstandard after a skippable frame": lambda content: (
        b"\x50\x2a\x4d\x18\x05\x00\x00\x00hello" + zstandard.ZstdCompressor().compress(content)
    ),
}


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("piece_bytes", [7, 1 << 16])
def test_a_file_is_read_alike_in_every_encoding(
    read: Callable[..., Trace], monkeypatch: pytest.MonkeyPatch, encoding: str, piece_bytes: int
) -> None:
    monkeypatch.setattr(reader, "PIECE_BYTES", piece_bytes)
    assert rows(read(ENCODINGS[encoding](ROWS))) == [(1000, [0, 1]), (40, [1])]


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.ZstdCompressor(write_checksum=True).compress])
def test_an_archive_cut_anywhere_or_damaged_is_an_error_and_never_part_of_a_trace(
    read: Callable[..., Trace], pack: Callable[[bytes], bytes]
) -> None:
    packed = pack(ROWS * 50)
    for end in (*range(5, len(packed) - 1, 7), len(packed) - 1):
        with pytest.raises(TraceError, match="the archive ends too early"):
            read(packed[:end], skip_malformed=True)
    for content in (packed[:-6] + bytes(6), packed + b"garbage", packed + bytes(9) + b"garbage"):
        with pytest.raises(TraceError, match="damaged archive"):
            read(content)


def test_what_cannot_be_opened_is_one_line(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing", tmp_path / ("x" * 300)):
        with pytest.raises(TraceError) as caught:
            read_trace(path, 512)
        assert caught.value.where == str(path)


def test_a_file_without_lines_is_given_up_on(read: Callable[..., Trace], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MAX_LINE_BYTES", 1 << 16)
    with pytest.raises(TraceError, match="a line of more than"):
        read(bytes(1 << 18))


def test_progress_counts_the_bytes_of_the_file(read: Callable[..., Trace], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "PIECE_BYTES", 40)
    reports: list[tuple[int, int]] = []
    read(ROWS, on_progress=lambda done, total: reports.append((done, total)))
    assert reports == [(40, 117), (80, 117), (117, 117)]


def test_a_folder_that_may_not_be_read_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: Path) -> Iterator[Path]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refused)
    with pytest.raises(TraceError, match="Permission denied") as caught:
        read_trace(tmp_path)
    assert caught.value.where == str(tmp_path)
