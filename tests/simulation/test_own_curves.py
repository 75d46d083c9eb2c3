"""A policy that has a hit-ratio curve is swept with its own, and the points are what replays say."""

import json
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest
from helpers import Hitlab
from hypothesis import given, settings
from hypothesis import strategies as st
from simulation import never

from hitlab import families
from hitlab.simulation import hit_curve, replay, sweep, sweep_runner
from hitlab.simulation.hit_curve import Curves, lru_curve
from hitlab.simulation.policy import Choice, load_policy
from hitlab.simulation.sweep import Point
from hitlab.simulation.workers import Workers
from hitlab.traces.trace import Trace

WITH_A_CURVE = [name for name in families.names("policies") if load_policy(name).CURVE]

requests = st.lists(st.lists(st.integers(0, 9), max_size=7), max_size=25)


@pytest.fixture
def known_never(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `never` a policy like those in policies/."""
    known = families.load

    def load(family: str, name: str) -> ModuleType:
        return never if (family, name) == ("policies", "never") else known(family, name)

    monkeypatch.setattr(families, "load", load)


def swept(trace: Trace, policy: str, capacities: Sequence[int], folder: Path, first: int = 0) -> list[Point]:
    wanted = sweep_runner.Sweep(trace, [Choice.of(policy)], capacities, first, False, {})
    partial = sweep_runner.partial_file(folder, wanted)
    sweep_runner.run(wanted, Curves(trace), Workers(), partial, lambda done, total: None)
    return wanted.ordered()


def test_a_bounded_policy_that_never_hits_is_swept_at_0(
    hitlab: Hitlab, root: Path, tmp_path: Path, known_never: None
) -> None:
    command = ("sweep", root / "examples" / "chats.jsonl.gz", "--policy", "never,lru", "--capacity", "50,400,10000")
    ran = hitlab(*command, "--out", tmp_path, "--json")
    points = json.loads(ran.out)["points"]
    rates = {
        name: [each["cold_token_hit_rate"] for each in points if each["policy"] == name] for name in ("never", "lru")
    }
    assert rates["never"] == [0, 0, 0]
    assert rates["lru"][-1] > 0.5
    assert [each["final_blocks"] for each in points if each["policy"] == "never"] == [0, 0, 0]


def test_options_that_a_curve_does_not_know_are_replayed(
    tmp_path: Path, known_never: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    replayed: list[Any] = []
    whole = replay.replay

    def counted(*arguments: Any, **options: Any) -> replay.Replay:
        replayed.append(arguments[3:])
        return whole(*arguments, **options)

    monkeypatch.setattr(replay, "replay", counted)
    trace = Trace.of([(8, [1, 2]), (8, [1, 2])], 4)
    (point,) = swept(trace, "never", [5], tmp_path)
    assert replayed == []
    (same,) = swept(trace, "never:depth=2", [5], tmp_path)
    assert replayed[-1] == ({"depth": 2},)
    assert msgspec.structs.replace(same, policy="never") == point


def test_lru_and_unbounded_have_a_curve() -> None:
    assert {"lru", "unbounded"} <= set(WITH_A_CURVE)


@pytest.mark.parametrize("name", WITH_A_CURVE)
@settings(max_examples=60, deadline=None)
@given(made=requests, first=st.integers(0, 25), engine_cap=st.booleans())
def test_a_sweep_says_what_a_replay_says_at_every_capacity(
    name: str, made: list[list[int]], first: int, engine_cap: bool
) -> None:
    trace = Trace.of([(max(0, 4 * len(ids) - len(ids) % 3), ids) for ids in made], 4)
    policy, choice, capacities = load_policy(name), Choice.of(name), list(range(1, 14))
    assert policy.CURVE is not None
    curve = policy.CURVE(trace, engine_cap=engine_cap)
    for found, capacity in zip(sweep.curve_points(choice, curve, trace, capacities, first), capacities, strict=True):
        expected = sweep.point(choice, replay.replay(trace, policy, capacity, engine_cap=engine_cap), first)
        for field, value in msgspec.structs.asdict(expected).items():
            assert getattr(found, field) == (pytest.approx(value) if isinstance(value, float) else value), field


def test_a_sweep_builds_lru_s_curve_once_for_its_points_and_its_automatic_capacities(
    hitlab: Hitlab, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, passes = hit_curve.compiled(), []

    def counted(*arguments: Any) -> None:
        passes.append(arguments)
        kernel(*arguments)

    monkeypatch.setattr(hit_curve, "compiled", lambda: counted)
    ran = hitlab("sweep", root / "examples" / "chats.jsonl.gz", "--policy", "lru", "--out", tmp_path, "--json")
    assert ran.status == 0
    assert len(json.loads(ran.out)["points"]) > 20
    assert len(passes) == 1


def test_curves_are_built_once_each() -> None:
    curves = Curves(Trace.of([(8, [1, 2]), (8, [1, 2])], 4), engine_cap=True)
    assert curves.of(lru_curve) is curves.of(lru_curve)
    assert curves.of(lru_curve).at([2]).tolist() == [4]
    assert curves.of(never.CURVE).at([2]).tolist() == [0]
