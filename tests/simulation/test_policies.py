"""A contract every file of policies/ keeps, and what each kernel's own check can see."""

from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from simulation.reference_policies import REFERENCES, hit_tokens

from hitlab import families
from hitlab.errors import HitlabError, UsageError
from hitlab.simulation import replay
from hitlab.simulation.policy import MAX_CAPACITY_BLOCKS, Policy, check, load_policy, options_of
from hitlab.traces.trace import Trace

POLICIES = families.names("policies")
BLOCK_TOKENS = 4

Requests = list[tuple[int, list[int]]]


@st.composite
def requests(draw: st.DrawFn, most: int = 24) -> Requests:
    """Requests over few enough blocks to collide, a block more than once in some, often with a prefix again."""
    blocks = st.integers(0, draw(st.integers(1, 15)))
    made: Requests = []
    for _ in range(draw(st.integers(0, most))):
        ids = draw(st.lists(blocks, max_size=6))
        repeat = draw(st.booleans())
        if made and repeat:
            _, again = draw(st.sampled_from(made))
            ids = again[: draw(st.integers(0, 5))] + ids
        partial = draw(st.integers(0, BLOCK_TOKENS - 1))
        made.append((max(0, len(ids) * BLOCK_TOKENS - partial), ids))
    return made


OPTIONS: dict[str, st.SearchStrategy[Any]] = {
    "small_ratio": st.one_of(
        st.sampled_from([0.1, 0.25, 0.5, 0.9]), st.floats(0, 1, exclude_min=True, exclude_max=True)
    ),
    "max_freq": st.integers(0, 6),
    "in_ratio": st.floats(0, 1),
    "out_ratio": st.floats(0, 2),
    "hir_ratio": st.floats(0, 0.99),
}


@st.composite
def caches(draw: st.DrawFn, policy: Policy) -> tuple[int, dict[str, Any]]:
    """A capacity and options that the policy can work with, the smallest that work among them."""
    options = {name: draw(OPTIONS[name]) for name in options_of(policy)}
    capacity = draw(st.integers(1, 30))
    try:
        check(policy, capacity, options)
    except UsageError as error:
        capacity = int(error.todo.split()[-1])
        assume(capacity < 2**20)
    return capacity, options


def room(policy: Policy, capacity: int) -> int:
    """Blocks that may be resident."""
    return capacity if policy.BOUNDED else MAX_CAPACITY_BLOCKS


def run(policy: Policy, trace: Trace, capacity: int, **options: Any) -> replay.Replay:
    return replay.replay(trace, policy, capacity, options, check_invariants=True)


@pytest.fixture(scope="module", params=POLICIES)
def policy(request: pytest.FixtureRequest) -> Policy:
    return load_policy(request.param)


@pytest.fixture(scope="module")
def reference(policy: Policy) -> Any:
    name = Path(policy.__file__ or "").stem.lstrip("_")
    return REFERENCES.get(name) or pytest.skip(f"{name} has no transcription in reference_policies.py yet")


def test_each_policy_says_what_it_is(policy: Policy) -> None:
    assert policy.__doc__ and policy.VARIANT
    assert policy.NAME.lower() == Path(policy.__file__ or "").stem.lstrip("_")
    assert all(default is not None for default in options_of(policy).values())


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_kernel_and_transcription_agree_on_every_request(policy: Policy, reference: Any, data: st.DataObject) -> None:
    made = data.draw(requests())
    capacity, options = data.draw(caches(policy))
    cache = reference(capacity, **options)
    expected = hit_tokens(made, BLOCK_TOKENS, cache)
    result = run(policy, Trace.of(made, BLOCK_TOKENS), capacity, **options)
    assert result.hit_tokens.tolist() == expected
    assert result.final_blocks == len(cache) <= room(policy, capacity)


@pytest.mark.parametrize("capacity", [20, 60, 200])
def test_kernel_and_transcription_agree_on_a_long_trace(policy: Policy, reference: Any, capacity: int) -> None:
    random = Random(capacity)
    made: Requests = []
    for _ in range(600):
        first = int(300 * random.random() ** 3)
        blocks = [first, *range(first * 5, first * 5 + random.randrange(12))]
        made.append((len(blocks) * BLOCK_TOKENS - random.randrange(BLOCK_TOKENS), blocks))
    cache = reference(capacity)
    expected = hit_tokens(made, BLOCK_TOKENS, cache)
    result = run(policy, Trace.of(made, BLOCK_TOKENS), capacity)
    assert result.hit_tokens.tolist() == expected
    assert sum(expected) > 0
    assert result.final_blocks == len(cache)


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_compiled_rules_do_what_they_say_as_python(policy: Policy, data: st.DataObject) -> None:
    made = data.draw(requests(most=8))
    capacity, options = data.draw(caches(policy))
    trace = Trace.of(made, BLOCK_TOKENS)
    plain: Any = replay.compiled(policy)
    interpreted = replay.replay(trace, policy, capacity, options, kernel=plain.py_func, check_invariants=True)
    assert interpreted.hit_tokens.tolist() == run(policy, trace, capacity, **options).hit_tokens.tolist()


def test_each_policy_has_a_transcription_and_arrays_that_are_broken_on_purpose() -> None:
    assert sorted(REFERENCES) == POLICIES, "write the policy in plain Python in reference_policies.py"
    assert sorted(CORRUPTIONS) == POLICIES, "break its arrays in CORRUPTIONS, to see that it notices"


def test_a_cache_of_any_size_starts_empty_and_is_never_filled_beyond_its_capacity(policy: Policy) -> None:
    once = Trace.of([(4, [block]) for block in range(50)], BLOCK_TOKENS)
    for capacity in (*range(6, 60), 10**6, MAX_CAPACITY_BLOCKS):
        result = run(policy, once, capacity)
        assert result.tally.hit_tokens == 0
        assert 0 < result.final_blocks <= min(room(policy, capacity), 50)


def test_what_always_fits_is_always_hit_again(policy: Policy) -> None:
    twice = Trace.of([(39, list(range(10)))] * 2, BLOCK_TOKENS)
    whole = 36 if policy.UNIT == "request" else 39  # engines match whole blocks only
    assert run(policy, twice, 1000).hit_tokens.tolist() == [0, whole]
    capped = replay.replay(twice, policy, 1000, engine_cap=True)
    assert capped.hit_tokens.tolist() == [0, 36]


def test_a_hit_needs_every_block_before_it(policy: Policy) -> None:
    result = run(policy, Trace.of([(8, [2, 3]), (12, [1, 2, 3])], BLOCK_TOKENS), 1000)
    assert result.hit_tokens.tolist() == [0, 0]


def test_a_request_does_not_hit_its_own_blocks(policy: Policy) -> None:
    assert run(policy, Trace.of([(12, [1, 1, 1])], BLOCK_TOKENS), 1000).tally.hit_tokens == 0


def test_a_trace_of_nothing_has_no_rate(policy: Policy) -> None:
    traces: list[Requests] = [[], [(0, []), (0, [])]]
    for nothing in traces:
        result = run(policy, Trace.of(nothing, BLOCK_TOKENS), 1000)
        assert (result.tally.hit_rate, result.final_blocks, len(result.hit_tokens)) == (None, 0, len(nothing))


def test_capacities_out_of_range_are_usage_errors(policy: Policy) -> None:
    for capacity in (-1, 0, MAX_CAPACITY_BLOCKS + 1, 10**400):
        with pytest.raises(UsageError, match="a capacity of"):
            check(policy, capacity)


def test_capacities_1_to_9_end_in_a_replay_or_in_the_smallest_that_works(policy: Policy) -> None:
    trace = Trace.of([(16, [block, block + 1, block, 7]) for block in range(30)], BLOCK_TOKENS)
    for capacity in range(1, 10):
        try:
            assert run(policy, trace, capacity).final_blocks <= room(policy, capacity)
        except UsageError as error:
            smallest = int(error.todo.split()[-1])
            assert smallest > capacity
            check(policy, smallest)
            with pytest.raises(UsageError):
                check(policy, smallest - 1)


def test_an_option_a_policy_does_not_take_is_a_usage_error(policy: Policy) -> None:
    with pytest.raises(UsageError, match=f"{policy.NAME} has no option depth"):
        check(policy, 1000, {"depth": 1})


def test_names_are_taken_in_any_case_and_unknown_ones_answered_with_the_known() -> None:
    assert load_policy("S3FIFO") is load_policy("s3fifo")
    with pytest.raises(UsageError, match="no policy named 'nobody'") as caught:
        load_policy("nobody")
    assert caught.value.todo == f"choose from {', '.join(POLICIES)}"


# S3-FIFO's own


@pytest.mark.parametrize(
    ("capacity", "small_ratio", "queue", "smallest"),
    [
        (1, 0.1, "small", 6),
        (5, 0.1, "small", 6),  # round(0.5) is 0
        (9, 0.05, "small", 11),  # round(10 x 0.05) is 0, too
        (1, 0.5, "small", 2),
        (1, 0.9, "main", 5),  # round(5 x 0.9) is round(4.5), which is 4
        (1, 0.999, "main", 501),
        (100, 1e-9, "small", 500_000_001),
    ],
)
def test_a_capacity_that_leaves_a_queue_empty_is_answered_with_the_smallest_that_does_not(
    capacity: int, small_ratio: float, queue: str, smallest: int
) -> None:
    s3fifo = load_policy("s3fifo")
    with pytest.raises(UsageError, match=f"{capacity} blocks leave the {queue} queue empty") as caught:
        check(s3fifo, capacity, {"small_ratio": small_ratio})
    assert caught.value.todo == f"the smallest capacity that works is {smallest}"
    check(s3fifo, smallest, {"small_ratio": small_ratio})


@pytest.mark.parametrize("small_ratio", [0, 1, -0.1, 1.5, float("nan"), float("inf")])
def test_a_small_ratio_out_of_range_is_a_usage_error(small_ratio: float) -> None:
    with pytest.raises(UsageError, match="small ratio"):
        check(load_policy("s3fifo"), 1000, {"small_ratio": small_ratio})


def test_a_max_freq_below_0_is_a_usage_error_and_a_huge_one_is_as_good_as_unbounded() -> None:
    s3fifo = load_policy("s3fifo")
    with pytest.raises(UsageError, match="max freq"):
        check(s3fifo, 1000, {"max_freq": -1})
    # Small holds 1 block, so 0 goes on to main with 256 uses; main's 5 places are then fought for by 6 blocks.
    blocks = [0] * 257 + [1, 2, 3, 4, 5, 6] * 10 + [0]
    trace = Trace.of([(4, [block]) for block in blocks], BLOCK_TOKENS)
    for max_freq, last in ((3, 0), (255, 4), (256, 4), (10**30, 4)):
        result = run(s3fifo, trace, 6, small_ratio=0.2, max_freq=max_freq)
        assert result.hit_tokens[256:258].tolist() == [4, 0]
        assert result.hit_tokens[-1] == last


# The debug switch: for each policy, ways to corrupt its arrays and what is then said

Corrupt = Callable[[Any], object]


def first_resident(cache: Any) -> int:
    return int(np.flatnonzero(cache.where >= 2)[0])


def absent(marks: Any) -> int:
    """The last block that is marked with 0."""
    return int(np.flatnonzero(marks == 0)[-1])


def bottom(states: Any) -> int:
    """The LIR block that came in first."""
    return int(np.flatnonzero(states == 2)[0])


CORRUPTIONS: dict[str, Sequence[tuple[str, Corrupt]]] = {
    "s3fifo": [
        ("small does not hold the blocks that are marked", lambda cache: cache.where.__setitem__(0, 2)),
        ("main holds a block twice", lambda cache: cache.main.slots.fill(cache.main.slots[0])),
        ("ghost does not hold the blocks", lambda cache: cache.where.__setitem__(first_resident(cache), 1)),
        ("small holds 5 blocks, its size is 2", lambda cache: cache.small.at.__setitem__(1, cache.small.at[0] + 5)),
        ("ghost holds 18 blocks, its size is 10", lambda cache: cache.ghost.at.__setitem__(0, 0)),
        ("a use count is above 3", lambda cache: cache.freq.__setitem__(3, 4)),
    ],
    "lru": [
        ("12 blocks are resident, 13 are counted", lambda cache: cache.at.__setitem__(2, 13)),
        ("30 blocks are resident, the capacity is 12", lambda cache: cache.last_use.fill(0)),
        ("a block's last use is another block's", lambda cache: cache.last_use.__setitem__(29, 1)),
        ("a resident block was passed over", lambda cache: cache.at.__setitem__(1, 60)),
    ],
    "fifo": [
        ("30 blocks are resident, the capacity is 12", lambda cache: cache.queue.at.__setitem__(0, 0)),
        ("does not hold each marked block once", lambda cache: cache.here.__setitem__(0, True)),
        ("does not hold each marked block once", lambda cache: cache.queue.slots.fill(29)),
    ],
    "lfu": [
        ("13 blocks are resident, 12 are counted", lambda cache: cache.uses.__setitem__(0, 1)),
        ("13 blocks are resident, the capacity is 12", lambda cache: cache.uses.__setitem__(0, 1)),
        ("list 2 does not hold the blocks used 2 times", lambda cache: cache.lists.after.fill(0)),
        ("the lowest count is 2, not 1", lambda cache: cache.at.__setitem__(1, 1)),
    ],
    "clock": [
        ("13 blocks are resident, the capacity is 12", lambda cache: cache.at.__setitem__(0, 13)),
        ("does not hold each resident block once", lambda cache: cache.state.__setitem__(0, 1)),
        ("does not hold each resident block once", lambda cache: cache.circle.fill(cache.circle[0])),
    ],
    "sieve": [
        ("12 blocks are resident, 11 are counted", lambda cache: cache.at.__setitem__(0, 11)),
        ("30 blocks are resident, the capacity is 12", lambda cache: cache.state.fill(1)),
        ("does not hold each resident block once", lambda cache: cache.queue.after.fill(0)),
        ("the hand is at a block that is not resident", lambda cache: cache.at.__setitem__(1, absent(cache.state))),
    ],
    "2q": [
        ("17 blocks are resident, the capacity is 12", lambda cache: cache.am_size.__setitem__(0, 5)),
        ("am holds 0 blocks, 5 are counted", lambda cache: cache.am_size.__setitem__(0, 5)),
        ("a1in does not hold the blocks", lambda cache: cache.where.__setitem__(0, 2)),
        ("a1out does not hold the blocks", lambda cache: cache.where.__setitem__(0, 1)),
        ("a1out holds 18 blocks, its size is 6", lambda cache: cache.a1out.at.fill(0) or cache.a1out.at.put(1, 18)),
    ],
    "arc": [
        ("22 blocks are resident, the capacity is 12", lambda cache: cache.sizes.__setitem__(3, 10)),
        ("T1 and B1 hold 13 blocks, more than 12", lambda cache: cache.sizes.__setitem__(1, 13)),
        ("32 blocks are remembered, more than 24", lambda cache: cache.sizes.__setitem__(2, 20)),
        ("T2 does not hold the blocks", lambda cache: cache.where.__setitem__(absent(cache.where), 4)),
        ("B2 holds 12 blocks, 20 are counted", lambda cache: cache.sizes.__setitem__(2, 20)),
        ("the target is 13", lambda cache: cache.target.__setitem__(0, 13)),
    ],
    "lirs": [
        ("13 blocks are resident, the capacity is 12", lambda cache: cache.at.__setitem__(1, 2)),
        ("11 LIR and 1 HIR blocks are resident, 12 and 0", lambda cache: cache.at.put([0, 1], [12, 0])),
        ("the stack does not hold the blocks", lambda cache: cache.state.__setitem__(absent(cache.state), 1)),
        ("the queue does not hold the blocks", lambda cache: cache.state.__setitem__(absent(cache.state), 4)),
        ("the bottom of the stack is not LIR", lambda cache: cache.state.__setitem__(bottom(cache.state), 3)),
    ],
    "belady": [
        ("12 blocks are resident, 11 are counted", lambda cache: cache.at.__setitem__(0, 11)),
        ("30 blocks are resident, the capacity is 12", lambda cache: cache.here.fill(True)),
        ("the bits are not the next uses", lambda cache: cache.due.fill(0)),
    ],
    "unbounded": [],
    "vllm": [
        ("12 places have a key, 11 are counted", lambda cache: cache.at.__setitem__(0, 11)),
        ("1 places are in use by nobody", lambda cache: cache.users.__setitem__(0, 1)),
        ("the free queue does not hold each place once", lambda cache: cache.free.after.fill(3)),
        ("a key does not lead to its oldest place", lambda cache: cache.oldest.fill(5)),
    ],
    "sglang": [
        ("10 blocks are in the tree, 9 are counted", lambda cache: cache.at.__setitem__(0, 9)),
        ("60 blocks are in the tree, the capacity is 12", lambda cache: cache.here.fill(True)),
        ("without the one before it", lambda cache: cache.parent.fill(absent(cache.here))),
        ("the nodes are not all of the tree", lambda cache: cache.bottom.fill(0)),
        ("another number of children than it counts", lambda cache: cache.children.fill(2)),
    ],
}


@pytest.mark.parametrize(
    ("name", "said", "corrupt"), [(name, *each) for name in POLICIES for each in CORRUPTIONS.get(name, ())]
)
def test_the_debug_switch_sees_broken_arrays(name: str, said: str, corrupt: Corrupt) -> None:
    policy = load_policy(name)
    trace = Trace.of([(8, [block, block]) for block in range(30)], BLOCK_TOKENS)
    kernel = replay.compiled(policy)

    def corrupting(state: Any, *columns: Any) -> None:
        kernel(state, *columns)
        corrupt(state)

    options = {"small_ratio": 0.2} if name == "s3fifo" else {}
    assert 0 < replay.replay(trace, policy, 12, options, check_invariants=True).final_blocks <= 12
    with pytest.raises(HitlabError, match=said):
        replay.replay(trace, policy, 12, options, kernel=corrupting, check_invariants=True)
    replay.replay(trace, policy, 12, options, kernel=corrupting)
