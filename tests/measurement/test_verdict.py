"""From measured phases to a verdict: what each pattern of hits is called."""

import pytest

from hitlab.experiment.shape import SharedPrefix
from hitlab.measurement.verdict import alike_block_sizes, judge
from hitlab.results.run_result import Check, PhaseResult

SHAPE = SharedPrefix(64, 1000, 200)
VALID = [Check(name="queries add up", ok=True, detail="")]


def phase(name: str, requests: int, hit_tokens: int, predicted: int | None = None) -> PhaseResult:
    predicted = hit_tokens if predicted is None else predicted
    return PhaseResult(
        name=name,
        requests=requests,
        prompt_tokens=requests * 1200,
        queried_tokens=requests * 1200,
        hit_tokens=hit_tokens,
        hit_rate=hit_tokens / (requests * 1200),
        closed_form_hit_tokens=predicted,
        model_hit_tokens=predicted,
        error_tokens=hit_tokens - predicted,
        error_points=0.0,
        agrees=hit_tokens == predicted,
        computed_tokens=requests * 1200 - hit_tokens,
        median_latency_s=0.01,
        reported_cached_tokens=None,
        external_hit_tokens=0,
        overall_hit_rate=None,
        evicted_tokens=None,
        counters="",
        prompts_sha256="",
    )


WARM = [phase("cold", 1, 0), phase("warm", 63, 62_496)]


@pytest.mark.parametrize(
    ("after", "word"),
    [
        ([], "healthy"),
        ([phase("break", 64, 0), phase("repeat", 64, 0)], "key broken"),
        ([phase("break", 64, 25_200), phase("repeat", 64, 25_600)], "key broken"),
        ([phase("break", 64, 62_496), phase("repeat", 64, 63_488)], "healthy"),
        ([phase("evicted", 1, 0), phase("recovery", 63, 62_496)], "evicted"),
        ([phase("evicted", 1, 176), phase("recovery", 63, 62_496)], "evicted"),
        ([phase("evicted", 1, 992), phase("recovery", 63, 62_496)], "healthy"),
        ([phase("evicted", 1, 0), phase("recovery", 63, 0, predicted=62_496)], "cannot tell"),
    ],
)
def test_pattern_of_hits_has_its_name(after: list[PhaseResult], word: str) -> None:
    assert judge(SHAPE, 16, True, WARM + after, VALID).word == word


def test_probe_of_several_requests_is_compared_with_as_many_prefixes() -> None:
    after = [phase("evicted", 2, 992), phase("recovery", 62, 61_504)]
    assert "2 requests hit 992 tokens instead of 1,984" in judge(SHAPE, 16, True, WARM + after, VALID).sentence


def test_prefix_below_one_block_is_not_called_broken() -> None:
    short = SharedPrefix(10, 240, 60)
    assert judge(short, 784, True, [phase("cold", 1, 0), phase("warm", 9, 0)], VALID).word == "below one block"


def test_prefix_that_hits_though_a_block_is_said_to_be_longer_is_no_below_one_block() -> None:
    verdict = judge(SHAPE, 2048, True, [phase("cold", 1, 0), phase("warm", 7, 6_944, predicted=0)], VALID)
    assert verdict.word == "cannot tell"
    assert "6,944 tokens more than predicted" in verdict.sentence


def test_whole_prompt_of_one_block_can_never_hit_and_is_not_called_healthy() -> None:
    verdict = judge(SharedPrefix(8, 16, 0), 16, True, [phase("cold", 1, 0), phase("warm", 7, 0)], VALID)
    assert verdict.word == "below one block"
    assert "last token is always computed" in verdict.sentence


def test_flood_without_a_request_after_it_to_recover_says_to_send_more() -> None:
    for after in ([phase("evicted", 1, 0)], [phase("evicted", 1, 0), phase("recovery", 1, 0)]):
        assert "send more" in judge(SHAPE, 16, True, [*WARM, *after], VALID).sentence


def test_caching_off_comes_before_everything_else() -> None:
    failed = [Check(name="queries add up", ok=False, detail="76,800 tokens unaccounted")]
    assert judge(SHAPE, 16, False, [], failed).word == "caching off"


def test_run_that_can_not_be_trusted_gets_no_verdict_and_says_why() -> None:
    failed = [*VALID, Check(name="no preemption", ok=False, detail="2 preemptions")]
    verdict = judge(SHAPE, 16, True, WARM, failed)
    assert verdict.word == "cannot tell"
    assert "no preemption: 2 preemptions" in verdict.sentence


def test_wrong_block_size_is_named_by_the_one_that_fits() -> None:
    verdict = judge(SHAPE, 128, True, [phase("cold", 1, 0), phase("warm", 63, 60_480, predicted=56_448)], VALID)
    assert verdict.word == "cannot tell"
    assert "what a block size of 64 gives, not 128" in verdict.sentence


@pytest.mark.parametrize(("block_tokens", "held", "full"), [(16, 976, 992), (1, 999, 1000)])
def test_one_block_or_token_less_a_request_is_what_a_drafter_holds_back(
    block_tokens: int, held: int, full: int
) -> None:
    warm = phase("warm", 63, 63 * held, predicted=63 * full)
    verdict = judge(SHAPE, block_tokens, True, [phase("cold", 1, 0), warm], VALID)
    assert "speculative decoding" in verdict.sentence


def test_difference_in_a_break_keeps_its_name_and_is_said() -> None:
    after = [phase("evicted", 1, 0), phase("recovery", 63, 62_480, predicted=62_496)]
    verdict = judge(SHAPE, 16, True, WARM + after, VALID)
    assert verdict.word == "evicted"
    assert "16 tokens fewer than predicted" in verdict.sentence


def test_block_sizes_that_match_as_many_tokens_can_not_be_told_apart() -> None:
    assert alike_block_sizes(SHAPE, 16) == [32]
    assert alike_block_sizes(SharedPrefix(64, 1016, 200), 16) == []
