"""Prompts that differ where they must, by construction."""

from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hitlab import families
from hitlab.errors import UsageError
from hitlab.experiment.batches import Batch, batches
from hitlab.experiment.fit import require_fits, warnings, with_auto_flood
from hitlab.experiment.plan import Experiment, plan
from hitlab.experiment.shape import BreakOptions, SharedPrefix
from hitlab.experiment.steps import Act, load_workload
from hitlab.experiment.vocabulary import safe_range
from hitlab.tokens import Prompt

SHAPE = SharedPrefix(requests=64, prefix_tokens=1000, suffix_tokens=200)
RANGE = (1000, 31_999)
MODES = families.names("workloads.breaks")


def planned(experiment: Experiment, ranks: int = 1) -> dict[str, list[Prompt]]:
    """Every batch's prompts by name, as a run would send them."""
    workload = load_workload("shared-prefix").build(experiment.shape, experiment.seed, experiment.vocab_range, 1)
    return {
        step.phase.name if step.phase else "flood": list(step.prompts)
        for step in batches(plan(experiment, ranks), workload, ranks)
        if isinstance(step, Batch)
    }


def common(left: Prompt, right: Prompt) -> int:
    """Tokens the two prompts share from the start."""
    pairs = zip(left.tokens, right.tokens, strict=False)
    return next((index for index, (a, b) in enumerate(pairs) if a != b), min(len(left.tokens), len(right.tokens)))


EXPERIMENTS = st.builds(
    Experiment,
    shape=st.builds(
        SharedPrefix,
        requests=st.integers(1, 12),
        prefix_tokens=st.integers(1, 40),
        suffix_tokens=st.integers(1, 8),
        groups=st.integers(1, 3),
    ),
    break_mode=st.sampled_from(MODES),
    options=st.builds(BreakOptions, at=st.just(0), fixed=st.booleans()),
    seed=st.integers(0, 5),
    vocab_range=st.just((10, 210)),
    flood_requests=st.just(5),
    flood_tokens=st.integers(1, 9),
)


@settings(max_examples=60)
@given(EXPERIMENTS, st.integers(0, 39))
def test_no_two_prompts_share_more_than_they_are_meant_to(experiment: Experiment, at: int) -> None:
    at %= experiment.shape.prefix_tokens
    experiment = Experiment(
        experiment.shape, experiment.break_mode, BreakOptions(at, experiment.options.fixed), experiment.seed,
        experiment.vocab_range, flood_requests=5, flood_tokens=experiment.flood_tokens,
    )  # fmt: skip
    groups, prefix = experiment.shape.groups, experiment.shape.prefix_tokens
    sent = [
        (name, (index + (name in ("warm", "recovery"))) % groups, prompt)  # a pass goes on where its probe ended
        for name, prompts in planned(experiment).items()
        for index, prompt in enumerate(prompts)
    ]
    token_break = experiment.break_mode == "token"
    for position, (name, group, prompt) in enumerate(sent):
        for other_name, other_group, other in sent[:position]:
            if "flood" in (name, other_name) or group != other_group:
                limit = 0
            elif token_break and {name, other_name} & {"break", "repeat"}:
                broken_alike = experiment.options.fixed and {name, other_name} <= {"break", "repeat"}
                limit = prefix if broken_alike else at
            else:
                limit = prefix
            assert common(prompt, other) == limit, (name, other_name)


@given(st.sampled_from(MODES), st.integers(0, 3))
@settings(max_examples=20)
def test_same_seed_sends_the_same_prompts_and_another_does_not(mode: str, seed: int) -> None:
    shape = SharedPrefix(4, 30, 5)
    first, again, other = (
        planned(Experiment(shape, mode, seed=value, flood_requests=2, flood_tokens=5))
        for value in (seed, seed, seed + 1)
    )
    assert first == again
    assert first != other


def test_ids_stay_inside_the_vocabulary_range() -> None:
    prompts = planned(Experiment(SHAPE, "capacity", vocab_range=(5000, 9000), flood_requests=20))
    ids = {token for batch in prompts.values() for prompt in batch for token in prompt.tokens}
    assert min(ids) >= 5000
    assert max(ids) <= 9000


def test_fixed_break_is_one_key_in_both_passes_and_a_rotating_one_never_repeats() -> None:
    for fixed, keys in ((True, 1), (False, 128)):
        prompts = planned(Experiment(SHAPE, "salt", BreakOptions(fixed=fixed)))
        assert len({prompt.salt for name in ("break", "repeat") for prompt in prompts[name]}) == keys
        assert {prompt.salt for prompt in prompts["warm"]} == {None}


def test_broken_token_differs_from_the_original_at_that_index_only() -> None:
    prompts = planned(Experiment(SHAPE, "token", BreakOptions(at=400)))
    original = prompts["cold"][0].tokens[:1000]
    for prompt in prompts["break"]:
        assert [index for index in range(1000) if prompt.tokens[index] != original[index]] == [400]


def test_fresh_prefixes_replace_every_reset_but_the_first() -> None:
    prompts = planned(Experiment(SHAPE, "salt", cold_by="fresh-prefix"))
    assert common(prompts["cold"][0], prompts["warm"][0]) == 1000
    assert common(prompts["cold"][0], prompts["break"][0]) == 0


def test_vocabulary_too_small_for_the_run_is_said() -> None:
    with pytest.raises(UsageError, match="`vocab_range`"):
        planned(Experiment(SHAPE, "salt", vocab_range=(0, 100)))


def test_range_above_the_vocabulary_is_never_sent() -> None:
    with pytest.raises(UsageError, match="last id is 31,999"):
        safe_range((1000, 32_000), 32_000)
    with pytest.raises(UsageError, match="`vocab_tokens`"):
        safe_range((1000, 32_000), None)
    assert safe_range((1000, 32_000), 50_000) == (1000, 32_000)


@pytest.mark.parametrize(
    ("mode", "steps"),
    [
        ("none", ["reset", "cold", "warm"]),
        ("token", ["reset", "cold", "warm", "reset", "break", "repeat"]),
        ("salt", ["reset", "cold", "warm", "reset", "break", "repeat"]),
        ("capacity", ["reset", "cold", "warm", "flood", "evicted", "recovery"]),
    ],
)
def test_steps_of_each_break_mode_are_the_designs(mode: str, steps: list[str]) -> None:
    found = plan(Experiment(SHAPE, mode), 1).steps
    assert [step.value if isinstance(step, Act) else step.phase.name for step in found] == steps


def test_first_request_of_every_group_and_rank_goes_alone() -> None:
    shape = SharedPrefix(64, 100, 20, groups=3)
    experiment = Experiment(shape, concurrency=8)
    workload = load_workload("shared-prefix").build(shape, 0, RANGE, 1)
    warm = list(batches(plan(experiment, 2), workload, ranks=2))[-1]
    assert isinstance(warm, Batch)
    assert (warm.alone, warm.concurrency) == (6, 8)


def test_flood_is_built_one_prompt_at_a_time() -> None:
    workload = load_workload("shared-prefix").build(SHAPE, 0, RANGE, 1)
    assert len(list(islice(workload.unrelated(10**9, 4096), 3))) == 3


def test_auto_flood_fills_every_ranks_pool() -> None:
    for ranks in (1, 2):
        flooded = with_auto_flood(Experiment(SHAPE, "capacity"), 32_752, ranks)
        assert flooded.flood_requests * flooded.flood_tokens >= ranks * (32_752 + 1200)


def test_auto_flood_sends_no_prompt_that_the_server_would_refuse() -> None:
    assert with_auto_flood(Experiment(SHAPE, "capacity"), 3000, 1).flood_tokens == 2999
    assert with_auto_flood(Experiment(SHAPE, "capacity"), 32_752, 1, max_model_tokens=2048).flood_tokens == 2047


def test_flood_too_small_and_pass_too_large_for_the_pool_are_said_before_they_run() -> None:
    small_flood = plan(Experiment(SHAPE, "capacity", flood_requests=7), 1)
    assert "`flood_requests` 10 or auto" in warnings(small_flood, 32_752, 1)[0]
    assert warnings(plan(Experiment(SHAPE, "capacity"), 1), 32_752, 1) == []
    assert "evicts its own blocks" in warnings(plan(Experiment(SHAPE), 1), 8_000, 1)[0]
    assert warnings(small_flood, None, 1) == []


def test_prompt_longer_than_the_server_takes_is_refused_before_it_is_sent() -> None:
    flooded = plan(Experiment(SHAPE, "capacity"), 1)
    require_fits(flooded, 4097)
    with pytest.raises(UsageError, match="`flood_tokens`"):
        require_fits(flooded, 4096)
    with pytest.raises(UsageError, match="`prefix_tokens` plus `suffix_tokens`"):
        require_fits(flooded, 1200)
