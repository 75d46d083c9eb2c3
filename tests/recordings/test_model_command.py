"""`hitlab model`: what it prints and how it leaves."""

import json
from pathlib import Path

import pytest
from helpers import Hitlab
from recordings.tapes import tape_of


def test_model_says_what_differs_and_leaves_with_3(tmp_path: Path, hitlab: Hitlab) -> None:
    file = tmp_path / "tape.json"
    file.write_bytes(tape_of(cached=0))
    ran = hitlab("model", file)
    assert ran.status == 3
    assert "sequence 0, request 1 (5 prompt tokens)" in ran.out
    assert "engine 0, model 4" in ran.out


def test_model_leaves_with_4_when_only_the_counters_disagree(tmp_path: Path, hitlab: Hitlab) -> None:
    file = tmp_path / "tape.json"
    file.write_bytes(tape_of().replace(b'"hits_delta": 4', b'"hits_delta": 8'))
    ran = hitlab("model", file)
    assert ran.status == 4
    assert "counters differ  1" in ran.out


def test_model_prints_one_json_document(data: Path, hitlab: Hitlab) -> None:
    file = data / "recordings" / "vllm_b64.json.gz"
    ran = hitlab("model", file, "--json")
    assert (ran.status, ran.err) == (0, "")
    assert json.loads(ran.out) == {
        "engine": "vllm",
        "version": "0.32.0",
        "requests": 840,
        "hits_differ": 0,
        "evicted_differ": 0,
        "counters_differ": 0,
        "first_difference": None,
    }


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (None, "No such file"),
        (b"{}", "not a recording"),
        (tape_of().replace(b"vllm", b"tgi"), "no engine named 'tgi'"),
        (tape_of().replace(b"num_gpu_blocks", b"blocks"), "this vllm recording has no num_gpu_blocks; record it again"),
    ],
)
def test_model_answers_bad_input_in_one_line(data: bytes | None, says: str, tmp_path: Path, hitlab: Hitlab) -> None:
    file = tmp_path / "tape.json"
    if data is not None:
        file.write_bytes(data)
    ran = hitlab("model", file)
    assert (ran.status, ran.out) == (1, "")
    assert says in ran.err
    assert str(file) in ran.err
    assert ran.err.count("\n") == 1
