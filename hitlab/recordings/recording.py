"""Recordings of what a real engine answered, and comparing a cache model with them request for request.

A recording is JSON, plain or gzipped. Its sequences each start with an empty cache and their requests were
sent strictly one after the other; token counts are what the engine reported.
"""

import gzip
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

from hitlab.cache.model import CacheModel, PoolFullError, serve
from hitlab.client.dialect import EngineApi, ServerFacts
from hitlab.errors import InputError
from hitlab.files import ArchiveError, pieces_of, unpacked
from hitlab.tokens import Prompt

Size = Annotated[int, msgspec.Meta(ge=1)]


class RecordedRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """One request and its answer; `cached` are its hit tokens, `salt` its cache salt."""

    prompt: tuple[int, ...]
    cached: int
    salt: str | None = None
    max_tokens: int = 1
    output: tuple[int, ...] = ()
    #: "stop" when a stop token ended the request, which is then the last of `output`.
    finish: str = "length"
    #: Evicted tokens since the start of the sequence, where the engine counts them.
    evicted_total: int = 0


class RecordedSequence(msgspec.Struct, frozen=True, omit_defaults=True):
    """Requests from an empty cache on, and what the engine's own counters grew by over all of them."""

    requests: tuple[RecordedRequest, ...]
    queries_delta: int | None = None
    hits_delta: int | None = None
    #: None where the engine does not count evictions; then `evicted_total` says nothing either.
    evicted_delta: int | None = None


class Recording(msgspec.Struct, frozen=True, omit_defaults=True):
    """Sequences recorded from one engine, and the sizes of its cache, under the names that the engine gives them."""

    engine: str
    version: str
    sequences: tuple[RecordedSequence, ...]
    block_size: Size | None = None
    page_size: Size | None = None
    #: With the null block.
    num_gpu_blocks: Size | None = None
    capacity_tokens: Size | None = None
    #: None or not positive: prefills are not chunked.
    chunked_prefill_size: int | None = None
    overlap_schedule: bool = True
    #: "emulated" when a model of the engine answered.
    source: str = "real"

    @property
    def sizes(self) -> Mapping[str, Any]:
        """The sizes that are known, by the engine's own names."""
        names = ("block_size", "page_size", "num_gpu_blocks", "capacity_tokens", "chunked_prefill_size")
        said = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return {**said, "overlap_schedule": self.overlap_schedule}


def read_recording(data: bytes) -> Recording:
    """A recording from a file's bytes. Raises InputError when they are not one.

    >>> read_recording(b'{"engine": "vllm", "version": "0.32.0", "sequences": []}').version
    '0.32.0'
    """
    try:
        return msgspec.json.decode(b"".join(unpacked([data])), type=Recording)
    except ArchiveError as error:
        raise InputError(f"a damaged {error.kind} file ({error.detail})", todo="copy it again") from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise InputError(f"not a recording: {error}", todo="make one with `record`") from error


def recording_bytes(recording: Recording, gzipped: bool) -> bytes:
    """A recording as a file holds it.

    >>> tape = Recording(engine="vllm", version="0.32.0", sequences=())
    >>> read_recording(recording_bytes(tape, gzipped=True)) == tape
    True
    """
    text = msgspec.json.encode(recording) + b"\n"
    return gzip.compress(text, mtime=0) if gzipped else text


def wrote(path: Path) -> bool:
    """Whether this file is a recording as `recording_bytes` makes one. Raises OSError, ArchiveError, InputError."""
    with path.open("rb") as file:
        begun = next(unpacked(pieces_of(file)), b"")
    # Only then is it read whole: another file may be large.
    return begun.startswith(b'{"engine":"') and bool(read_recording(path.read_bytes()).version)


@dataclass(frozen=True, slots=True)
class Difference:
    """A request that the model and the engine answer differently; indices count from 0.

    `expected` is the engine's, `got` the model's. Evicted tokens are totals from the start of the sequence;
    None is an engine that does not count them.
    """

    sequence: int
    request: int
    prompt_tokens: int
    expected_hit_tokens: int
    got_hit_tokens: int
    expected_evicted_tokens: int | None
    got_evicted_tokens: int


@dataclass(frozen=True, slots=True)
class RecordingResult:
    """How a cache model compares with a recording: requests in all, and those it answers differently.

    `counters_differ` counts sequences and is no fault of the model's: the engine's counters grew by something
    else than its answers add up to, so other requests reached it while it was recorded.
    """

    requests: int
    hits_differ: int
    evicted_differ: int
    counters_differ: int
    first_difference: Difference | None

    @property
    def agrees(self) -> bool:
        """Whether the model answers every request as the engine did."""
        return not (self.hits_differ or self.evicted_differ)


def recorded_facts(recording: Recording, engine: EngineApi) -> ServerFacts:
    """What the recording says of the server it was made on. Raises InputError when it lacks a size."""
    try:
        return engine.recorded_facts(recording.sizes)
    except KeyError as missing:
        name = missing.args[0]
        raise InputError(f"this {recording.engine} recording has no {name}", todo="record it again") from None


def compare(recording: Recording, build: Callable[[], CacheModel]) -> RecordingResult:
    """Run every sequence through a new, empty model from `build`, and count where it answers differently.

    Raises InputError for a request that does not fit the model's pool.
    """
    requests = hits_differ = evicted_differ = 0
    first: Difference | None = None
    for sequence_index, sequence in enumerate(recording.sequences):
        model = build()
        for index, request in enumerate(sequence.requests):
            hit_tokens = _replay(model, request, f"sequence {sequence_index}, request {index}")
            expected_evicted = None if sequence.evicted_delta is None else request.evicted_total
            hits_wrong = hit_tokens != request.cached
            evicted_wrong = expected_evicted not in (None, model.evicted_tokens)
            requests += 1
            hits_differ += hits_wrong
            evicted_differ += evicted_wrong
            if first is None and (hits_wrong or evicted_wrong):
                first = Difference(
                    sequence_index,
                    index,
                    len(request.prompt),
                    request.cached,
                    hit_tokens,
                    expected_evicted,
                    model.evicted_tokens,
                )
    counters_differ = sum(not _adds_up(sequence) for sequence in recording.sequences)
    return RecordingResult(requests, hits_differ, evicted_differ, counters_differ, first)


def _replay(model: CacheModel, request: RecordedRequest, where: str) -> int:
    prompt = Prompt(request.prompt, request.salt)
    try:
        served = serve(model, prompt, request.output, request.max_tokens, request.finish == "stop")
    except PoolFullError as error:
        todo = "the engine served it, so its pool is larger than the recording says"
        raise InputError(error.what, where=where, todo=todo) from error
    return served.hit_tokens


def _adds_up(sequence: RecordedSequence) -> bool:
    """Whether the engine's counters grew by what its answers add up to."""
    requests = sequence.requests
    sums = (
        (sequence.queries_delta, sum(len(request.prompt) for request in requests)),
        (sequence.hits_delta, sum(request.cached for request in requests)),
        (sequence.evicted_delta, requests[-1].evicted_total if requests else 0),
    )
    return all(delta in (None, answers) for delta, answers in sums)
