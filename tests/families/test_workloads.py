"""Every file of workloads/: its closed form against the cache models, its prompts, and `--workload` end to end."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from helpers import Hitlab
from hypothesis import given, settings
from hypothesis import strategies as st

from hitlab import families
from hitlab.cache.model import CacheModel, Ranks, serve
from hitlab.cache.paged import PagedCache
from hitlab.cache.radix import RadixCache
from hitlab.errors import ServerError, UsageError
from hitlab.experiment.closed_form import phase_tally, total
from hitlab.experiment.shape import SharedPrefix
from hitlab.experiment.steps import load_workload
from hitlab.tokens import Prompt, Tally

NAMES = families.names("workloads")
RANGE = (10, 9999)

CACHES: dict[str, Callable[[int], CacheModel]] = {
    "paged": lambda block_tokens: PagedCache(4000, block_tokens),
    "radix": lambda block_tokens: RadixCache(4000 * block_tokens, block_tokens),
}


def answer(prompt: Prompt, tokens: int) -> tuple[int, ...]:
    """Ids that depend on the prompt, as a greedy model's do."""
    return tuple((sum(prompt.tokens) + 7 * index) % 9000 + 10 for index in range(tokens))


def walked(name: str, shape: SharedPrefix, output_tokens: int, ranks: int, model: CacheModel) -> list[Tally]:
    """What a cache model says of each phase, prompt by prompt."""
    file = load_workload(name)
    workload = file.build(shape, 0, RANGE, output_tokens)
    tallies = []
    for phase in file.phases(shape, output_tokens, ranks):
        queried = hit = 0
        for prompt in workload.prompts(phase.requests):
            output = answer(prompt, output_tokens)
            hit += serve(model, prompt, output if output_tokens > 1 else ()).hit_tokens
            queried += len(prompt.tokens)
            workload.learn(prompt, output)
        tallies.append(Tally(queried, hit))
    return tallies


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=40, deadline=None)
@given(
    cache=st.sampled_from(sorted(CACHES)),
    block_tokens=st.sampled_from([1, 4, 16]),
    groups=st.integers(1, 4),
    each=st.integers(1, 5),
    prefix=st.integers(1, 70),
    suffix=st.integers(1, 20),
    output=st.integers(1, 9),
)
def test_closed_form_of_every_workload_is_what_cache_models_answer(
    name: str, cache: str, block_tokens: int, groups: int, each: int, prefix: int, suffix: int, output: int
) -> None:
    output += name == "multi-turn"  # which wants two tokens or more
    file = load_workload(name)
    shape = file.fit(SharedPrefix(groups * each, prefix, suffix, groups))
    predicted = [phase_tally(phase, shape, block_tokens) for phase in file.phases(shape, output, 1)]
    assert walked(name, shape, output, 1, CACHES[cache](block_tokens)) == predicted


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 5), st.integers(1, 6), st.integers(1, 4), st.integers(2, 9), st.sampled_from([1, 4]))
def test_conversation_finds_the_last_turn_that_was_on_its_rank(
    groups: int, turns: int, ranks: int, output: int, block_tokens: int
) -> None:
    shape = SharedPrefix(groups * turns, 11, 6, groups)
    file = load_workload("multi-turn")
    predicted = [phase_tally(phase, shape, block_tokens, ranks) for phase in file.phases(shape, output, ranks)]
    model = Ranks(PagedCache(4000, block_tokens) for _ in range(ranks))
    assert walked("multi-turn", shape, output, ranks, model) == predicted


def test_next_turn_hits_the_prompt_and_all_but_the_last_generated_token() -> None:
    shape = SharedPrefix(3, prefix_tokens=100, suffix_tokens=50)
    phases = load_workload("multi-turn").phases(shape, 30, 1)
    assert [phase.prompt_tokens for phase in phases] == [150, 230, 310]
    # B*floor((L + n - 1) / B): 179 and 259 tokens are stored
    assert [phase_tally(phase, shape, 16).hit_tokens for phase in phases] == [0, 176, 256]
    assert [phase_tally(phase, shape, 1).hit_tokens for phase in phases] == [0, 179, 259]


@pytest.mark.parametrize("name", ["prefix-repetition", "generated-shared-prefix"])
def test_every_group_gets_as_many_prompts_and_the_first_of_each_goes_first(name: str) -> None:
    shape = SharedPrefix(60, 20, 5, 10)
    prompts = list(load_workload(name).build(shape, 3, RANGE, 1).prompts(60))
    groups = [prompt.tokens[:20] for prompt in prompts]
    assert set(Counter(groups).values()) == {6}
    assert len(set(groups[:10])) == 10
    assert groups[10:] != [groups[10 + index % 10] for index in range(50)]  # shuffled
    assert len({prompt.tokens[20] for prompt in prompts}) == 60


def test_second_pass_is_shuffled_anew_over_the_same_prefixes() -> None:
    workload = load_workload("prefix-repetition").build(SharedPrefix(24, 9, 3, 4), 0, RANGE, 1)
    first, second = ([prompt.tokens[:9] for prompt in workload.prompts(24)] for _ in range(2))
    assert Counter(first) == Counter(second)
    assert first != second


def test_fixed_break_is_one_key_a_group_in_any_order() -> None:
    workload = load_workload("prefix-repetition").build(SharedPrefix(24, 9, 3, 4), 0, RANGE, 1)
    salts = set()
    for _ in range(2):
        prompts = workload.prompts(24)
        salts |= {(p.tokens[:9], draw.salt()) for p, draw in zip(prompts, workload.draws(24, True), strict=True)}
    assert len(salts) == 4


def test_prompts_left_over_from_whole_rounds_are_not_sent() -> None:
    fit = load_workload("prefix-repetition").fit
    assert fit(SharedPrefix(64, 9, 3, 10)).requests == 60  # 64 // 10 for each
    with pytest.raises(UsageError, match="fewer than 10 prefixes"):
        fit(SharedPrefix(9, 9, 3, 10))


@pytest.mark.parametrize("name", ["generated-shared-prefix", "multi-turn"])
def test_groups_that_can_not_be_alike_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="`requests_per_group`"):
        load_workload(name).fit(SharedPrefix(64, 9, 3, 10))


def test_conversation_can_not_go_on_without_token_ids() -> None:
    workload = load_workload("multi-turn").build(SharedPrefix(2, 9, 3), 0, RANGE, 4)
    (prompt,) = workload.prompts(1)
    with pytest.raises(ServerError, match="ids of the generated tokens"):
        workload.learn(prompt, None)


@pytest.mark.parametrize("name", NAMES)
def test_every_workload_offers_what_the_protocol_asks(name: str) -> None:
    from hitlab.experiment.steps import WorkloadFile

    file = load_workload(name)
    wanted = {*WorkloadFile.__annotations__, *(key for key in vars(WorkloadFile) if not key.startswith("_"))}
    assert {key for key in wanted if not hasattr(file, key)} == set()
    assert file.__doc__


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("more", [[], ["--output-len", 20], ["--dp", 2]])
def test_every_workload_is_measured_as_predicted(
    hitlab: Hitlab, tmp_path: Path, engine: str, name: str, more: Sequence[Any]
) -> None:
    shape = ("--workload", name, "--groups", 3, "--per-group", 4, "--prefix-len", 130, "--suffix-len", 40)
    more = [*more, "--output-len", 5] if name == "multi-turn" else more
    ran = hitlab("measure", "--engine", engine, "--emulate", "--out", tmp_path, "--json", *shape, *more)
    found = json.loads(ran.out)
    assert (ran.status, found["valid"], found["agrees"]) == (0, True, True)
    if "--dp" not in more or name == "multi-turn":
        predicted = json.loads(hitlab("predict", "--engine", engine, "--json", *shape, *more).out)
        assert [phase["hit_tokens"] for phase in predicted["phases"]] == [p["hit_tokens"] for p in found["phases"]]
        hits = total(Tally(p["queried_tokens"], p["hit_tokens"]) for p in found["phases"])
        assert (predicted["prompt_tokens"], predicted["hit_tokens"]) == (hits.queried_tokens, hits.hit_tokens)
    assert found["experiment"]["workload"] == name


def test_conversations_grow_on_both_engines(hitlab: Hitlab, tmp_path: Path) -> None:
    for engine, each in (("vllm", [0, 176, 256]), ("sglang", [0, 179, 259])):
        ran = hitlab(
            *("measure", "--engine", engine, "--emulate", "--out", tmp_path, "--json", "-w", "multi-turn"),
            *("--turns", 3, "--prefix-len", 100, "--suffix-len", 50, "--output-len", 30),
        )
        assert [phase["hit_tokens"] for phase in json.loads(ran.out)["phases"]] == each


def test_shuffled_workload_breaks_as_the_plain_one_does(hitlab: Hitlab, tmp_path: Path) -> None:
    arguments = ("--engine", "sglang", "--emulate", "--out", tmp_path, "--json", "--groups", 4, "--break-mode", "token")
    plain, shuffled = (
        json.loads(hitlab("measure", *arguments, "--break-at", 400, "--workload", name).out)
        for name in ("shared-prefix", "prefix-repetition")
    )
    hits = [{p["name"]: p["hit_tokens"] for p in found["phases"]} for found in (plain, shuffled)]
    assert hits[0] == hits[1] == {"cold": 0, "warm": 60_000, "break": 24_000, "repeat": 25_600}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["-w", "multi-turn", "--break-mode", "salt"], "no breaks"),
        (["-w", "multi-turn", "--output-len", 0], "--output-len"),
        (["-w", "multi-turn", "--suffix-len", 0], "without a message"),
        (["-w", "multi-turn"], "--output-len 2 or more"),
        (["-w", "chatter"], "no workload named 'chatter'"),
        (["-w", "prefix-repetition", "--groups", 100], "fewer than 100 prefixes"),
    ],
)
@pytest.mark.parametrize("command", [["predict"], ["measure", "--engine", "vllm", "--dry-run"]])
def test_workload_that_can_not_be_sent_is_one_line(
    hitlab: Hitlab, command: list[str], arguments: list[Any], says: str
) -> None:
    ran = hitlab(*command, *arguments)
    assert (ran.status, ran.err.count("\n")) == (2, 1)
    assert says in ran.err


def test_turns_that_hold_answers_do_not_overlap(hitlab: Hitlab) -> None:
    ran = hitlab("measure", "--engine", "vllm", "--dry-run", "-w", "multi-turn", "--concurrency", 2, "--output-len", 9)
    assert ran.status == 2
    assert "leave out --concurrency" in ran.err
