"""The cache models against what real engines answered, request for request, and recordings as files."""

import gzip
from collections.abc import Callable
from typing import Any

import pytest
from recordings.tapes import tape_of

from hitlab.cache.model import CacheModel, serve
from hitlab.cache.radix import RadixCache
from hitlab.client.dialect import load_engine
from hitlab.errors import InputError
from hitlab.recordings.recording import Difference, RecordedRequest, Recording, compare, read_recording, recorded_facts
from hitlab.tokens import Prompt

NAMES = ("sglang_p1", "sglang_p16_small", "sglang_p1_chunk128", "sglang_p1_stop", "vllm_b32_small", "vllm_b64")


def builder(tape: Recording) -> Callable[[], CacheModel]:
    """Makes models of the cache that a recording was made with, as its engine's file makes them."""
    engine = load_engine(tape.engine)
    facts = recorded_facts(tape, engine)
    return lambda: engine.cache_model(facts)


# --- Equal to the engines --------------------------------------------------------------------------


def test_every_recorded_request_comes_out_equal(recordings: dict[str, Recording]) -> None:
    assert set(NAMES) <= set(recordings)
    results = {name: compare(tape, builder(tape)) for name, tape in recordings.items()}
    differing = {name: result for name, result in results.items() if not result.agrees or result.counters_differ}
    assert not differing
    assert sum(results[name].requests for name in NAMES) == 4400


def test_the_counters_of_every_sequence_come_out_equal(recordings: dict[str, Recording]) -> None:
    for tape in recordings.values():
        for sequence in tape.sequences:
            model = builder(tape)()
            queried = hits = 0
            for request in sequence.requests:
                queried += len(request.prompt)
                hits += answer(model, request)
            assert (queried, hits) == (sequence.queries_delta, sequence.hits_delta)
            assert sequence.evicted_delta in (None, model.evicted_tokens)


def test_sizes_of_a_recording_are_those_of_the_server_it_was_made_on(recordings: dict[str, Recording]) -> None:
    for tape in recordings.values():
        engine = load_engine(tape.engine)
        sizes = engine.recording_sizes(recorded_facts(tape, engine))
        assert sizes == {name: getattr(tape, name) for name in sizes}


def test_a_recorded_vllm_pool_holds_its_blocks_without_the_null_block() -> None:
    facts = recorded_facts(read_recording(tape_of()), load_engine("vllm"))
    assert (facts.block_tokens, facts.capacity_blocks, facts.capacity_tokens) == (4, 9, 32)


def answer(model: CacheModel, request: RecordedRequest) -> int:
    prompt = Prompt(request.prompt, request.salt)
    return serve(model, prompt, request.output, request.max_tokens, request.finish == "stop").hit_tokens


# --- Reading and comparing -------------------------------------------------------------------------


def test_plain_and_gzipped_recordings_read_alike() -> None:
    assert read_recording(tape_of()) == read_recording(gzip.compress(tape_of()))


def test_the_first_difference_is_named() -> None:
    tape = read_recording(tape_of(cached=0))
    result = compare(tape, builder(tape))
    assert (result.requests, result.hits_differ, result.evicted_differ) == (2, 1, 0)
    assert result.first_difference == Difference(
        sequence=0,
        request=1,
        prompt_tokens=5,
        expected_hit_tokens=0,
        got_hit_tokens=4,
        expected_evicted_tokens=None,
        got_evicted_tokens=0,
    )
    assert not result.agrees


def test_an_evicted_total_alone_can_differ(recordings: dict[str, Recording]) -> None:
    tape = recordings["sglang_p16_small"]
    result = compare(tape, lambda: RadixCache(tape.sizes["capacity_tokens"] + 16, tape.sizes["page_size"]))
    assert result.first_difference is not None
    first = result.first_difference
    assert first.expected_hit_tokens == first.got_hit_tokens
    assert first.expected_evicted_tokens != first.got_evicted_tokens
    assert result.evicted_differ > result.hits_differ


def test_counters_that_do_not_add_up_are_counted_apart() -> None:
    tape = read_recording(tape_of().replace(b'"queries_delta": 10', b'"queries_delta": 17'))
    result = compare(tape, builder(tape))
    assert result.agrees
    assert result.counters_differ == 1


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "not a recording"),
        (b"[1, 2]", "not a recording"),
        (b'{"engine": "vllm"}', "missing required field"),
        (tape_of().replace(b'"block_size": 4', b'"block_size": 0'), r">= 1 - at `\$.block_size`"),
        (tape_of(cached="many"), r"\$.sequences\[0\].requests\[1\].cached"),
        (gzip.compress(tape_of())[:-9], "damaged gzip"),
        (b"\x1f\x8bnothing", "damaged gzip"),
    ],
)
def test_what_is_not_a_recording_is_said_to_be_none(data: bytes, says: str) -> None:
    with pytest.raises(InputError, match=says):
        read_recording(data)


@pytest.mark.parametrize(
    ("engine", "sizes"),
    [("vllm", ("block_size", "num_gpu_blocks")), ("sglang", ("page_size", "capacity_tokens"))],
)
def test_a_size_that_is_missing_is_named(engine: str, sizes: tuple[str, ...]) -> None:
    for missing in sizes:
        said: dict[str, Any] = {name: 16 for name in sizes if name != missing}
        tape = Recording(engine=engine, version="1", sequences=(), **said)
        with pytest.raises(InputError) as raised:
            recorded_facts(tape, load_engine(engine))
        assert str(raised.value) == f"this {engine} recording has no {missing}; record it again"


def test_a_pool_too_small_for_what_was_served_is_an_error_that_names_the_request() -> None:
    tape = read_recording(tape_of().replace(b'"num_gpu_blocks": 9', b'"num_gpu_blocks": 2'))
    with pytest.raises(InputError, match="sequence 0, request 0"):
        compare(tape, builder(tape))
