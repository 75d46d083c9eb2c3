"""Archives are unpacked to exactly what was packed, in bounded pieces, and never in part."""

import gzip
import io
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from hitlab.client.engine_log import log_lines
from hitlab.errors import InputError
from hitlab.files import ArchiveError, as_file, pieces_of, unpacked
from hitlab.recordings.recording import Recording, read_recording, recording_bytes


def zst(content: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True).compress(content)


PACKS: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "zstandard": zst}


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    return (data[start : start + size] for start in range(0, len(data), size))


@settings(deadline=None)
@given(kind=st.sampled_from([*PACKS]), members=st.lists(st.binary(max_size=99)), size=st.integers(1, 50))
def test_members_and_frames_cut_into_any_pieces_are_unpacked_to_what_was_packed(
    kind: str, members: list[bytes], size: int
) -> None:
    packed = b"".join(map(PACKS[kind], members))
    assert b"".join(unpacked(pieces(packed, size))) == b"".join(members)


@given(content=st.binary(max_size=99), size=st.integers(1, 50))
def test_what_is_not_packed_stays_as_it_is(content: bytes, size: int) -> None:
    assert b"".join(unpacked(pieces(b"{" + content, size))) == b"{" + content


@pytest.mark.parametrize("kind", PACKS)
@pytest.mark.parametrize("members", [1, 2])
def test_archive_cut_anywhere_is_an_error(kind: str, members: int) -> None:
    first, last = PACKS[kind](b"first " * 40), PACKS[kind](b"second " * 40)
    packed, ends = (first, ()) if members == 1 else (first + last, (len(first),))
    for end in range(4, len(packed)):
        if end in ends:  # whole members
            continue
        with pytest.raises(ArchiveError) as raised:
            list(unpacked(pieces(packed[:end], 7)))
        assert (raised.value.kind, raised.value.cut) == (kind, True)


@pytest.mark.parametrize("kind", PACKS)
def test_damage_is_an_error(kind: str) -> None:
    packed = PACKS[kind](b"content " * 40)
    for damaged in (packed[:-4] + bytes(4), packed + b"more", packed + packed[:2] + b"XXXXXXXX"):
        with pytest.raises(ArchiveError):
            list(unpacked([damaged]))


def test_long_windows_of_zstandard_are_read() -> None:
    parameters = zstandard.ZstdCompressionParameters.from_level(3, window_log=28, enable_ldm=True)
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    packed = packer.compress(b"far " * 1000) + packer.flush()
    with pytest.raises(zstandard.ZstdError, match="memory"):  # as zstandard reads by default
        zstandard.ZstdDecompressor().decompressobj().decompress(packed)
    assert b"".join(unpacked([packed])) == b"far " * 1000


@pytest.mark.parametrize(("kind", "most_bytes"), [("gzip", 1 << 20), ("zstandard", 1 << 28)])
def test_what_is_packed_very_well_is_unpacked_in_bounded_pieces(kind: str, most_bytes: int) -> None:
    size = 1 << 30
    if kind == "gzip":
        size = 1 << 26
    sizes = [len(piece) for piece in unpacked([PACKS[kind](bytes(size))])]
    assert (sum(sizes), max(sizes) <= most_bytes) == (size, True)


def test_pieces_read_as_a_file_give_the_same_bytes() -> None:
    content = bytes(range(256)) * 9
    assert as_file(pieces(content, 100)).read() == content
    assert as_file(iter(())).read() == b""
    assert b"".join(pieces_of(io.BufferedReader(io.BytesIO(content)))) == content


# The readers that use it


@pytest.mark.parametrize("kind", PACKS)
def test_cut_log_is_an_error_and_a_log_of_several_members_is_read_to_its_end(tmp_path: Path, kind: str) -> None:
    log = tmp_path / "engine.log"
    log.write_bytes(PACKS[kind](b"one\r\ntwo\n") + PACKS[kind](b"three"))
    assert list(log_lines(log)) == ["one\n", "two\n", "three"]
    log.write_bytes(PACKS[kind](b"one\ntwo\n" * 99)[:-5])
    with pytest.raises(InputError, match=r"engine\.log: damaged archive: .*; get the file again"):
        list(log_lines(log))


def test_recording_packed_by_zstandard_is_read_and_a_cut_one_is_an_error() -> None:
    tape = Recording(engine="vllm", version="0.32.0", sequences=())
    packed = zst(recording_bytes(tape, gzipped=False))
    assert read_recording(packed) == tape
    with pytest.raises(InputError, match="a damaged zstandard file"):
        read_recording(packed[:-3])
