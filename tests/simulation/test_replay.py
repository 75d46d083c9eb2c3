import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hitlab import families
from hitlab.cli import _progress, build_app
from hitlab.errors import HitlabError, InputError, TraceError, UsageError
from hitlab.simulation import kernels, replay
from hitlab.simulation.policy import load_policy, options_of
from hitlab.traces.reader import read_trace
from hitlab.traces.trace import Trace

Cli = Callable[..., str]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    """Run `hitlab replay` and return what it prints on stdout; errors come as exceptions."""

    def run(*arguments: object) -> str:
        app = build_app(("replay",))
        app(["replay", *map(str, arguments)], standalone_mode=False)
        return capsys.readouterr().out

    return run


def write(path: Path, requests: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(each) + "\n" for each in requests))
    return path


# Right values


@pytest.mark.parametrize("case", range(4))
def test_small_s3fifo_cases_are_exact_request_by_request(data: Path, cli: Cli, tmp_path: Path, case: int) -> None:
    given = json.loads((data / "cases" / "s3fifo_small.json").read_text())[case]
    trace = write(tmp_path / "trace.jsonl", given["requests"])
    out = cli(
        *(trace, "--capacity", given["capacity"], "--block-size", given["block_size"]),
        *("--small-ratio", given["small_ratio"], "--max-freq", given["max_freq"]),
        *("--per-request", "--json", "--check-invariants"),
    )
    document = json.loads(out)
    assert {key: document[key] for key in given["expected"]} == given["expected"]


@pytest.fixture(scope="module")
def mooncake(shared: Path) -> Callable[[str, int], Trace]:
    traces: dict[str, Trace] = {}

    def read(name: str, block_tokens: int) -> Trace:
        if name not in traces:
            traces[name] = read_trace(shared / "traces" / name, block_tokens)
        return traces[name]

    return read


def test_mooncake_traces_replay_to_the_published_values(data: Path, mooncake: Callable[[str, int], Trace]) -> None:
    for given in json.loads((data / "cases" / "replay_golden.json").read_text()):
        policy = load_policy(given["policy"])
        options = {name: given[name] for name in options_of(policy)}
        trace = mooncake(given["trace"], given["block_size"])
        result = replay.replay(trace, policy, given["cache_capacity_blocks"], options, check_invariants=True)
        assert {
            **options,
            "trace": given["trace"],
            "policy": result.policy,
            "block_size": result.block_tokens,
            "cache_capacity_blocks": result.capacity_blocks,
            "total_prompt_tokens": result.tally.queried_tokens,
            "total_hit_tokens": result.tally.hit_tokens,
            "overall_hit_rate": result.tally.hit_rate,
            "final_cache_blocks": result.final_blocks,
        } == given


@pytest.mark.parametrize(
    ("name", "hit_rate"), [("conversation_trace.jsonl", 0.37362), ("synthetic_trace.jsonl", 0.65124)]
)
def test_every_policy_reaches_the_infinite_cache_s_rate_and_no_more(
    mooncake: Callable[[str, int], Trace], name: str, hit_rate: float
) -> None:
    engine_rate = {0.37362: 0.37338, 0.65124: 0.65043}[hit_rate]
    for name_of in families.names("policies"):
        policy = load_policy(name_of)
        result = replay.replay(mooncake(name, 512), policy, 10**7)
        expected = engine_rate if policy.UNIT == "request" else hit_rate  # engines match whole blocks only
        assert result.tally.hit_rate == pytest.approx(expected, abs=5e-6)
        capped = replay.replay(mooncake(name, 512), policy, 10**7, engine_cap=True)
        assert capped.tally.hit_rate == pytest.approx(engine_rate, abs=5e-6)


# By hand


def hits(requests: list[tuple[int, list[Any]]], policy: str, capacity: int, block_tokens: int = 10) -> list[int]:
    trace = Trace.of(requests, block_tokens)
    tokens: list[int] = replay.replay(trace, load_policy(policy), capacity).hit_tokens.tolist()
    return tokens


def test_lru_accesses_blocks_in_order_so_the_first_ones_go_first() -> None:
    one, other = (30, [1, 2, 3]), (10, [9])
    assert hits([one, other, one], "lru", 3) == [0, 0, 0]
    assert hits([one, other, one], "lru", 4) == [0, 0, 30]


def test_fifo_evicts_what_was_hit_and_lru_does_not() -> None:
    requests = [(10, [block]) for block in (1, 2, 1, 3, 1)]
    assert hits(requests, "fifo", 2) == [0, 0, 10, 0, 0]
    assert hits(requests, "lru", 2) == [0, 0, 10, 0, 10]


def test_lfu_evicts_the_least_used_and_of_those_the_least_recent() -> None:
    # 1 was used twice, 2 and 3 once: 2 goes for 4, then 3 for 2, then 4 for 3.
    requests = [(10, [block]) for block in (1, 1, 2, 3, 4, 2, 3, 1)]
    assert hits(requests, "lfu", 3) == [0, 10, 0, 0, 0, 0, 0, 10]


def test_lfu_forgets_the_uses_of_what_it_evicts() -> None:
    # 1 and 2 end with two uses each, so 1, used longer ago, goes; back in with one use, it goes again.
    requests = [(10, [block]) for block in (1, 1, 2, 2, 3, 1, 3, 2)]
    assert hits(requests, "lfu", 2) == [0, 10, 0, 10, 0, 0, 0, 10]


def test_s3fifo_promotes_what_was_used_again_and_remembers_what_was_not() -> None:
    # Capacity 10: small holds 1 block, main and ghost 9.
    assert hits([(10, [block]) for block in (1, 1, 2, 1)], "s3fifo", 10) == [0, 10, 0, 10]  # 1 went to main
    assert hits([(10, [block]) for block in (1, 2, 1, 3, 1)], "s3fifo", 10) == [0, 0, 0, 0, 10]  # by the ghost


def test_arc_takes_from_t1_at_its_target_when_the_hit_is_in_b2() -> None:
    # At the second 3, remembered by B2, T1 holds 4 and has a target of 1: 4 goes, so that 5 is still in T2.
    requests = [(10, [block]) for block in (3, 5, 1, 3, 4, 5, 1, 3, 5)]
    assert hits(requests, "arc", 3) == [0, 0, 0, 10, 0, 0, 0, 0, 10]


def test_2q_keeps_what_comes_back_after_it_was_evicted() -> None:
    # a1in has 1 block of 4 as its own, a1out remembers 2: 1 comes back to am, and outlives a scan.
    requests = [(10, [block]) for block in (1, 2, 3, 4, 5, 1, 6, 7, 8, 9, 1)]
    assert hits(requests, "2q", 4) == [0] * 10 + [10]
    assert hits(requests, "fifo", 4) == [0] * 11


def test_clock_gives_a_second_chance_and_sieve_leaves_it_where_it_is() -> None:
    # 1 is used; for 4 both evict 2. For 5 CLOCK's hand is behind 2 and takes 3, SIEVE's too; then 6: CLOCK takes 1,
    # whose bit is gone, SIEVE goes on to 4.
    requests = [(10, [block]) for block in (1, 2, 3, 1, 4, 5, 6, 1)]
    assert hits(requests, "clock", 3) == [0, 0, 0, 10, 0, 0, 0, 0]
    assert hits(requests, "sieve", 3) == [0, 0, 0, 10, 0, 0, 0, 10]


def test_lirs_evicts_a_scan_and_not_what_was_used_twice() -> None:
    requests = [(10, [block]) for block in (1, 2, 1, 2, 3, 4, 5, 6, 1, 2)]
    assert hits(requests, "lirs", 3) == [0, 0, 10, 10, 0, 0, 0, 0, 10, 10]
    assert hits(requests, "lru", 3) == [0, 0, 10, 10, 0, 0, 0, 0, 0, 0]


def test_belady_keeps_what_is_needed_soonest() -> None:
    requests = [(10, [block]) for block in (1, 2, 3, 1, 2, 3)]
    assert hits(requests, "belady", 2) == [0, 0, 0, 10, 0, 10]
    assert hits(requests, "lru", 2) == [0] * 6


def test_vllm_evicts_a_prompt_from_its_tail_and_never_hits_a_last_token() -> None:
    one, other = (40, [1, 2, 3, 4]), (10, [9])
    assert hits([one, one], "vllm", 8) == [0, 30]
    assert hits([one, other, one], "vllm", 4) == [0, 0, 30]  # 9 took the block of 4, which was free first
    assert hits([one, other, one], "lru", 4) == [0, 0, 0]  # 9 took the block of 1
    assert hits([(50, [1, 2, 3, 4, 5])] * 2, "vllm", 4) == [0, 0]  # longer than the cache: not served


def test_sglang_evicts_a_leaf_whole() -> None:
    # 9 needs 1 block and asks for 2: 1 is free of 5, so the leaf of 1 to 4 goes, all of it.
    one, other = (40, [1, 2, 3, 4]), (10, [9])
    assert hits([one, other, one], "sglang", 5) == [0, 0, 0]
    assert hits([one, other, one], "sglang", 6) == [0, 0, 30]
    assert hits([one, other, one], "vllm", 5) == [0, 0, 30]


def test_a_partial_last_block_counts_the_request_s_tokens_only() -> None:
    assert hits([(29, [1, 2, 3])] * 2, "lru", 9) == [0, 29]
    assert hits([(29, [1, 2])] * 2, "lru", 9) == [0, 20]  # only full blocks listed


def test_ids_that_look_alike_do_not_hit() -> None:
    assert hits([(5, [1]), (5, [4294967297]), (5, ["1"]), (5, [1])], "lru", 9) == [0, 0, 0, 5]
    assert hits([(5, [9007199254740993]), (5, [9007199254740992])], "lru", 9) == [0, 0]


def test_requests_are_replayed_in_file_order() -> None:
    assert hits([(10, [1]), (20, [1, 2]), (10, [1])], "lru", 9) == [0, 10, 10]


def test_broken_invariants_are_an_error_only_where_they_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    lru = load_policy("lru")
    monkeypatch.setattr(lru, "invariant_violations", lambda state: ["a block twice", "another nowhere"])
    trace = Trace.of([(5, [1])], 5)
    assert replay.replay(trace, lru, 9).final_blocks == 1
    with pytest.raises(HitlabError, match="LRU kernel broke its own rules: a block twice; another nowhere"):
        replay.replay(trace, lru, 9, check_invariants=True)


# The command


def test_the_json_document_has_the_specified_keys_and_its_numbers_add_up(cli: Cli, chats: Path) -> None:
    document = json.loads(cli(chats, "--capacity", 400, "--per-request", "--json"))
    requests = document["per_request"]
    assert list(document) == [
        *("policy", "variant", "small_ratio", "max_freq", "block_size", "cache_capacity_blocks"),
        *("total_requests", "total_prompt_tokens", "total_hit_tokens", "overall_hit_rate", "request_hit_rate"),
        *("final_cache_blocks", "engine_cap", "skipped_rows", "per_request"),
    ]
    assert (document["policy"], document["small_ratio"], document["max_freq"]) == ("S3FIFO", 0.1, 3)
    assert document["total_requests"] == len(requests) == 3068
    assert document["total_hit_tokens"] == sum(each["hit_tokens"] for each in requests)
    assert document["total_prompt_tokens"] == sum(each["prompt_tokens"] for each in requests)
    assert document["overall_hit_rate"] == document["total_hit_tokens"] / document["total_prompt_tokens"]
    assert document["final_cache_blocks"] <= 400


@pytest.mark.parametrize(("policy", "name"), [("LRU", "LRU"), ("fifo", "FIFO"), ("Lfu", "LFU")])
def test_policies_without_options_name_none(cli: Cli, chats: Path, policy: str, name: str) -> None:
    document = json.loads(cli(chats, "--capacity", 400, "--policy", policy, "--json"))
    assert document["policy"] == name
    assert document["variant"]
    assert not {"small_ratio", "max_freq", "per_request"} & set(document)


def test_options_may_come_with_the_policy_s_name(cli: Cli, chats: Path) -> None:
    document = json.loads(cli(chats, "--capacity", 400, "--policy", "2Q:in-ratio=0.5", "--json"))
    assert (document["policy"], document["in_ratio"], document["out_ratio"]) == ("2Q", 0.5, 0.5)


def test_the_table_says_policy_variant_and_rate_in_80_columns(cli: Cli, chats: Path) -> None:
    out = cli(chats, "--capacity", 400, "--per-request")
    assert "S3FIFO, small_ratio 0.1, max_freq 3" in out
    assert "both queues" in out
    assert "400 of 400" in out
    assert "3,068" in out
    assert len(out.splitlines()) > 3068
    assert max(map(len, out.splitlines())) <= 80


def test_after_a_warm_up_the_steady_part_is_counted_beside_the_whole(cli: Cli, chats: Path) -> None:
    document = json.loads(cli(chats, "--capacity", 400, "--warmup", "0.5", "--per-request", "--json"))
    assert document["first_steady_request"] == 1534
    steady = document["per_request"][1534:]
    assert document["steady_prompt_tokens"] == sum(each["prompt_tokens"] for each in steady)
    assert document["steady_hit_tokens"] == sum(each["hit_tokens"] for each in steady)
    assert document["steady_hit_rate"] == document["steady_hit_tokens"] / document["steady_prompt_tokens"]
    shares = [each["hit_tokens"] / each["prompt_tokens"] for each in steady]
    assert document["steady_request_hit_rate"] == pytest.approx(sum(shares) / len(shares))
    assert "steady" in cli(chats, "--capacity", 400, "--warmup", "0.5")
    with pytest.raises(UsageError, match="a warm-up of"):
        cli(chats, "--capacity", 400, "--warmup", "1")


def test_each_request_goes_to_a_file_of_lines_or_columns(cli: Cli, chats: Path, tmp_path: Path) -> None:
    command = (chats, "--capacity", 400, "--engine-cap", "--per-request", "--json")
    document = json.loads(cli(*command, "--requests-out", tmp_path / "requests.jsonl"))
    assert document["engine_cap"]
    lines = (tmp_path / "requests.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == document["per_request"]
    with pytest.raises(UsageError, match="ends in neither"):
        cli(*command, "--requests-out", tmp_path / "requests.txt")
    with pytest.raises(InputError, match="can't be written"):
        cli(*command, "--requests-out", tmp_path / "missing" / "requests.jsonl")
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed: pip install 'hitlab[parquet]'")
    cli(*command, "--requests-out", tmp_path / "requests.parquet")
    assert parquet.read_table(tmp_path / "requests.parquet").to_pylist() == document["per_request"]


def test_nothing_replayed_has_no_rate(cli: Cli, tmp_path: Path) -> None:
    trace = write(tmp_path / "trace", [{"input_length": 0, "hash_ids": []}])
    document = json.loads(cli(trace, "--capacity", 10, "--json"))
    assert (document["overall_hit_rate"], document["total_requests"]) == (None, 1)
    assert "none: no prompt tokens" in cli(trace, "--capacity", 10)


def test_skipped_rows_are_counted_in_both_outputs(cli: Cli, tmp_path: Path) -> None:
    trace = write(tmp_path / "t", [{"input_length": 0, "hash_ids": []}, {"input_length": 1}])
    with pytest.raises(TraceError, match="missing required field"):
        cli(trace, "--capacity", 10)
    document = json.loads(cli(trace, "--capacity", 10, "--skip-malformed", "--json"))
    assert (document["skipped_rows"], document["total_requests"]) == (1, 1)
    assert document["first_skipped"].startswith(f"{trace}:2: not a request")
    assert "skipped rows" in cli(trace, "--capacity", 10, "--skip-malformed")


def test_a_capacity_that_cannot_work_is_said_before_the_trace_is_opened(cli: Cli, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="5 blocks leave the small queue empty"):
        cli(tmp_path / "missing", "--capacity", 5)


@pytest.mark.parametrize(("quiet_seconds", "said"), [(-1.0, True), (3600.0, False)])
def test_only_what_takes_long_shows_progress(
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    quiet_seconds: float,
    said: bool,
) -> None:
    monkeypatch.setattr(_progress, "QUIET_SECONDS", quiet_seconds)
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then takes the captured stderr for a terminal
    with _progress.progress("reading chats") as report:
        report(50, 100)
    assert ("reading chats" in capfd.readouterr().err) == said


# Compiled kernels on disk


def test_listing_policies_and_reading_a_trace_import_no_compiler(chats: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from hitlab import families; from hitlab.simulation import replay;"
        "from hitlab.traces import reader; import hitlab.cli.replay;"
        "families.names('policies'); reader.read_trace(Path(sys.argv[1]), 512); sys.exit('numba' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script, chats], check=True)


REPLAY = "import sys; from hitlab.cli import build_app; build_app(('replay',))(sys.argv[1:], standalone_mode=False)"


def test_a_kernel_is_compiled_once_and_said_to_be(chats: Path, tmp_path: Path) -> None:
    def run() -> tuple[str, str]:
        done = subprocess.run(
            [sys.executable, "-c", REPLAY, "replay", chats, "--policy", "fifo", "--capacity", "9", "--json"],
            env={"NUMBA_CACHE_DIR": str(tmp_path), "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout, done.stderr

    first, said = run()
    assert said == "compiling the fifo kernel, once ...\n"
    assert run() == (first, "")


@pytest.fixture
def fresh_folders() -> Any:
    kernels.folder.cache_clear()
    yield
    kernels.folder.cache_clear()


def test_a_changed_rule_is_compiled_anew(fresh_folders: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    lru = load_policy("lru")
    before = kernels.folder(lru)
    edited = tmp_path / "lru.py"
    edited.write_text(Path(lru.__file__ or "").read_text() + "# edited\n")
    monkeypatch.setattr(lru, "__file__", str(edited))
    kernels.folder.cache_clear()
    after = kernels.folder(lru)
    assert before is not None
    assert after is not None
    assert before != after
    assert {before.parent, after.parent} == {tmp_path / "hitlab" / "kernels"}


def test_kernels_are_kept_in_the_cache_directory_or_where_numba_keeps_its_own(
    fresh_folders: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fifo = load_policy("fifo")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for chosen, parent in (("", tmp_path / "cache"), (str(tmp_path / "numba"), tmp_path / "numba")):
        monkeypatch.setenv("NUMBA_CACHE_DIR", chosen)
        kernels.folder.cache_clear()
        folder = kernels.folder(fifo)
        assert folder is not None and folder.is_dir()
        assert folder.parent == parent / "hitlab" / "kernels"


def test_where_no_folder_can_be_made_nothing_is_kept(
    fresh_folders: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "file" / "below"))
    assert kernels.folder(load_policy("lru")) is None
