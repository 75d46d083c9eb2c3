"""Sweeps: which points there are, that they are the same as replays', and who leads where."""

import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from helpers import Hitlab
from simulation.points import points_of

from hitlab import families
from hitlab.errors import UsageError
from hitlab.simulation import kv_size, replay, sweep
from hitlab.simulation.policy import Choice, load_policy
from hitlab.simulation.sweep import Point
from hitlab.traces import mapped
from hitlab.traces.trace import Trace


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("7", [7]),
        ("30,10,30", [10, 30]),
        ("1:1000:log4", [1, 10, 100, 1000]),
        ("10:20:lin3", [10, 15, 20]),
        ("5:5:log30", [5]),
        ("1:3:log30", [1, 2, 3]),
    ],
)
def test_capacities_are_lists_or_ranges_each_once_and_sorted(text: str, expected: list[int]) -> None:
    assert sweep.capacities(text) == expected


@pytest.mark.parametrize("text", ["", "x", "1:x", "10:1:log3", "0:10:log3", "1:10:exp3", "1:10:log0", "1:2:3:4", "1.5"])
def test_what_is_no_capacity_is_one_line(text: str) -> None:
    with pytest.raises(UsageError, match="is no"):
        sweep.capacities(text)


def test_memory_is_turned_into_blocks_that_fit() -> None:
    llama = kv_size.architecture("Llama-3.1-8B").bytes_per_token()
    assert llama == 2 * 32 * 8 * 128 * 2
    assert sweep.memory_capacities("1GiB,64MiB", llama, 512) == [1, 16]
    with pytest.raises(UsageError, match="no room for a block of 67,108,864 bytes"):
        sweep.memory_capacities("1MiB:1GiB", llama, 512)
    for text in ("8XB", "GiB", "-1GiB", "8KiBB"):
        with pytest.raises(UsageError, match="no memory size"):
            kv_size.bytes_of(text)


def test_models_say_where_their_numbers_come_from() -> None:
    for model in kv_size.MODELS.values():
        assert model.source.count("/") == 1
        assert model.bytes_per_token() > 0
    with pytest.raises(UsageError, match="no model named"):
        kv_size.architecture("gpt-2")


def test_choices_carry_options_and_refuse_what_is_none() -> None:
    assert Choice.of("S3FIFO:max-freq=1") == Choice("s3fifo:max-freq=1", "s3fifo", {"max_freq": 1})
    with pytest.raises(UsageError, match="is no option of a policy"):
        Choice.of("s3fifo:max_freq=many")


def test_crossings_skip_ties_and_points_without_a_partner() -> None:
    def made(policy: str, *rates: float) -> Iterator[Point]:
        return (Point(policy, n, 0, 0, 0, rate, rate, 0, 0, rate, rate) for n, rate in enumerate(rates))

    points = [*made("a", 0.1, 0.2, 0.3, 0.9, 0.9), *made("b", 0.0, 0.2, 0.4, 0.5)]
    assert list(sweep.crossings(points, "a", "b", "cold_token_hit_rate")) == [("a", 0, 2), ("b", 2, 3)]


def test_every_point_of_every_policy_is_what_its_replay_says(
    hitlab: Hitlab, chats: Path, trace: Trace, here: Path
) -> None:
    ran = hitlab("sweep", chats, "--policy", "all", "--capacity", "50,400", "--warmup", "0.25", "--json")
    assert ran.status == 0
    points = points_of(ran.out)
    first = replay.first_warm(trace.requests, 0.25)
    assert first == 767
    assert points.keys() == {(name, capacity) for name in families.names("policies") for capacity in (50, 400)}
    for (name, capacity), each in points.items():
        one = replay.replay(trace, load_policy(name), capacity)
        cold, steady = one.tally, one.tally_from(first)
        assert (each["cold_hit_tokens"], each["cold_prompt_tokens"]) == (cold.hit_tokens, cold.queried_tokens)
        assert (each["steady_hit_tokens"], each["steady_prompt_tokens"]) == (steady.hit_tokens, steady.queried_tokens)
        assert (each["cold_token_hit_rate"], each["steady_token_hit_rate"]) == (cold.hit_rate, steady.hit_rate)
        assert each["cold_request_hit_rate"] == pytest.approx(one.request_hit_rate())
        assert each["steady_request_hit_rate"] == pytest.approx(one.request_hit_rate(first))
        assert each["final_blocks"] == one.final_blocks


def test_the_engine_s_cap_counts_in_every_point(hitlab: Hitlab, here: Path) -> None:
    row = {"input_length": 600, "hash_ids": [1, 2]}
    Path("twice").write_text(2 * (json.dumps(row) + "\n"))
    command = ("sweep", "twice", "--policy", "lru,clock,unbounded,vllm", "--capacity", "40", "--json")
    for options, hit_tokens in (((), 600), (("--engine-cap",), 512)):
        points = points_of(hitlab(*command, *options).out)
        assert {name: each["cold_hit_tokens"] for (name, _), each in points.items()} == {
            **dict.fromkeys(("lru", "clock", "unbounded"), hit_tokens),
            "vllm": 512,
        }


def test_rates_by_hand() -> None:
    trace = Trace.of([(8, [1, 2]), (8, [1, 2]), (4, [1]), (0, [])], 4)
    result = replay.replay(trace, load_policy("lru"), 9)
    assert (result.tally.hit_rate, result.request_hit_rate()) == (12 / 20, 2 / 3)
    assert (result.tally_from(2).hit_rate, result.request_hit_rate(2)) == (1.0, 1.0)
    assert (result.tally_from(3).hit_rate, result.request_hit_rate(3)) == (None, None)


def test_belady_has_the_most_block_hits_and_unbounded_the_most_of_all(trace: Trace) -> None:
    blocks = Trace.of([(1, [block]) for block in trace.blocks.tolist()], 1)
    for capacity in (20, 100, 400):
        hits = {
            name: replay.replay(blocks, load_policy(name), capacity).tally.hit_tokens
            for name in families.names("policies")
        }
        assert max(hits, key=lambda name: hits[name]) == "unbounded"
        assert hits["belady"] == max(count for name, count in hits.items() if name != "unbounded")


@pytest.mark.parametrize("jobs", [1, 2])
def test_processes_that_map_the_trace_say_the_same(hitlab: Hitlab, chats: Path, here: Path, jobs: int) -> None:
    command = ("sweep", chats, "--policy", "s3fifo,vllm", "--capacity", "60:600:log3", "--engine-cap", "--json")
    assert hitlab(*command, "--jobs", jobs).out == hitlab(*command).out


def test_a_cluster_of_two_dask_workers_says_the_same(hitlab: Hitlab, chats: Path, here: Path) -> None:
    distributed = pytest.importorskip("distributed", reason="Dask is not installed: pip install 'hitlab[dask]'")
    command = ("sweep", chats, "--policy", "s3fifo,fifo", "--capacity", "60:600:log3", "--json")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
    ) as cluster:
        there = hitlab(*command, "--backend", "dask", "--scheduler", cluster.scheduler_address, "--work-folder", here)
    assert there.status == 0
    assert "Traceback" not in there.err
    assert there.out == hitlab(*command).out


def test_a_backend_that_is_not_there_is_one_line(hitlab: Hitlab, chats: Path, here: Path) -> None:
    for name in ("slurm", *(() if find_spec("ray") else ("ray",))):
        ran = hitlab("sweep", chats, "--policy", "fifo", "--capacity", "60", "--backend", name)
        assert (ran.status, ran.err.count("\n")) == (2, 1)
        assert name in ran.err


def test_a_mapped_trace_is_the_trace(trace: Trace, tmp_path: Path) -> None:
    mapped.save(trace, tmp_path)
    again = mapped.load(str(tmp_path))
    assert (again.block_tokens, again.distinct_blocks) == (trace.block_tokens, trace.distinct_blocks)
    for name in ("blocks", "starts", "prompt_tokens"):
        assert getattr(again, name).tolist() == getattr(trace, name).tolist()
        assert type(getattr(again, name)) is type(getattr(trace, name))
    assert mapped.digest(again) == mapped.digest(trace)
    assert mapped.digest(Trace.of([(1, [1])], 1)) != mapped.digest(Trace.of([(1, [1])], 2))


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        ((0.2, 0.4), (0.1, 0.3), "a beats b at every capacity here"),
        ((0.1, 0.3), (0.2, 0.4), "b beats a at every capacity here"),
        ((0.1, 0.3), (0.2, 0.3), "b equals or beats a at every capacity here"),
        ((0.1, 0.3), (0.1, 0.3), "a and b hit the same at every capacity here"),
        ((0.1, 0.3, 0.5), (0.2, 0.3, 0.4), "b beats a up to 0 blocks and loses to it from 2"),
        ((0.1, 0.3, 0.5), (0.2, 0.1, 0.6), "a and b change places 2 times between 0 and 2 blocks"),
        ((), (), ""),
    ],
)
def test_two_policies_compared_in_a_sentence(one: tuple[float, ...], other: tuple[float, ...], said: str) -> None:
    points = [
        Point(policy, n, 0, 0, 0, rate, rate, 0, 0, rate, rate)
        for policy, rates in (("a", one), ("b", other))
        for n, rate in enumerate(rates)
    ]
    assert sweep.comparison(points, "a", "b", "cold_token_hit_rate") == said


def test_auto_goes_to_where_lru_hits_all_that_can_be_hit(hitlab: Hitlab, chats: Path, here: Path) -> None:
    points = points_of(hitlab("sweep", chats, "--policy", "lru,unbounded", "--json").out)
    sizes = sorted({capacity for _, capacity in points})
    assert 20 < len(sizes) <= 30
    rates = [points["lru", size]["cold_hit_tokens"] for size in sizes]
    assert rates[-2] < rates[-1] == points["unbounded", sizes[-1]]["cold_hit_tokens"]
