"""The beginnings of two published traces, read and replayed a second time in plain Python.

What tests of the whole traces hold against published values, these hold in a clone that has only tests/data: the
right values come from `json`, sets and tests/simulation/reference_policies.py, never from the code under test.
"""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from helpers import Hitlab
from simulation.reference_policies import REFERENCES, hit_tokens

from hitlab import families
from hitlab.simulation import hit_curve, replay, trace_info
from hitlab.simulation.policy import load_policy
from hitlab.traces.reader import read_trace

NAMES = ("conversation_500.jsonl.gz", "synthetic_500.jsonl.gz")
BLOCK_TOKENS = 512
Requests = list[tuple[int, list[int]]]


def plain(file: Path, most: int | None = None) -> Requests:
    """(prompt tokens, block ids) of the first requests of a file, with nothing but json."""
    with gzip.open(file, "rt") as lines:
        rows = [json.loads(line) for line in lines]
    return [(row["input_length"], row["hash_ids"]) for row in rows[:most]]


class Belady:
    """Evicts the block whose next use is farthest away; next uses are looked up in each block's list of places."""

    def __init__(self, requests: Requests, capacity: int) -> None:
        order = [block for _, blocks in requests for block in blocks]
        self.next: list[float] = [0.0] * len(order)
        seen: dict[int, int] = {}
        for place in range(len(order) - 1, -1, -1):
            self.next[place] = seen.get(order[place], float("inf"))
            seen[order[place]] = place
        self.capacity, self.now, self.blocks = capacity, 0, dict[int, float]()

    def resident(self, block: int) -> bool:
        return block in self.blocks

    def access(self, block: int) -> None:
        if block not in self.blocks and len(self.blocks) == self.capacity:
            del self.blocks[max(self.blocks, key=lambda each: self.blocks[each])]
        self.blocks[block] = self.next[self.now]
        self.now += 1


@pytest.fixture(params=NAMES)
def excerpt(request: pytest.FixtureRequest, data: Path) -> Path:
    file: Path = data / "traces" / request.param
    return file


def test_a_published_trace_is_read_with_every_request_and_block(excerpt: Path) -> None:
    requests, trace = plain(excerpt), read_trace(excerpt, BLOCK_TOKENS)
    blocks = [block for _, ids in requests for block in ids]
    assert trace.prompt_tokens.tolist() == [tokens for tokens, _ in requests]
    assert (trace.requests, trace.blocks.size, trace.distinct_blocks) == (500, len(blocks), len(set(blocks)))
    number_of = dict(zip(blocks, trace.blocks.tolist(), strict=True))  # interned: one number for each id, and back
    assert [number_of[block] for block in blocks] == trace.blocks.tolist()
    assert len(set(number_of.values())) == len(number_of)


@pytest.mark.parametrize("capacity", [200, 1300])
@pytest.mark.parametrize("name", sorted(REFERENCES.keys() - {"belady", "sglang"}))
def test_each_request_of_a_published_trace_hits_what_the_plain_policy_hits(
    excerpt: Path, name: str, capacity: int
) -> None:
    expected = hit_tokens(plain(excerpt), BLOCK_TOKENS, REFERENCES[name](capacity))
    found = replay.replay(read_trace(excerpt, BLOCK_TOKENS), load_policy(name), capacity)
    assert found.hit_tokens.tolist() == expected
    assert 0 < sum(expected) < sum(tokens for tokens, _ in plain(excerpt))


def test_belady_on_a_published_trace_hits_what_looking_ahead_hits(excerpt: Path) -> None:
    requests = plain(excerpt)
    expected = hit_tokens(requests, BLOCK_TOKENS, Belady(requests, 200))
    found = replay.replay(read_trace(excerpt, BLOCK_TOKENS), load_policy("belady"), 200)
    assert found.hit_tokens.tolist() == expected


def test_sglang_s_policy_on_a_published_trace_hits_what_its_cache_model_hits(data: Path, tmp_path: Path) -> None:
    requests = plain(data / "traces" / NAMES[0], 60)
    few = tmp_path / "few.jsonl"
    few.write_text("".join(json.dumps({"input_length": n, "hash_ids": ids}) + "\n" for n, ids in requests))
    expected = hit_tokens(requests, BLOCK_TOKENS, REFERENCES["sglang"](300))
    found = replay.replay(read_trace(few, BLOCK_TOKENS), load_policy("sglang"), 300)
    assert found.hit_tokens.tolist() == expected
    assert sum(expected) > 0


def ceilings(requests: Requests) -> tuple[int, int]:
    """Tokens hit by a cache without end: a partial last block counted, and as engines count."""
    seen: set[int] = set()
    raw = capped = 0
    for tokens, blocks in requests:
        leading = next((i for i, block in enumerate(blocks) if block not in seen), len(blocks))
        raw += min(leading * BLOCK_TOKENS, tokens)
        capped += min(leading, (tokens - 1) // BLOCK_TOKENS) * BLOCK_TOKENS
        seen.update(blocks)
    return raw, capped


def test_every_policy_reaches_the_infinite_cache_s_hits_on_a_published_trace_and_no_more(excerpt: Path) -> None:
    raw, capped = ceilings(plain(excerpt))
    trace = read_trace(excerpt, BLOCK_TOKENS)
    for name in families.names("policies"):
        policy: Any = load_policy(name)
        found = replay.replay(trace, policy, 10**6).tally.hit_tokens
        assert found == (capped if hasattr(policy, "serve") else raw), name  # engines match whole blocks only
        assert replay.replay(trace, policy, 10**6, engine_cap=True).tally.hit_tokens == capped, name


def test_the_ceilings_and_lru_s_whole_curve_of_a_published_trace_are_counted_alike_by_hand(excerpt: Path) -> None:
    requests, trace = plain(excerpt), read_trace(excerpt, BLOCK_TOKENS)
    prompt_tokens = sum(tokens for tokens, _ in requests)
    curve = hit_curve.lru_curve(trace)
    found = trace_info.inspect(trace, curve, hit_curve.lru_curve(trace, engine_cap=True))
    assert (found.ceiling, found.ceiling_engine) == tuple(hits / prompt_tokens for hits in ceilings(requests))
    capacities = [1, 50, 200, 1000, 4000, 11_000]
    by_hand = [hit_tokens(requests, BLOCK_TOKENS, REFERENCES["lru"](capacity)) for capacity in capacities]
    assert curve.at(capacities).tolist() == [sum(hits) for hits in by_hand]
    assert curve.at(capacities, first=250).tolist() == [sum(hits[250:]) for hits in by_hand]


def test_where_s3fifo_and_lru_change_places_on_a_published_trace_is_said(
    hitlab: Hitlab, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = data / "traces" / NAMES[0]
    capacities = range(100, 1500, 100)
    lead = {
        capacity: sum(hit_tokens(plain(file), BLOCK_TOKENS, REFERENCES["s3fifo"](capacity)))
        - sum(hit_tokens(plain(file), BLOCK_TOKENS, REFERENCES["lru"](capacity)))
        for capacity in capacities
    }
    last_ahead = max(capacity for capacity in capacities if lead[capacity] > 0)
    first_behind = min(capacity for capacity in capacities if lead[capacity] < 0)
    assert last_ahead < first_behind
    ran = hitlab("sweep", file, "--policy", "s3fifo,lru", "--capacity", "100:1400:lin14", "--warmup", "0")
    assert f"s3fifo beats lru up to {last_ahead} blocks and loses to it from {first_behind:,}" in ran.out
