"""LRU's whole curve from one pass, held against replays and against stack distances counted one by one."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from helpers import Hitlab
from hypothesis import given, settings
from hypothesis import strategies as st

from hitlab.simulation import hit_curve, replay, trace_info
from hitlab.simulation.policy import load_policy
from hitlab.traces.reader import read_trace
from hitlab.traces.trace import Trace

Requests = list[tuple[int, list[int]]]

traces = st.lists(st.lists(st.integers(0, 9), max_size=7), max_size=25).map(
    lambda made: Trace.of([(max(0, 4 * len(ids) - len(ids) % 3), ids) for ids in made], 4)
)


@settings(max_examples=200, deadline=None)
@given(traces, st.booleans(), st.integers(0, 25))
def test_every_capacity_is_what_a_replay_at_it_says(trace: Trace, engine_cap: bool, first: int) -> None:
    lru = load_policy("lru")
    found = hit_curve.lru_curve(trace, engine_cap=engine_cap)
    capacities = list(range(1, 14))
    replays = [replay.replay(trace, lru, capacity, engine_cap=engine_cap) for capacity in capacities]
    assert found.at(capacities).tolist() == [each.tally.hit_tokens for each in replays]
    assert found.at(capacities, first=first).tolist() == [each.tally_from(first).hit_tokens for each in replays]
    weights = 1 / np.maximum(trace.prompt_tokens, 1)
    shares = [float((each.hit_tokens * weights).sum()) for each in replays]
    assert found.at(capacities, weights).tolist() == pytest.approx(shares)


def distances(requests: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """(request, blocks an LRU cache needs) of each block hit by an unbounded cache, counted by hand."""
    used: list[int] = []
    found = []
    for number, blocks in enumerate(requests):
        needed = 0
        for block in blocks:
            if block not in used:
                break
            last = len(used) - 1 - used[::-1].index(block)
            needed = max(needed, len(set(used[last:])))
            found.append((number, needed))
        used += blocks
    return found


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.integers(0, 9), max_size=7), max_size=25))
def test_pieces_are_the_stack_distances(requests: list[list[int]]) -> None:
    found = hit_curve.lru_curve(Trace.of([(len(blocks), blocks) for blocks in requests], 1))
    pieces = zip(found.request.tolist(), found.needed_blocks.tolist(), found.hit_tokens.tolist(), strict=True)
    blocks = [(request, needed) for request, needed, tokens in pieces for _ in range(tokens)]
    assert sorted(blocks) == sorted(distances(requests))


def test_a_long_trace_crosses_many_words_of_the_bitmap() -> None:
    draw = np.random.default_rng(5)
    requests = [list(range(first, first + length)) for first, length in draw.integers(1, 400, (900, 2)).tolist()]
    trace = Trace.of([(len(blocks), blocks) for blocks in requests], 1)
    found = hit_curve.lru_curve(trace)
    for capacity in (1, 63, 64, 65, 200, 399, 500, 797, 798, 10**6):
        assert found.at([capacity])[0] == replay.replay(trace, load_policy("lru"), capacity).tally.hit_tokens


def test_a_block_used_longer_ago_holds_back_those_behind_it() -> None:
    # 1 and 2 were used before 3; then [3, 1, 2] arrives: 3 needs 1 block, 1 needs 3, so 2, which needs 2, needs 3.
    found = hit_curve.lru_curve(Trace.of([(8, [1, 2]), (4, [3]), (12, [3, 1, 2])], 4))
    assert found.at([1, 2, 3]).tolist() == [4, 4, 12]


def test_an_unbounded_cache_hits_the_same_at_every_capacity() -> None:
    trace = Trace.of([(8, [1, 2]), (4, [3]), (8, [1, 2])], 4)
    assert hit_curve.unbounded_curve(trace).at([1, 5]).tolist() == [8, 8]


def test_the_capacity_for_a_share_of_the_ceiling() -> None:
    found = hit_curve.lru_curve(Trace.of([(4, [1]), (4, [1]), (8, [2, 3]), (4, [1])], 4))  # 4 tokens need 1, 4 need 3
    assert [found.capacity_for(share) for share in (0, 0.5, 0.51, 1)] == [1, 1, 3, 3]
    assert hit_curve.lru_curve(Trace.of([(4, [1])], 4)).capacity_for(1) == 0


@pytest.mark.parametrize(
    ("name", "raw", "capped"),
    [("conversation_trace.jsonl", 0.37362, 0.37338), ("synthetic_trace.jsonl", 0.65124, 0.65043)],
)
def test_the_ceilings_of_the_published_traces(shared: Path, name: str, raw: float, capped: float) -> None:
    trace = read_trace(shared / "traces" / name)
    found = trace_info.inspect(trace, hit_curve.lru_curve(trace), hit_curve.lru_curve(trace, engine_cap=True))
    assert found.ceiling == pytest.approx(raw, abs=5e-6)
    assert found.ceiling_engine == pytest.approx(capped, abs=5e-6)
    engine = replay.replay(trace, load_policy("unbounded"), 1, engine_cap=True)
    assert engine.tally.hit_rate == found.ceiling_engine
    assert engine.final_blocks == trace.distinct_blocks


def test_lru_after_a_warm_up_of_half_the_requests(shared: Path) -> None:
    trace = read_trace(shared / "traces" / "conversation_trace.jsonl")
    first = replay.first_warm(trace.requests, 0.5)
    rates = {
        name: replay.replay(trace, load_policy(name), 11_275).tally_from(first).hit_rate
        for name in ("lru", "s3fifo", "arc", "fifo", "2q", "belady")
    }
    published = {"lru": 0.23336, "s3fifo": 0.20905, "arc": 0.2515, "fifo": 0.1956, "2q": 0.1934, "belady": 0.3981}
    assert rates == pytest.approx(published, abs=6e-5)


# What a trace is like


def test_an_inspection_counts_by_hand() -> None:
    requests = Trace.of([(8, [1, 2]), (7, [1, 2]), (8, [1, 3]), (0, [])], 4)
    trace = Trace(
        4, requests.blocks, requests.starts, requests.prompt_tokens, 3, arrival_s=np.array([0.0, 1.0, 1.0, 4.0])
    )
    found = trace_info.inspect(trace, hit_curve.lru_curve(trace), hit_curve.lru_curve(trace, engine_cap=True))
    assert (found.requests, found.prompt_tokens, found.block_references, found.distinct_blocks) == (4, 23, 6, 3)
    assert (found.reused_references, found.blocks_used_once, found.most_used_block) == (3, 1, 3)
    assert (found.ceiling, found.ceiling_engine) == ((7 + 4) / 23, (4 + 4) / 23)
    assert found.ceiling_requests == pytest.approx((0 + 1 + 0.5) / 3)
    assert found.lru_blocks_for_share == {"0.5": 2, "0.9": 2, "0.99": 2, "1": 2}
    arrivals = found.arrivals
    assert arrivals is not None
    assert (arrivals.duration_s, arrivals.requests_per_s, arrivals.in_order) == (4, 0.75, True)
    assert arrivals.peak_requests_per_s == 1.0
    assert arrivals.gap_variation == pytest.approx(np.std([1, 0, 3]) / np.mean([1, 0, 3]))


def test_an_inspection_of_nothing_has_no_rates() -> None:
    trace = Trace.of([], 4)
    found = trace_info.inspect(trace, hit_curve.lru_curve(trace), hit_curve.lru_curve(trace, engine_cap=True))
    assert (found.ceiling, found.ceiling_requests, found.arrivals, found.requests) == (None, None, None, 0)


def test_the_command_says_it_in_80_columns_or_json(hitlab: Hitlab, root: Path) -> None:
    chats = root / "examples" / "chats.jsonl.gz"
    text = hitlab("trace", "info", chats)
    assert text.status == 0
    assert max(map(len, text.out.splitlines())) <= 80
    for said in (
        "3,068",
        "54,737 to 8,514 distinct",
        "ceiling, engine",
        "LRU needs",
        "requests/s",
        "in order of",
        "times the mean (1 is random arrivals)",
    ):
        assert said in text.out
    document = json.loads(hitlab("trace", "info", chats, "--json").out)
    assert document["ceiling"] >= document["ceiling_engine"] > 0.5
    assert document["arrivals"]["in_order"] is True
