import gzip
import json
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from helpers import Hitlab
from hypothesis import given
from hypothesis import strategies as st

from hitlab.errors import TraceError, UsageError
from hitlab.traces import reader
from hitlab.traces.reader import read_trace
from hitlab.traces.trace import Trace, fitting_block_tokens

ROW = b'{"timestamp": 0, "input_length": 1000, "output_length": 1, "hash_ids": [1, 2]}\n'
ROWS = ROW + b'{"input_length": 40, "hash_ids": [2]}\n'

ids = st.one_of(
    st.integers(-3, 3),
    st.integers(-(2**70), 2**70),
    st.sampled_from([2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 1 + 2**32, 2**53, 2**53 + 1]),
    st.sampled_from(["", "1", "-1", "a", str(2**63)]),
    st.text(max_size=3),
)


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., Trace]:
    def write_and_read(content: bytes, block_tokens: int = 512, **options: Any) -> Trace:
        path = tmp_path / "trace"
        path.write_bytes(content)
        return read_trace(path, block_tokens, **options)

    return write_and_read


def rows(trace: Trace) -> list[tuple[int, list[int]]]:
    bounds = zip(trace.prompt_tokens, trace.starts[:-1], trace.starts[1:], strict=True)
    return [(int(tokens), trace.blocks[start:end].tolist()) for tokens, start, end in bounds]


def line(input_length: object, hash_ids: object) -> bytes:
    return json.dumps({"timestamp": 0, "input_length": input_length, "hash_ids": hash_ids}).encode() + b"\n"


# What a row may be


@pytest.mark.parametrize(
    ("tokens", "hash_ids"), [(512, [7]), (513, [7]), (513, [7, 8]), (0, []), (300, []), (1, [7]), (1536, [1, 2, 3])]
)
def test_a_row_may_list_all_its_blocks_or_only_the_full_ones(
    read: Callable[..., Trace], tokens: int, hash_ids: list[int]
) -> None:
    assert read(line(tokens, hash_ids)).prompt_tokens.tolist() == [tokens]


@pytest.mark.parametrize(
    ("tokens", "hash_ids", "sizes"),
    [
        (512, [7, 8], "256 to 511, or 171 to 256 if only full blocks are listed"),
        (1025, [7], "1025 and more, or 513 to 1025 if only full blocks are listed"),
        (300, [1, 2], "150 to 299, or 101 to 150 if only full blocks are listed"),
        (6758, [], "6759 and more if only full blocks are listed"),
        (2, [1, 2, 3], "no block size fits"),
        (0, [1], "no block size fits"),
    ],
)
def test_any_other_number_of_blocks_is_an_error_that_names_the_sizes_that_fit(
    read: Callable[..., Trace], tokens: int, hash_ids: list[int], sizes: str
) -> None:
    with pytest.raises(TraceError) as caught:
        read(ROW + line(tokens, hash_ids))
    assert caught.value.where.endswith("trace:2")
    assert sizes in caught.value.todo


@given(st.integers(1, 5000), st.integers(0, 60), st.integers(1, 6000))
def test_the_sizes_said_to_fit_are_all_those_that_do(tokens: int, blocks: int, size: int) -> None:
    every, full = fitting_block_tokens(tokens, blocks)
    assert (size in every) == (blocks == -(-tokens // size))
    assert (size in full) == (blocks == tokens // size)


def test_a_trace_of_16_token_blocks_opened_at_512_says_so(read: Callable[..., Trace]) -> None:
    bailian = (
        b'{"chat_id":2,"parent_chat_id":1,"timestamp":62.5,"input_length":33,"output_length":4,'
        b'"type":"text","turn":2,"hash_ids":[5,6,7]}\n'
    )
    assert rows(read(bailian, 16)) == [(33, [0, 1, 2])]
    with pytest.raises(TraceError, match="lists 3 blocks, but 33 tokens make 0 or 1 of 512") as caught:
        read(bailian, 512)
    assert "try --block-size 16;" in caught.value.todo


@pytest.mark.parametrize(
    "bad",
    [
        b"[1,2]",
        b"42",
        b"null",
        b'"text"',
        b'{"a":',
        b"{}",
        b"nonsense",
        b'{"input_length": 5}',
        b'{"hash_ids": [1]}',
        b'{"input_length": 5, "hash_ids": null}',
        b'{"input_length": 5, "hash_ids": {"0": 1}}',
        b'{"input_length": null, "hash_ids": [1]}',
        b'{"input_length": -1, "hash_ids": []}',
        b'{"input_length": true, "hash_ids": [1]}',
        b'{"input_length": "5", "hash_ids": [1]}',
        b'{"input_length": 5.0, "hash_ids": [1]}',
        b'{"input_length": 100000000000000000000000, "hash_ids": [1]}',
        b'{"input_length": 2147483648, "hash_ids": [1]}',
        b'{"input_length": 5, "hash_ids": [1.0]}',
        b'{"input_length": 5, "hash_ids": [1e3]}',
        b'{"input_length": 5, "hash_ids": [true]}',
        b'{"input_length": 5, "hash_ids": [null]}',
        b'{"input_length": 5, "hash_ids": [[1]]}',
        b'{"input_length": 5, "hash_ids": [NaN]}',
        b'{"input_length": 5, "hash_ids": [1' + b"0" * 9000 + b"]}",
        b'{"input_length": 5, "hash_ids": ["\xff"]}',
        b'{"input_length": 5, "hash_ids": [1]} {"input_length": 5, "hash_ids": [1]}',
        b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b', "input_length": 5, "hash_ids": [1]}',
        "{}".encode("utf-16"),
    ],
    ids=lambda bad: bad[:44].decode(errors="replace"),
)
def test_what_is_no_request_is_one_line_with_its_number_or_skipped_and_counted(
    read: Callable[..., Trace], bad: bytes
) -> None:
    content = ROW + b"\n" + bad + b"\n" + ROW
    with pytest.raises(TraceError) as caught:
        read(content)
    assert caught.value.where.endswith("trace:3")
    assert "\n" not in str(caught.value)
    assert "--skip-malformed" in caught.value.todo
    trace = read(content, skip_malformed=True)
    assert (trace.requests, trace.skipped_rows) == (2, 1)
    assert "trace:3: " in trace.first_skipped


def test_a_skipped_row_leaves_no_blocks_behind(read: Callable[..., Trace]) -> None:
    trace = read(line(5, [10]) + line(5, [1, "a", 2]) + line(5, [11]), 8, skip_malformed=True)
    assert rows(trace) == [(5, [0]), (5, [1])]
    assert trace.distinct_blocks == 2


def test_a_file_of_nothing_is_a_trace_of_no_requests(read: Callable[..., Trace]) -> None:
    for content in (b"", b"\n\n", b"\xef\xbb\xbf", b" \t\r\n"):
        trace = read(content)
        assert (trace.requests, trace.blocks.size, trace.distinct_blocks) == (0, 0, 0)


@pytest.mark.parametrize("block_tokens", [0, -1, 2**31])
def test_a_block_size_out_of_range_is_a_usage_error(read: Callable[..., Trace], block_tokens: int) -> None:
    with pytest.raises(UsageError, match="block"):
        read(ROW, block_tokens)


# Ids


def test_ids_that_a_float_or_32_bits_would_merge_stay_apart(read: Callable[..., Trace]) -> None:
    trace = read(
        b'{"input_length":1,"hash_ids":[1]}\n{"input_length":1,"hash_ids":[4294967297]}\n'
        b'{"input_length":1,"hash_ids":[9007199254740993]}\n{"input_length":1,"hash_ids":[9007199254740992]}\n'
        b'{"input_length":1,"hash_ids":["1"]}\n{"input_length":1,"hash_ids":[36893488147419103233]}\n'
    )
    assert trace.distinct_blocks == 6
    assert len(set(trace.blocks.tolist())) == 6


@given(st.lists(st.lists(st.integers(-4, 9), max_size=6) | st.lists(ids, max_size=6), max_size=8))
def test_interned_ids_are_equal_exactly_where_the_ids_are(requests: list[list[int | str]]) -> None:
    trace = Trace.of([(len(each), each) for each in requests], 1)
    originals = [hash_id for each in requests for hash_id in each]
    meaning = dict(zip(trace.blocks.tolist(), originals, strict=True))
    assert [meaning[block] for block in trace.blocks.tolist()] == originals
    assert sorted(meaning) == list(range(trace.distinct_blocks))
    assert trace.distinct_blocks == len(set(originals))


@given(st.lists(st.integers(0, 2**64 - 1).map(lambda value: value - 2**63), min_size=1))
def test_hashes_are_numbered_in_the_order_they_appear(hash_ids: list[int]) -> None:
    far_apart = [-(2**63), *hash_ids, 2**63 - 1]
    expected: dict[int, int] = {}
    for hash_id in far_apart:
        expected.setdefault(hash_id, len(expected))
    trace = Trace.of([(len(far_apart), far_apart)], 1)
    assert trace.blocks.tolist() == [expected[hash_id] for hash_id in far_apart]


def test_arrays_are_32_bits_a_reference_and_read_only(read: Callable[..., Trace]) -> None:
    for trace in (read(ROWS), read(line(3, ["a", 2**80, 1]), 1), read(line(2, [-(2**63), 2**62]), 1)):
        assert trace.blocks.dtype == np.int32
        for column in (trace.blocks, trace.starts, trace.prompt_tokens):
            with pytest.raises(ValueError, match="read-only"):
                column[:1] = 0


def test_no_python_object_is_kept_of_a_reference(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    references = 400 * 500
    with path.open("wb") as file:
        for request in range(400):
            file.write(line(500, list(range(10**12 + request * 100, 10**12 + request * 100 + 500))))
    tracemalloc.start()
    try:
        trace = read_trace(path, 1)
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert trace.blocks.size == references
    assert kept < 6 * references  # a Python integer alone is 32 bytes
    assert peak < 40 * references


# Order


def test_requests_keep_the_order_of_the_file_whatever_their_timestamps(read: Callable[..., Trace]) -> None:
    content = b"".join(
        b'{"timestamp":%d,"input_length":%d,"hash_ids":%s}\n' % row
        for row in [(0, 1, b"[1]"), (0, 2, b"[1,2]"), (0, 1, b"[1]"), (-5, 1, b"[3]")]
    )
    assert rows(read(content, 1)) == [(1, [0]), (2, [0, 1]), (1, [0]), (1, [2])]


# Formats

BAILIAN = (
    b'{"chat_id":159,"parent_chat_id":55,"timestamp":61.5,"input_length":33,"output_length":4,'
    b'"type":"text","turn":2,"hash_ids":[5,6,7]}\n'
)
LENS = (
    b'{"chat_id":"0f1e2d3c4b5a6978","parent_chat_id":null,"turn":1,"type":"gpt","timestamp":61500,'
    b'"input_length":33,"output_length":4,"hash_ids":[8126372,91]}\n'
)
SIMULATOR = b'{"block_size":64,"hash_ids":[2001,"x"],"input_length":128,"timestamp":1500}\n'
SESSION = {
    "id": "trace_1",
    "block_size": 64,
    "hash_id_scope": "local",
    "requests": [
        {"t": 0.0, "type": "n", "in": 130, "out": 3, "hash_ids": [1, 2]},
        {
            "t": 10.5,
            "type": "subagent",
            "requests": [
                {"t": 0.0, "type": "n", "in": 70, "out": 3, "hash_ids": [3]},
                {"t": 2.0, "type": "subagent", "requests": [{"t": 1.5, "type": "s", "in": 64, "hash_ids": [1]}]},
            ],
        },
        {"t": 11.0, "type": "s", "in": 192, "out": 3, "hash_ids": [1, 2, 4]},
    ],
}


@pytest.mark.parametrize(
    ("content", "block_tokens", "arrival_s"),
    [(ROW, 512, 0.0), (BAILIAN, 16, 61.5), (LENS, 16, 61.5), (SIMULATOR, 64, 1.5)],
    ids=["mooncake", "bailian", "llmtrafficlens", "kvcache-simulator"],
)
@pytest.mark.parametrize("piece_bytes", [300, 1 << 16])
def test_a_format_is_told_from_its_first_line(
    read: Callable[..., Trace],
    monkeypatch: pytest.MonkeyPatch,
    content: bytes,
    block_tokens: int,
    arrival_s: float,
    piece_bytes: int,
) -> None:
    monkeypatch.setattr(reader, "PIECE_BYTES", piece_bytes)
    for packed in (content * 2, gzip.compress(content * 2)):
        trace = read(packed, None)
        assert (trace.block_tokens, trace.requests) == (block_tokens, 2)
        assert trace.arrival_s.tolist() == [arrival_s] * 2


def test_a_format_that_is_named_is_not_told_from_anything(read: Callable[..., Trace]) -> None:
    trace = read(BAILIAN, None, format_name="llmtrafficlens")
    assert trace.arrival_s.tolist() == [0.0615]
    with pytest.raises(UsageError, match="no trace format named 'csv'"):
        read(BAILIAN, None, format_name="csv")
    with pytest.raises(TraceError, match="does not say its block size"):
        read(ROW, None, format_name="kvcache-simulator")
    with pytest.raises(UsageError, match="no trace format named ''"):
        read(ROW, None, format_name="")


def test_a_trace_that_states_a_block_size_there_is_none_is_named(read: Callable[..., Trace]) -> None:
    with pytest.raises(TraceError, match="block_size is 0") as caught:
        read(SIMULATOR.replace(b"64", b"0"), None)
    assert caught.value.where.endswith("trace")


def test_the_first_session_left_out_does_not_set_the_block_size(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"block_size": 32, "requests": [{"t": 1.0, "in": -1, "hash_ids": []}]}))
    (tmp_path / "b.json").write_text(json.dumps(SESSION))
    trace = read_trace(tmp_path, skip_malformed=True)
    assert (trace.block_tokens, trace.requests, trace.skipped_rows) == (64, 4, 1)


@pytest.mark.parametrize("command", [("trace", "info"), ("replay", "--capacity", "60"), ("sweep",)], ids=" ".join)
def test_a_trace_without_requests_is_said_to_be_one(hitlab: Hitlab, tmp_path: Path, command: tuple[str, ...]) -> None:
    (tmp_path / "empty.gz").write_bytes(gzip.compress(b""))
    (tmp_path / "one").write_bytes(ROW)
    ran = hitlab(*command, tmp_path / "empty.gz", "--json")
    assert (ran.status, "no requests in the trace " in ran.err) == (0, True)
    assert "no requests" not in hitlab(*command, tmp_path / "one", "--json").err


@pytest.mark.parametrize("command", [("trace", "info"), ("replay", "--capacity", "60"), ("sweep",)], ids=" ".join)
def test_an_empty_name_of_a_trace_or_a_format_is_wrong_usage(
    hitlab: Hitlab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "session.json").write_text(json.dumps(SESSION))
    ran = hitlab(*command, "")
    assert (ran.status, ran.out, ran.err) == (2, "", "hitlab: TRACE is empty; name a file, or a folder of sessions\n")
    ran = hitlab(*command, "session.json", "--format", "")
    assert (ran.status, ran.out) == (2, "")
    assert "no trace format named ''" in ran.err


@pytest.mark.parametrize("command", [("trace", "info"), ("replay",), ("sweep",)], ids=" ".join)
def test_help_breaks_lines_at_the_terminal_s_width_only(hitlab: Hitlab, command: tuple[str, ...]) -> None:
    import inspect

    from hitlab.cli import replay, sweep, trace

    documented = {"trace": trace.info, "replay": replay.command, "sweep": sweep.command}[command[0]]
    shown = hitlab(*command, "--help").out
    for paragraph in inspect.cleandoc(documented.__doc__ or "").split("\n\n"):
        words, line = paragraph.split(), ""
        for word in words:  # as a terminal of 80 columns with a margin of 1 fills its lines
            if len(line) + len(word) + bool(line) > 78:
                assert f" {line} " in shown
                line = word
            else:
                line = f"{line} {word}".strip()
        assert f" {line} " in shown


def test_blocks_cut_from_characters_need_not_fit_the_tokens(read: Callable[..., Trace]) -> None:
    with pytest.raises(TraceError, match="lists 2 blocks"):
        read(ROW.replace(b"1000", b"400"), None)
    assert read(ROW.replace(b"1000", b"400"), None, format_name="llmtrafficlens").requests == 1


@pytest.mark.parametrize(
    ("second", "said"),
    [
        (SIMULATOR.replace(b"64", b"32"), "block_size is 32, but the trace is read at 64"),
        (SIMULATOR.replace(b'"input', b'"block_tokens":[60,68],"input'), "block_tokens differ"),
    ],
)
def test_blocks_of_several_sizes_are_an_error_that_names_the_row(
    read: Callable[..., Trace], second: bytes, said: str
) -> None:
    with pytest.raises(TraceError, match=said) as caught:
        read(SIMULATOR + second, None)
    assert caught.value.where.endswith("trace:2")


def test_rows_may_give_the_tokens_of_a_last_block_that_is_not_full(read: Callable[..., Trace]) -> None:
    row = SIMULATOR.replace(b"128", b"100").replace(b'"input', b'"block_tokens":[64,36],"input')
    assert read(row, None).prompt_tokens.tolist() == [100]


@pytest.mark.parametrize("stamp", [b"null", b'"noon"', b"true", b"[1]", b"1" + b"0" * 400, b"-1" + b"0" * 400])
def test_a_time_stamp_that_is_no_number_is_no_time(read: Callable[..., Trace], stamp: bytes) -> None:
    trace = read(ROW.replace(b'"timestamp": 0', b'"timestamp": ' + stamp))
    assert np.isnan(trace.arrival_s).all()


def test_a_session_is_its_requests_and_its_sub_agents_by_time(read: Callable[..., Trace]) -> None:
    for content in (json.dumps(SESSION), json.dumps(SESSION, indent=1), "\ufeff" + json.dumps(SESSION)):
        trace = read(content.encode(), None)
        assert rows(trace) == [(130, [0, 1]), (70, [2]), (192, [0, 1, 3]), (64, [0])]
        assert trace.arrival_s.tolist() == [0.0, 10.5, 11.0, 14.0]
        assert trace.block_tokens == 64


def test_sessions_of_a_folder_are_merged_by_time_and_share_no_local_ids(tmp_path: Path) -> None:
    (tmp_path / "b.json").write_text(json.dumps(SESSION))
    later = {**SESSION, "requests": [{"t": 5.0, "in": 64, "hash_ids": [1]}, {"t": 11.0, "in": 64, "hash_ids": [1]}]}
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(json.dumps(later).encode()))
    (tmp_path / "README.md").write_text("not a session")
    trace = read_trace(tmp_path)
    assert trace.arrival_s.tolist() == [0.0, 5.0, 10.5, 11.0, 11.0, 14.0]
    ids = [blocks for _, blocks in rows(trace)]
    assert ids[1] == ids[3] and ids[0] == ids[4][:2] and ids[5] == ids[0][:1]
    assert set(ids[1]).isdisjoint(ids[0])
    for file in ("a.json.gz", "b.json"):
        (tmp_path / file).unlink()
    for file in ("a.json", "b.json"):
        (tmp_path / file).write_text(json.dumps({**later, "hash_id_scope": "global"}))
    assert read_trace(tmp_path).distinct_blocks == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"block_size": 32}, "block_size is 32, but the trace is read at 64"),
        ({"requests": [{"t": 1.0, "hash_ids": [1]}]}, "the request at 1.0 s has no `in`"),
        ({"requests": [{"t": 1.0, "in": 5}]}, "no `hash_ids`"),
        ({"requests": [{"t": 1.0, "in": 5, "hash_ids": [1.5]}]}, "not a request: Expected `int`"),
        ({"requests": None}, "not a request"),
        ({"requests": [{"t": 1.0, "in": 99999999999, "hash_ids": [1]}]}, "99999999999 prompt tokens"),
        ({"requests": [{"t": 1.0, "in": -1, "hash_ids": [1]}]}, "-1 prompt tokens"),
        ({"requests": [{"t": 1.0, "requests": [{"in": 2**31, "hash_ids": []}]}]}, "2147483648 prompt tokens"),
        ({"block_size": 0}, "block_size is 0; a block has"),
        ({"block_size": -5}, "block_size is -5; a block has"),
    ],
)
def test_a_session_that_is_none_is_named_or_left_out(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    (tmp_path / "a.json").write_text(json.dumps(SESSION))
    (tmp_path / "b.json").write_text(json.dumps({**SESSION, **change}))
    with pytest.raises(TraceError) as caught:
        read_trace(tmp_path)
    assert said in str(caught.value)
    assert caught.value.where == str(tmp_path / "b.json")
    trace = read_trace(tmp_path, skip_malformed=True)
    assert (trace.requests, trace.skipped_rows) == (4, 1)


def test_the_agents_sessions_have_the_requests_and_blocks_they_have(data: Path) -> None:
    trace = read_trace(data / "traces" / "agentic")
    assert (trace.requests, trace.blocks.size, trace.block_tokens) == (46, 59_972, 64)
    assert (np.diff(trace.arrival_s) >= 0).all()
    alone = [read_trace(file) for file in sorted((data / "traces" / "agentic").iterdir())]
    assert trace.distinct_blocks == sum(each.distinct_blocks for each in alone)
    assert trace.requests == sum(each.requests for each in alone)


# Files


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


# Real and shipped traces


@pytest.mark.parametrize(
    ("name", "requests", "references", "distinct"),
    [("conversation", 12_031, 288_500, 182_790), ("synthetic", 3_993, 121_877, 43_924)],
)
def test_mooncake_traces_have_the_requests_and_blocks_published(
    shared: Path, name: str, requests: int, references: int, distinct: int
) -> None:
    trace = read_trace(shared / "traces" / f"{name}_trace.jsonl", 512)
    assert (trace.requests, trace.blocks.size, trace.distinct_blocks) == (requests, references, distinct)


def test_the_shipped_trace_is_what_its_script_makes(root: Path) -> None:
    script: dict[str, Any] = {"__name__": "make_chats"}
    exec((root / "examples" / "make_chats.py").read_text(), script)
    made: Sequence[dict[str, object]] = list(script["requests"]())
    with gzip.open(root / "examples" / "chats.jsonl.gz", "rt") as file:
        assert [json.loads(row) for row in file] == made
