"""The closed form: hand-computed values, the handed cases, and rules that hold for every shape."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hitlab.errors import UsageError
from hitlab.experiment.closed_form import matchable_tokens, phase_tally, predict_unbroken, total
from hitlab.experiment.lab_page import page_values
from hitlab.experiment.plan import Experiment, plan
from hitlab.experiment.shape import BreakOptions, ColdRequests, Phase, Role, SharedPrefix
from hitlab.tokens import Tally

WORKED = SharedPrefix(requests=64, prefix_tokens=1000, suffix_tokens=200)
SHAPES = st.builds(
    SharedPrefix,
    requests=st.integers(1, 300),
    prefix_tokens=st.integers(0, 3000),
    suffix_tokens=st.integers(1, 500),
    groups=st.integers(1, 12),
)
BLOCKS = st.sampled_from([1, 16, 32, 64, 128, 256, 784])


def test_predictions_equal_the_handed_cases(data: Path) -> None:
    for case in json.loads((data / "cases/predict.json").read_text()):
        shape = SharedPrefix(case["requests"], case["prefix_len"], case["suffix_len"], case["groups"])
        tally = predict_unbroken(shape, case["block_size"]).tally
        assert (tally.hit_tokens, tally.queried_tokens, tally.hit_rate) == (
            case["hit_tokens"],
            case["prompt_tokens"],
            case["hit_rate"],
        ), case


def test_token_breaks_equal_the_handed_cases_from_an_empty_and_a_warm_cache(data: Path) -> None:
    for case in json.loads((data / "cases/break_at.json").read_text())["cases"]:
        shape = SharedPrefix(case["requests"], case["prefix_len"], case["suffix_len"])
        phases = {
            phase.name: phase for phase in plan(Experiment(shape, "token", BreakOptions(at=case["break_at"])), 1).phases
        }
        for name, cache in (("break", "from_empty_cache"), ("repeat", "from_warm_cache")):
            tally = phase_tally(phases[name], shape, case["block_size"])
            assert (tally.hit_tokens, tally.hit_rate) == (case[cache]["hit_tokens"], case[cache]["hit_rate"]), case


def test_penalties_of_the_worked_case_are_the_lab_pages() -> None:
    prediction = predict_unbroken(WORKED, block_tokens=16)
    assert prediction.matchable_prefix_tokens == 992
    assert prediction.stranded_tokens == 8
    assert prediction.cold_start_points == pytest.approx(100 * 1000 / 76_800)
    assert prediction.granularity_points == pytest.approx(100 * 63 * 8 / 76_800)


@given(SHAPES, BLOCKS, st.integers(1, 4))
def test_penalties_are_exactly_what_keeps_the_rate_below_its_ceiling(
    shape: SharedPrefix, block_tokens: int, ranks: int
) -> None:
    prediction = predict_unbroken(shape, block_tokens, ranks)
    rate = prediction.tally.hit_rate
    assert rate is not None
    lost = prediction.cold_start_points + prediction.granularity_points + prediction.last_token_points
    assert 100 * shape.prefix_tokens / shape.prompt_tokens == pytest.approx(100 * rate + lost)


@given(SHAPES, BLOCKS, st.integers(1, 4))
def test_cold_and_warm_phases_add_up_to_the_whole_workload(shape: SharedPrefix, block_tokens: int, ranks: int) -> None:
    phases = plan(Experiment(shape, "none"), 1).phases
    assert total(phase_tally(phase, shape, block_tokens, ranks) for phase in phases) == (
        predict_unbroken(shape, block_tokens, ranks).tally
    )


def test_each_data_parallel_rank_has_its_own_cold_request() -> None:
    assert predict_unbroken(WORKED, block_tokens=16, ranks=2).tally == Tally(76_800, 62 * 992)


def test_every_group_has_a_cold_request_on_every_rank() -> None:
    shape = SharedPrefix(requests=640, prefix_tokens=1000, suffix_tokens=200, groups=10)
    assert predict_unbroken(shape, block_tokens=16, ranks=2).tally.hit_tokens == 620 * 992


def test_more_cold_requests_than_requests_is_no_hits_not_fewer() -> None:
    assert predict_unbroken(SharedPrefix(3, 1000, 200, groups=10), block_tokens=16).tally.hit_tokens == 0


@pytest.mark.parametrize(
    ("length", "block_tokens", "hit"),
    [(96, 16, 80), (97, 16, 96), (16, 16, 0), (17, 16, 16), (1, 16, 0), (100, 1, 99), (1, 1, 0)],
)
def test_last_token_of_a_repeated_prompt_is_never_a_hit(length: int, block_tokens: int, hit: int) -> None:
    assert matchable_tokens(length, length, block_tokens) == hit


def test_prefix_shorter_than_a_block_is_named_so() -> None:
    short = predict_unbroken(SharedPrefix(requests=10, prefix_tokens=240, suffix_tokens=60), block_tokens=784)
    assert (short.tally.hit_tokens, short.below_one_block) == (0, True)


@pytest.mark.parametrize(
    ("mode", "options", "expected"),
    [
        ("token", BreakOptions(at=3), {"break": 0, "repeat": 0}),
        ("token", BreakOptions(at=400), {"break": 25_200, "repeat": 25_600}),
        ("token", BreakOptions(at=3, fixed=True), {"break": 62_496, "repeat": 63_488}),
        ("salt", BreakOptions(), {"break": 0, "repeat": 0}),
        ("salt", BreakOptions(fixed=True), {"break": 62_496, "repeat": 63_488}),
        ("capacity", BreakOptions(), {"evicted": 0, "recovery": 62_496}),
    ],
)
def test_break_phases_score_what_real_vllm_scored(mode: str, options: BreakOptions, expected: dict[str, int]) -> None:
    phases = plan(Experiment(WORKED, mode, options), 1).phases
    hits = {phase.name: phase_tally(phase, WORKED, block_tokens=16).hit_tokens for phase in phases}
    assert hits == {"cold": 0, "warm": 62_496, **expected}


def test_hit_rate_of_nothing_is_unknown_not_zero() -> None:
    assert Tally(0, 0).hit_rate is None


def test_every_number_of_the_lab_page_agrees() -> None:
    values = list(page_values())
    assert len(values) > 30
    assert [value.what for value in values if not value.agrees] == []


@pytest.mark.parametrize(
    ("shape", "block_tokens", "ranks", "option"),
    [
        (SharedPrefix(0, 1000, 200), 16, 1, "`requests`"),
        (SharedPrefix(64, -1, 200), 16, 1, "`prefix_tokens`"),
        (SharedPrefix(64, 1000, -1), 16, 1, "`suffix_tokens`"),
        (SharedPrefix(64, 1000, 200, groups=0), 16, 1, "`groups`"),
        (SharedPrefix(64, 1000, 200), 0, 1, "`block_tokens`"),
        (SharedPrefix(64, 1000, 200), 16, 0, "`ranks`"),
    ],
)
def test_impossible_shape_is_refused_by_the_name_of_its_field(
    shape: SharedPrefix, block_tokens: int, ranks: int, option: str
) -> None:
    with pytest.raises(UsageError, match=option):
        predict_unbroken(shape, block_tokens, ranks)


def test_prompt_of_no_tokens_is_refused() -> None:
    with pytest.raises(UsageError, match="no tokens"):
        predict_unbroken(SharedPrefix(64, 0, 0), block_tokens=16)


@pytest.mark.parametrize("index", [-1, 1000])
def test_break_outside_the_prefix_is_refused(index: int) -> None:
    with pytest.raises(UsageError, match="outside the prefix"):
        plan(Experiment(WORKED, "token", BreakOptions(at=index)), 1)


def test_a_phase_of_fewer_requests_than_are_cold_hits_nothing() -> None:
    shape = SharedPrefix(2, 1000, 200, groups=8)
    assert phase_tally(Phase("warm", Role.UNBROKEN, 1, 1000, ColdRequests.REST), shape, 16).hit_tokens == 0
