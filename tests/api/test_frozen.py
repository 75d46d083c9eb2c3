"""Results stay as they were found, and survive being sent to another process or kept in a notebook's cache."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hitlab as hl
from hitlab.traces.trace import Trace


def test_the_arrays_of_a_replay_and_a_curve_are_read_only(trace: Trace) -> None:
    replayed, curve = hl.replay(trace, "lru", 100), hl.hit_curve(trace).curve
    columns: list[Any] = [
        replayed.hit_tokens,
        replayed.prompt_tokens,
        curve.hit_tokens,
        curve.needed_blocks,
        curve.request,
        hl.hit_curve(trace, "unbounded").curve.needed_blocks,
    ]
    for column in columns:
        with pytest.raises(ValueError, match="read-only"):
            column[0] = 7


def test_every_result_can_be_pickled(trace: Trace, root: Path) -> None:
    curve, reference = hl.hit_curve(trace), root / "results" / "reference"
    for result in (
        hl.predict(),
        hl.predict(break_mode="capacity"),
        hl.sweep(trace, ["lru"], [10, 20]),
        hl.sweep(trace, ["lru"], [10])[0],
        hl.measure("vllm", emulate=True, requests=4),
        hl.read_result(reference / "20261129T235952-vllm-none.json"),
        hl.read_result(reference / "20261130T001819-lab-hit-rate-vllm.json"),
    ):
        assert copied(result) == result
    assert copied(curve).hit_rate(500) == curve.hit_rate(500)
    assert copied(curve).capacity_blocks(0.9) == curve.capacity_blocks(0.9)
    replayed = hl.replay(trace, "s3fifo", 100, small_ratio=0.2)
    again = copied(replayed)
    assert (again.tally, again.options) == (replayed.tally, replayed.options)
    assert np.array_equal(again.hit_tokens, replayed.hit_tokens)
    assert hl.replay(copied(trace), "lru", 100).tally == hl.replay(trace, "lru", 100).tally


def test_errors_can_be_pickled() -> None:
    with pytest.raises(hl.HitlabError) as caught:
        hl.predict(prefix_tokens=-1)
    again = copied(caught.value)
    assert (type(again), str(again)) == (type(caught.value), "`prefix_tokens` is -1; give 0 or more")


def copied(result: Any) -> Any:
    return pickle.loads(pickle.dumps(result))
