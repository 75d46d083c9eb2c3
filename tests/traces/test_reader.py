"""What a row of a trace may be, and how its ids and its order are kept."""

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from traces.rows import ROW, ROWS, line, rows

from hitlab.errors import TraceError, UsageError
from hitlab.traces.reader import read_trace
from hitlab.traces.trace import Trace, fitting_block_tokens

ids = st.one_of(
    st.integers(-3, 3),
    st.integers(-(2**70), 2**70),
    st.sampled_from([2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 1 + 2**32, 2**53, 2**53 + 1]),
    st.sampled_from(["", "1", "-1", "a", str(2**63)]),
    st.text(max_size=3),
)


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
    assert "try `block_tokens` 16;" in caught.value.todo


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
    assert "`skip_malformed`" in caught.value.todo
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


def test_requests_keep_the_order_of_the_file_whatever_their_timestamps(read: Callable[..., Trace]) -> None:
    content = b"".join(
        b'{"timestamp":%d,"input_length":%d,"hash_ids":%s}\n' % row
        for row in [(0, 1, b"[1]"), (0, 2, b"[1,2]"), (0, 1, b"[1]"), (-5, 1, b"[3]")]
    )
    assert rows(read(content, 1)) == [(1, [0]), (2, [0, 1]), (1, [0]), (1, [2])]
