"""`record` over real sockets, an emulated engine at the other end, and the sequences it sends."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import HANGS_S, Hitlab, Ran

from hitlab.cache.sizes import CacheSizes
from hitlab.client.counters import Counters, Part, wait_for_counters
from hitlab.errors import UsageError
from hitlab.recordings.recording import Recording, read_recording
from hitlab.recordings.sequences import RandomSequence, Shape
from hitlab.servers.emulated import server as emulate
from hitlab.servers.emulated.config import Faults
from hitlab.tokens import Tally

ENGINES = [
    ("vllm", 16, 64),
    ("vllm", 32, 48),
    ("sglang", 1, 1800),
    ("sglang", 16, 112),
]


@pytest.fixture
def record(hitlab: Hitlab, tmp_path: Path) -> Hitlab:
    """`hitlab record --emulate ARGUMENTS -o tape.json.gz`, short, in a folder of the test's own."""

    def run(engine: str, *arguments: object) -> Ran:
        short = () if "--sequences" in arguments else ("--sequences", 2)
        return hitlab(
            *("record", "--engine", engine, "--emulate", "--requests", 30, "-o", tmp_path / "tape.json.gz"),
            *(*short, *arguments),
        )

    return run


def tape(folder: Path, name: str = "tape.json.gz") -> Recording:
    return read_recording((folder / name).read_bytes())


# --- What is recorded ------------------------------------------------------------------------------


@pytest.mark.parametrize(("engine", "block", "blocks"), ENGINES)
def test_model_explains_every_recorded_request(
    record: Hitlab, hitlab: Hitlab, tmp_path: Path, engine: str, block: int, blocks: int
) -> None:
    ran = record(engine, "--block-size", block, "--capacity-blocks", blocks)
    assert (ran.status, "EMULATED" in ran.out, "EMULATED" in ran.err) == (0, True, True)
    explained = hitlab("model", tmp_path / "tape.json.gz", "--json")
    found = json.loads(explained.out)
    assert (explained.status, found["requests"], found["hits_differ"], found["counters_differ"]) == (0, 60, 0, 0)


@pytest.mark.parametrize(("engine", "block", "blocks"), ENGINES)
def test_recording_says_what_made_it_and_holds_all_that_matters(
    record: Hitlab, tmp_path: Path, engine: str, block: int, blocks: int
) -> None:
    record(engine, "--block-size", block, "--capacity-blocks", blocks)
    kept = tape(tmp_path)
    assert (kept.engine, kept.source, kept.version.endswith("+emulated")) == (engine, "emulated", True)
    assert (kept.block_size or kept.page_size, kept.num_gpu_blocks or kept.capacity_tokens) == (
        block,
        blocks if engine == "vllm" else blocks * block,
    )
    for sequence in kept.sequences:
        assert sequence.queries_delta == sum(len(request.prompt) for request in sequence.requests)
        assert sequence.hits_delta == sum(request.cached for request in sequence.requests)
        assert sequence.requests[0].cached == 0
    requests = [request for sequence in kept.sequences for request in sequence.requests]
    assert any(request.cached for request in requests)
    assert any(request.salt for request in requests)
    assert any(len(request.output) > 1 for request in requests)
    assert {len(request.output) for request in requests if request.max_tokens > 1} >= {2, 3}
    if engine == "sglang":
        assert all(sequence.evicted_delta for sequence in kept.sequences)


def test_same_seed_sends_the_same_and_another_seed_does_not(record: Hitlab, tmp_path: Path) -> None:
    kept = []
    for seed in (3, 3, 4):
        record("vllm", "--seed", seed)
        kept.append([request.prompt for request in tape(tmp_path).sequences[1].requests])
    assert kept[0] == kept[1] != kept[2]


def test_name_decides_whether_it_is_gzipped(record: Hitlab, hitlab: Hitlab, tmp_path: Path) -> None:
    plain = tmp_path / "plain.json"
    hitlab("record", "--engine", "vllm", "--emulate", "--sequences", 1, "--requests", 3, "-o", plain)
    assert json.loads(plain.read_bytes())["source"] == "emulated"
    record("vllm")
    assert (tmp_path / "tape.json.gz").read_bytes()[:2] == b"\x1f\x8b"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plain.json", "tape.json.gz"]


def test_one_json_document_on_stdout(record: Hitlab, tmp_path: Path) -> None:
    found = json.loads(record("sglang", "--json").out)
    assert (found["sequences"], found["requests"], found["source"], found["dropped"]) == (2, 60, "emulated", [])
    assert found["file"] == str(tmp_path / "tape.json.gz")


def test_responses_without_cached_tokens_are_read_from_the_counters(record: Hitlab, tmp_path: Path) -> None:
    assert record("vllm", "--fault", "cached-tokens=null").status == 0
    assert any(request.cached for request in tape(tmp_path).sequences[0].requests)


def test_vocabulary_range_holds_for_every_token_sent(record: Hitlab, tmp_path: Path) -> None:
    record("vllm", "--vocab-range", "2000:2003", "--max-output", 1)
    sent = {token for sequence in tape(tmp_path).sequences for each in sequence.requests for token in each.prompt}
    assert sent == {2000, 2001, 2002, 2003}


# --- What cannot be trusted ------------------------------------------------------------------------


def test_foreign_traffic_leaves_its_sequence_out(record: Hitlab, tmp_path: Path) -> None:
    """Another client's prompt after every 50th POST, in runs of 30."""
    ran = record("vllm", "--sequences", 4, "--fault", "foreign-every=50")
    assert ran.status == 4
    assert "another client is using the server" in ran.err
    kept = tape(tmp_path)
    assert 0 < len(kept.sequences) < 4
    assert all(len(sequence.requests) == 30 for sequence in kept.sequences)


def test_a_server_that_is_never_alone_is_given_up(record: Hitlab, tmp_path: Path) -> None:
    ran = record("vllm", "--sequences", 9, "--fault", "foreign-every=10")
    assert ran.status == 4
    assert ran.err.count("left out, sequence") == 3
    assert not (tmp_path / "tape.json.gz").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--fault", "reset=lies"], "after the reset"),
        (["--fault", "offload-tier"], "a tier behind the cache"),
        (["--fault", "extra-bos"], "the server changed a prompt"),
        (["--fault", "fail-post=1"], "got 500"),
        (["--dp", 2], "No such option"),
        (["--sequences", 0], "--sequences is 0"),
        (["--max-len", 100_000], "do not fit"),
        (["--capacity-blocks", 3], "do not fit"),
        (["--vocab-range", "31000:40000"], "does not say how large its vocabulary is"),
        (["--vocab-range", "9:3"], "is no range"),
        (["--max-len", 0], "--max-len is 0; give 2 or more"),
    ],
)
def test_what_cannot_be_recorded_is_said_in_one_line(
    record: Hitlab, tmp_path: Path, arguments: list[object], says: str
) -> None:
    ran = record("vllm", *arguments)
    assert ran.status in (1, 2)
    assert says in ran.err.splitlines()[-1]
    assert not (tmp_path / "tape.json.gz").exists()


@pytest.mark.parametrize(("name", "status", "says"), [("none/x.json", 1, "no such folder"), ("x.txt", 2, ".json.gz")])
def test_place_of_the_recording_is_refused_before_anything_is_sent(
    hitlab: Hitlab, tmp_path: Path, name: str, status: int, says: str
) -> None:
    with emulate.start("vllm") as server:
        ran = hitlab("record", "--engine", "vllm", "--base-url", server.base_url, "-o", tmp_path / name)
        posts = sum(count for (method, _, _), count in server.engine.sent.items() if method == "POST")
    assert (ran.status, ran.err.count("\n"), posts) == (status, 1, 0)
    assert says in ran.err
    assert list(tmp_path.iterdir()) == []


def test_a_failure_in_the_middle_keeps_the_finished_sequences(record: Hitlab, tmp_path: Path) -> None:
    """Two requests try the server out, so the 42nd POST is in the second sequence."""
    ran = record("vllm", "--fault", "fail-post=42")
    assert ran.status == 1
    assert "finished sequences: 1, in" in ran.err
    assert "500" in ran.err.splitlines()[-1]
    assert [len(sequence.requests) for sequence in tape(tmp_path).sequences] == [30]


def test_a_restart_in_the_middle_ends_the_recording(record: Hitlab, tmp_path: Path) -> None:
    ran = record("vllm", "--fault", "restart-after=42")
    assert ran.status == 1
    assert "the server restarted" in ran.err
    assert len(tape(tmp_path).sequences) == 1


def test_interrupted_recording_keeps_the_finished_sequences_and_says_so(root: Path, tmp_path: Path) -> None:
    file = tmp_path / "tape.json"
    with emulate.start("vllm", faults=Faults(hang_post=20)) as server:
        command = ["record", "--engine", "vllm", "--base-url", server.base_url, "--requests", "10", "-o", str(file)]
        process = subprocess.Popen([sys.executable, "run.py", *command], cwd=root, stderr=subprocess.PIPE, text=True)
        assert server.hanging.wait(HANGS_S)
        os.kill(process.pid, signal.SIGINT)
        _, error = process.communicate(timeout=HANGS_S)
        server.release()
    assert process.returncode == 130
    assert error.splitlines()[-1] == f"hitlab: interrupted; finished sequences: 1, in {file}"
    assert [len(sequence.requests) for sequence in tape(tmp_path, "tape.json").sequences] == [10]


def test_two_ranks_are_refused(hitlab: Hitlab, tmp_path: Path) -> None:
    with emulate.start("vllm", emulate.settings("vllm", CacheSizes(ranks=2))) as server:
        ran = hitlab("record", "--engine", "vllm", "--base-url", server.base_url, "-o", tmp_path / "tape.json")
    assert ran.status == 1
    assert "2 data-parallel ranks" in ran.err


def test_a_wrong_belief_is_said_before_anything_is_sent(hitlab: Hitlab, tmp_path: Path) -> None:
    with emulate.start("vllm") as server:
        address = ("--base-url", server.base_url, "--block-size", 32)
        ran = hitlab("record", "--engine", "vllm", *address, "-o", tmp_path / "tape.json")
    assert ran.status == 2
    assert "--block-size is 32 and the server says 16" in ran.err


# --- The sequences ---------------------------------------------------------------------------------

SHAPE = Shape(max_prompt_tokens=300, max_output_tokens=20, block_tokens=16, token_ids=(1000, 31_999))


def walk(shape: Shape, requests: int = 400) -> list[tuple[tuple[int, ...], str | None, int]]:
    source, sent = RandomSequence(shape, seed=1, index=0), []
    for _ in range(requests):
        planned = source.next()
        source.generated(planned, tuple(range(50, 50 + planned.max_tokens)))
        sent.append((planned.prompt.tokens, planned.prompt.salt, planned.max_tokens))
    return sent


@pytest.mark.parametrize("block", [1, 16, 128])
def test_prompts_and_outputs_keep_within_their_bounds(block: int) -> None:
    sent = walk(Shape(300, 20, block, (1000, 1010)))
    assert {len(tokens) for tokens, _, _ in sent} <= set(range(1, 301))
    assert {most for _, _, most in sent} <= set(range(1, 21))


def test_sequence_has_each_thing_that_a_cache_may_get_wrong() -> None:
    sent = walk(SHAPE)
    prompts = [tokens for tokens, _, _ in sent]
    lengths = {len(tokens) % 16 for tokens in prompts}
    assert {15, 0, 1} <= lengths  # at and around a block's border
    assert len({(tokens, salt) for tokens, salt, _ in sent}) < len(sent)  # repeats
    assert {salt for _, salt, _ in sent} == {None, "a", "b"}
    assert any(50 in tokens for tokens in prompts)  # follow-up turns
    assert len({(tokens, salt) for tokens, salt, _ in sent}) > len(set(prompts))  # the same under another salt
    assert sum(tokens[:20] == prompts[0][:20] for tokens in prompts) > 20  # branches of one base
    assert len({tokens[0] for tokens in prompts}) > 20  # and unrelated ones


def test_every_sequence_begins_with_the_same_tokens() -> None:
    """So that a reset that left them in the cache shows at the first request."""
    firsts = [RandomSequence(SHAPE, seed=1, index=index).next().prompt for index in range(5)]
    assert len({first.tokens[:299] for first in firsts}) == 1


def test_a_shape_without_room_is_refused() -> None:
    with pytest.raises(UsageError, match="at least 2"):
        Shape(1, 1, 16, (0, 9))


# --- Settling --------------------------------------------------------------------------------------


def pages(*queried: int) -> list[Counters]:
    return [Counters((Part({"c": Tally(tokens, 0)}),), raw={"c": tokens}) for tokens in queried]


@pytest.mark.parametrize(
    ("queried", "sent", "reads"),
    [
        ([110, 110], 10, 2),  # there at once, and again
        ([100, 100, 110, 110], 10, 4),  # late
        ([105, 110, 110], 10, 3),  # piece by piece
        ([110, 120, 120], 10, 3),  # still moving, by someone else's hand
        ([100, 100], 0, 2),  # nothing sent
        ([40], 10, 1),  # fell: another server, not worth waiting for
    ],
)
def test_counters_are_read_until_they_hold_what_was_sent_twice_the_same(
    queried: list[int], sent: int, reads: int
) -> None:
    (baseline,), rest = pages(100), iter(pages(*queried))
    seen: list[Counters] = []

    async def scrape() -> Counters:
        seen.append(next(rest))
        return seen[-1]

    now = asyncio.run(wait_for_counters(scrape, baseline, sent, baseline))
    assert (len(seen), now) == (reads, seen[-1])


def test_counters_that_never_come_are_taken_as_they_are_at_the_deadline() -> None:
    (baseline,) = pages(100)

    async def scrape() -> Counters:
        return baseline

    assert asyncio.run(wait_for_counters(scrape, baseline, 10, baseline, patience_s=0)) == baseline
