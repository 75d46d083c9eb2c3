"""The formats a trace comes in, and published traces in them."""

import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from traces.rows import ROW, SESSION, rows

from hitlab.errors import TraceError, UsageError
from hitlab.traces import reader
from hitlab.traces.reader import read_trace
from hitlab.traces.trace import Trace

BAILIAN = (
    b'{"chat_id":159,"parent_chat_id":55,"timestamp":61.5,"input_length":33,"output_length":4,'
    b'"type":"text","turn":2,"hash_ids":[5,6,7]}\n'
)


LENS = (
    b'{"chat_id":"0f1e2d3c4b5a6978","parent_chat_id":null,"turn":1,"type":"gpt","timestamp":61500,'
    b'"input_length":33,"output_length":4,"hash_ids":[8126372,91]}\n'
)


SIMULATOR = b'{"block_size":64,"hash_ids":[2001,"x"],"input_length":128,"timestamp":1500}\n'


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
