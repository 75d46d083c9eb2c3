"""`measure` end to end: the command line, real sockets, an emulated engine at the other end."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers import Hitlab, Ran

from hitlab.cache.sizes import CacheSizes
from hitlab.client.http import Answer, EngineClient
from hitlab.errors import InputError
from hitlab.servers.emulated import server as emulate
from hitlab.servers.emulated.config import Faults
from hitlab.tokens import Prompt


@pytest.fixture
def measure(hitlab: Hitlab, tmp_path: Path) -> Hitlab:
    """`hitlab measure ARGUMENTS`, with its results in a folder of the test's own."""

    def run(*arguments: object) -> Ran:
        return hitlab("measure", "--out", tmp_path / "results", *arguments)

    return run


def document(ran: Ran) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ran.out)
    return found


def hits(found: dict[str, Any]) -> dict[str, int]:
    return {phase["name"]: phase["hit_tokens"] for phase in found["phases"]}


def check(found: dict[str, Any], name: str) -> dict[str, Any]:
    (one,) = [each for each in found["checks"] if each["name"] == name]
    assert isinstance(one, dict)
    return one


@pytest.mark.parametrize(
    ("engine", "block", "warm"),
    [
        ("vllm", 16, 62_496),
        ("vllm", 32, 62_496),
        ("vllm", 64, 60_480),
        ("vllm", 128, 56_448),
        ("sglang", 1, 63_000),
        ("sglang", 16, 62_496),
    ],
)
def test_unbroken_workload_scores_what_real_engines_scored(measure: Hitlab, engine: str, block: int, warm: int) -> None:
    ran = measure("--engine", engine, "--emulate", "--block-size", block, "--json")
    found = document(ran)
    assert ran.status == 0
    assert hits(found) == {"cold": 0, "warm": warm}
    assert (found["valid"], found["agrees"], found["verdict"]) == (True, True, "healthy")
    assert sum(phase["queried_tokens"] for phase in found["phases"]) == 76_800


@pytest.mark.parametrize(
    ("engine", "block", "arguments", "after", "verdict"),
    [
        ("vllm", 16, ["token", "--break-at", 3], {"break": 0, "repeat": 0}, "key broken"),
        ("vllm", 16, ["token", "--break-at", 400], {"break": 25_200, "repeat": 25_600}, "key broken"),
        ("vllm", 32, ["token", "--break-at", 400], {"break": 24_192, "repeat": 24_576}, "key broken"),
        ("vllm", 16, ["token", "--break-at", 999], {"break": 62_496, "repeat": 63_488}, "healthy"),
        ("vllm", 16, ["token", "--break-at", 3, "--break-fixed"], {"break": 62_496, "repeat": 63_488}, "healthy"),
        ("vllm", 16, ["salt"], {"break": 0, "repeat": 0}, "key broken"),
        ("vllm", 16, ["salt", "--break-fixed"], {"break": 62_496, "repeat": 63_488}, "healthy"),
        ("sglang", 1, ["token", "--break-at", 3], {"break": 189, "repeat": 192}, "key broken"),
        ("sglang", 1, ["token", "--break-at", 400], {"break": 25_200, "repeat": 25_600}, "key broken"),
        ("sglang", 1, ["token", "--break-at", 992], {"break": 62_496, "repeat": 63_488}, "key broken"),
        ("sglang", 1, ["token", "--break-at", 999], {"break": 62_937, "repeat": 63_936}, "key broken"),
        ("sglang", 16, ["token", "--break-at", 999], {"break": 62_496, "repeat": 63_488}, "healthy"),
        ("sglang", 1, ["salt"], {"break": 0, "repeat": 0}, "key broken"),
    ],
)
def test_broken_keys_score_what_real_engines_scored(
    measure: Hitlab, engine: str, block: int, arguments: list[Any], after: dict[str, int], verdict: str
) -> None:
    ran = measure("--engine", engine, "--emulate", "--block-size", block, "--json", "--break-mode", *arguments)
    found = document(ran)
    assert {name: hit for name, hit in hits(found).items() if name in after} == after
    assert (ran.status, found["verdict"]) == (0, verdict)


@pytest.mark.parametrize(
    ("engine", "block", "blocks", "prefix"), [("vllm", 16, 2048, 992), ("sglang", 1, 32_768, 1000)]
)
def test_flood_evicts_and_the_first_request_brings_the_prefix_back(
    measure: Hitlab, engine: str, block: int, blocks: int, prefix: int
) -> None:
    ran = measure(
        *("--engine", engine, "--emulate", "--block-size", block, "--capacity-blocks", blocks),
        *("--break-mode", "capacity", "--flood-requests", "auto", "--json"),
    )
    found = document(ran)
    assert (ran.status, found["verdict"]) == (0, "evicted")
    assert (hits(found)["evicted"], hits(found)["recovery"]) == (0, 63 * prefix)
    assert found["engine"]["capacity_blocks"] == blocks


def test_flood_smaller_than_the_pool_is_said_and_costs_nothing(measure: Hitlab) -> None:
    ran = measure(
        *("--engine", "sglang", "--emulate", "--capacity-blocks", 32_768, "--break-mode", "capacity"),
        *("--flood-requests", 3, "--json"),
    )
    assert "may evict nothing" in " ".join(ran.err.split())
    assert (hits(document(ran))["evicted"], document(ran)["verdict"]) == (1000, "healthy")


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_each_of_two_ranks_has_its_own_cold_request(measure: Hitlab, engine: str) -> None:
    found = document(measure("--engine", engine, "--emulate", "--dp", 2, "--block-size", 16, "--json"))
    assert hits(found)["warm"] == 62 * 992
    assert found["valid"]
    assert found["agrees"]


def test_pass_that_does_not_fit_the_pool_is_predicted_by_the_model(measure: Hitlab) -> None:
    ran = measure("--engine", "vllm", "--emulate", "--capacity-blocks", 90, "--groups", 4, "--json")
    found = document(ran)
    assert "evicts its own blocks" in " ".join(ran.err.split())
    assert found["agrees"]
    assert found["phases"][1]["closed_form_hit_tokens"] != found["phases"][1]["hit_tokens"]


def test_concurrent_requests_score_the_same_once_the_first_has_completed(measure: Hitlab) -> None:
    for engine in ("vllm", "sglang"):
        found = document(measure("--engine", engine, "--emulate", "--groups", 4, "--concurrency", 8, "--json"))
        assert found["valid"]
        assert found["agrees"]


def test_prefix_below_one_block_is_called_so(measure: Hitlab) -> None:
    found = document(measure("--engine", "vllm", "--emulate", "--prefix-len", 12, "--suffix-len", 500, "--json"))
    assert (found["verdict"], hits(found)["warm"]) == ("below one block", 0)


@pytest.mark.parametrize(
    ("fault", "name", "says"),
    [
        ("reset=lies", "reset confirmed", "in the cache"),
        ("offload-tier", "reset confirmed", "a tier behind the cache"),
        ("foreign-every=7", "queries add up", "another client"),
        ("restart-after=30", "counters never fell", "restarted"),
        ("recount-every=9", "no preemption", "counted again"),
        ("fail-post=20", "every request answered", "500"),
        ("die-post=20", "every request answered", "request 17 of warm"),
        ("extra-bos", "prompt lengths kept", "the server changed the prompt"),
        ("lag-scrapes=1000000", "queries add up", "unaccounted"),
    ],
)
def test_each_fault_makes_the_run_invalid_and_the_named_check_says_why(
    measure: Hitlab, monkeypatch: pytest.MonkeyPatch, fault: str, name: str, says: str
) -> None:
    monkeypatch.setattr("hitlab.client.counters.SETTLE_S", 0.2)
    ran = measure("--engine", "vllm", "--emulate", "--fault", fault, "--json")
    found = document(ran)
    assert (ran.status, found["valid"], found["verdict"]) == (4, False, "cannot tell")
    assert not check(found, name)["ok"]
    assert says in check(found, name)["detail"]


@pytest.mark.parametrize("fault", ["lag-scrapes=3", "reset=mute", "metrics=redirect", "cached-tokens=null"])
def test_what_only_looks_like_a_fault_leaves_the_run_valid_and_exact(measure: Hitlab, fault: str) -> None:
    ran = measure("--engine", "vllm", "--emulate", "--fault", fault, "--json")
    assert (ran.status, hits(document(ran))["warm"]) == (0, 62_496)


@pytest.mark.parametrize("fault", ["foreign-every=7", "reset=lies", "fail-post=20", "recount-every=9"])
def test_sglang_faults_are_noticed_too(measure: Hitlab, fault: str) -> None:
    ran = measure("--engine", "sglang", "--emulate", "--fault", fault, "--json")
    assert (ran.status, document(ran)["verdict"]) == (4, "cannot tell")


def test_block_size_the_user_believes_is_not_believed(measure: Hitlab) -> None:
    with emulate.start("vllm", emulate.settings("vllm", CacheSizes(block_tokens=128))) as server:
        ran = measure("--engine", "vllm", "--base-url", server.base_url, "--block-size", 16, "--json")
    found = document(ran)
    assert ran.status == 4
    assert "you said 16, the engine says 128" in check(found, "block size")["detail"]
    assert hits(found)["warm"] == 56_448


def test_block_size_the_engine_misstates_is_a_disagreement_that_names_the_right_ones(measure: Hitlab) -> None:
    ran = measure("--engine", "vllm", "--emulate", "--fault", "announced-block-tokens=128", "--json")
    found = document(ran)
    assert (ran.status, found["valid"], found["agrees"]) == (3, True, False)
    assert "a block size of 16 or 32 gives, not 128" in found["explanation"]


def test_warm_cache_never_passes_for_a_result(measure: Hitlab) -> None:
    with emulate.start("vllm", faults=Faults(reset="lies")) as server:
        for _ in range(2):
            ran = measure("--engine", "vllm", "--base-url", server.base_url, "--json")
            assert ran.status == 4
        assert "the baseline is warm" in check(document(ran), "cold start")["detail"]


def test_caching_that_is_off_is_the_verdict(measure: Hitlab) -> None:
    config = emulate.settings("vllm").but(caching_on=False)
    with emulate.start("vllm", config) as server:
        ran = measure("--engine", "vllm", "--base-url", server.base_url, "--json")
    assert (ran.status, document(ran)["verdict"]) == (4, "caching off")


def test_server_without_a_reset_is_measured_with_fresh_prefixes(measure: Hitlab) -> None:
    with emulate.start("vllm", emulate.settings("vllm").but(dev_mode=False)) as server:
        target = ("--engine", "vllm", "--base-url", server.base_url, "--break-mode", "token", "--break-at", 400)
        refused = measure(*target)
        assert refused.status == 1
        assert "VLLM_SERVER_DEV_MODE=1" in refused.err
        assert "--cold-by fresh-prefix" in refused.err
        for _ in range(2):  # a second run is as cold as the first
            found = document(measure(*target, "--cold-by", "fresh-prefix", "--json"))
            assert hits(found) == {"cold": 0, "warm": 62_496, "break": 25_200, "repeat": 25_600}
            assert found["valid"]


def test_keys_open_the_server_and_appear_nowhere(
    measure: Hitlab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("USER_KEY", "sesame")
    monkeypatch.setenv("ADMIN_KEY", "open-wide")
    config = emulate.settings("sglang").but(api_key="sesame", admin_key="open-wide")
    with emulate.start("sglang", config) as server:
        target = ("--engine", "sglang", "--base-url", server.base_url)
        refused = measure(*target)
        assert refused.status == 1
        assert "--api-key-env" in refused.err
        ran = measure(*target, "--api-key-env", "USER_KEY", "--admin-key-env", "ADMIN_KEY")
    assert ran.status == 0
    (kept,) = (tmp_path / "results").glob("*.json")
    for text in (refused.err, ran.out, ran.err, kept.read_text()):
        assert "sesame" not in text
        assert "open-wide" not in text


@pytest.mark.parametrize("key", ["sk-LEAK\r", "sk-LEAK\n", "sk-LEAK ", "sk-LEÄK", "sk-LEAK\x7f"])
def test_what_can_be_no_key_is_refused_and_not_printed(
    measure: Hitlab, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv("HITLAB_KEY", key)
    ran = measure("--engine", "vllm", "--emulate", "--api-key-env", "HITLAB_KEY")
    assert ran.status == 2
    assert "HITLAB_KEY" in ran.err
    assert "sk-" not in ran.err


def test_key_in_place_of_its_variable_is_not_printed(measure: Hitlab) -> None:
    ran = measure("--engine", "vllm", "--emulate", "--api-key-env", "sk-LEAK")
    assert ran.status == 2
    assert "LEAK" not in ran.err


def test_password_of_the_address_is_in_no_result(measure: Hitlab, tmp_path: Path) -> None:
    with emulate.start("vllm") as server:
        address = server.base_url.replace("http://", "http://user:sesame@")
        ran = measure("--engine", "vllm", "--base-url", address)
    (kept,) = (tmp_path / "results").glob("*.json")
    assert ran.status == 0
    assert json.loads(kept.read_text())["engine"]["base_url"] == server.base_url
    assert "sesame" not in ran.out + ran.err + kept.read_text()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--base-url", ""], "--base-url is empty"),
        (["--fault", "extra-bos"], "--fault for --emulate"),
        (["--engine-arg=--seed"], "--engine-arg is for --cpu"),
    ],
)
def test_what_would_be_ignored_is_refused(measure: Hitlab, arguments: list[Any], says: str) -> None:
    ran = measure("--engine", "vllm", *arguments)
    assert ran.status == 2
    assert says in ran.err


def test_block_size_has_its_short_name(measure: Hitlab) -> None:
    assert document(measure("--engine", "vllm", "--emulate", "-B", 64, "--json"))["engine"]["block_tokens"] == 64


def test_closed_port_is_one_line(measure: Hitlab) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ran = measure("--engine", "vllm", "--base-url", f"http://127.0.0.1:{port}")
    assert ran.status == 1
    assert ran.err.count("\n") == 1
    assert f":{port}" in ran.err
    assert "--base-url" in ran.err
    assert "--emulate" in ran.err


@pytest.mark.parametrize(
    ("engine", "arguments", "says"),
    [
        ("vllm", ["--prefix-len", 40_000], "the server takes"),
        ("vllm", ["--vocab-range", "1000:60000"], "--vocab-size"),
        ("vllm", ["--vocab-range", "1000:40000", "--vocab-size", 32_000], "last id is 31,999"),
        ("vllm", ["--vocab-range", "1000:1050"], "different first tokens"),
        ("vllm", ["--flood-requests", "many"], "--flood-requests"),
        ("vllm", ["--cold-by", "luck"], "reset, fresh-prefix"),
        ("vllm", ["--concurrency", 0], "--concurrency"),
        ("vllm", ["--api-key-env", "HITLAB_NO_SUCH_KEY"], "HITLAB_NO_SUCH_KEY"),
        ("vllm", ["--base-url", "http://127.0.0.1:1"], "choose one"),
        ("vllm", ["--base-url", ""], "--base-url is empty"),
        ("vllm", ["--vocab-size", 0], "'--vocab-size'"),
        ("vllm", ["--vocab-size", -5], "'--vocab-size'"),
        ("vllm", ["--vocab-size", 500], "--vocab-range"),
        ("vllm", ["--capacity-blocks", 0], "'--capacity-blocks'"),
        ("vllm", ["--dp", 0], "'--dp'"),
        ("vllm", ["--timeout", "nan"], "--timeout is nan"),
        ("vllm", ["--timeout", "inf"], "--timeout is inf"),
        ("vllm", ["--timeout", 0], "--timeout is 0"),
        ("vllm", ["--timeout", -1], "--timeout is -1"),
        ("vllm", ["--api-key-env", ""], "--api-key-env takes the name"),
        ("vllm", ["--engine-arg=--seed"], "--engine-arg is for --cpu"),
        ("vllm", ["--fault", "gremlins"], "gremlins"),
    ],
)
def test_what_can_not_be_run_is_refused_in_one_line(
    measure: Hitlab, engine: str, arguments: list[Any], says: str
) -> None:
    ran = measure("--engine", engine, "--emulate", *arguments)
    lines = [line for line in ran.err.splitlines() if line.startswith("hitlab: ")]
    assert (ran.status, len(lines)) == (2, 1)
    assert says in lines[0]


def test_emulated_results_say_so_everywhere(measure: Hitlab, tmp_path: Path) -> None:
    ran = measure("--engine", "vllm", "--emulate")
    assert "EMULATED vLLM 0.32.0+emulated" in ran.out
    assert "EMULATED healthy" in ran.out
    assert ran.err.startswith("EMULATED")
    (kept,) = (tmp_path / "results").glob("*EMULATED*.json")
    assert json.loads(kept.read_text())["engine"]["source"] == "emulated"


def test_table_fits_eighty_columns(measure: Hitlab) -> None:
    ran = measure("--engine", "vllm", "--emulate", "--break-mode", "capacity", "--flood-requests", "auto")
    assert max(map(len, ran.out.splitlines())) <= 80
    assert "…" not in ran.out
    for word in ("cold", "warm", "evicted", "recovery", "82.667 %", "62,496"):
        assert word in ran.out


def test_dry_run_sends_nothing_and_prints_the_plan(measure: Hitlab, tmp_path: Path) -> None:
    ran = measure("--engine", "vllm", "--break-mode", "capacity", "--dry-run", "--json")
    found = json.loads(ran.out)
    assert [step["step"] for step in found["steps"]] == ["reset", "cold", "warm", "flood", "evicted", "recovery"]
    assert found["steps"][2]["closed_form_hit_tokens"] == 62_496
    assert not (tmp_path / "results").exists()
    assert "nothing is sent" in measure("--engine", "vllm", "--dry-run").out


def test_interrupted_run_keeps_what_it_measured(root: Path, tmp_path: Path) -> None:
    with emulate.start("vllm", faults=Faults(hang_post=75)) as server:
        command = ["measure", "--engine", "vllm", "--base-url", server.base_url, "--break-mode", "salt"]
        process = subprocess.Popen(
            [sys.executable, "run.py", *command, "--out", tmp_path], cwd=root, stderr=subprocess.PIPE, text=True
        )
        assert server.hanging.wait(timeout=30)
        os.kill(process.pid, signal.SIGINT)
        _, error = process.communicate(timeout=30)
        server.release()
    assert process.returncode == 130
    (kept,) = tmp_path.glob("*incomplete.json")
    assert str(kept) in error.replace("\n", "")
    found = json.loads(kept.read_text())
    assert (found["complete"], hits(found)) == (False, {"cold": 0, "warm": 62_496})


def test_result_file_holds_all_that_repeats_the_run(measure: Hitlab, tmp_path: Path) -> None:
    ran = measure("--engine", "vllm", "--emulate", "--seed", 7, "--json")
    (kept,) = (tmp_path / "results").glob("*.json")
    found = json.loads(kept.read_text())
    assert found == document(ran)
    assert (found["schema_version"], found["seed"], found["hitlab_version"]) == (1, 7, "0.1.0")
    assert found["experiment"]["shape"] == {"requests": 64, "prefix_tokens": 1000, "suffix_tokens": 200, "groups": 1}
    assert found["counters_after"]
    assert all(len(phase["prompts_sha256"]) == 64 for phase in found["phases"])


def test_result_that_can_not_be_saved_has_been_shown(measure: Hitlab, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise InputError("the result can't be written: No space left on device", where="results")

    monkeypatch.setattr("hitlab.results.store.save", full)
    ran = measure("--engine", "vllm", "--emulate", "--json")
    assert ran.status == 1
    assert hits(document(ran))["warm"] == 62_496
    assert "No space left" in ran.err


def test_result_that_can_not_be_shown_has_been_saved(root: Path, tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run(
            [sys.executable, "run.py", "measure", "--engine", "vllm", "--emulate", "--json", "--out", tmp_path],
            cwd=root,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    (kept,) = tmp_path.glob("*.json")
    assert ran.returncode == 1
    assert str(kept) in ran.stderr
    assert hits(json.loads(kept.read_text()))["warm"] == 62_496


def test_whatever_goes_wrong_what_was_measured_is_kept(
    measure: Hitlab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    whole = EngineClient.complete

    async def breaks(client: EngineClient, prompt: Prompt, max_tokens: int = 1) -> Answer:
        if prompt.salt:
            raise RuntimeError("something nobody thought of")
        return await whole(client, prompt, max_tokens)

    monkeypatch.setattr(EngineClient, "complete", breaks)
    ran = measure("--engine", "vllm", "--emulate", "--break-mode", "salt")
    assert ran.status == 1
    (kept,) = (tmp_path / "results").glob("*incomplete.json")
    assert hits(json.loads(kept.read_text())) == {"cold": 0, "warm": 62_496}
    assert str(kept) in ran.err


def test_wrong_belief_is_said_before_anything_is_sent(measure: Hitlab) -> None:
    with emulate.start("vllm", faults=Faults(die_post=1)) as server:
        ran = measure("--engine", "vllm", "--base-url", server.base_url, "--block-size", 32)
    assert "you said 32, the engine says 16" in " ".join(ran.err.split())


def test_option_that_a_break_does_not_read_is_said(measure: Hitlab) -> None:
    ran = measure("--engine", "vllm", "--break-mode", "salt", "--break-at", 5, "--dry-run")
    assert "--break-at means nothing with --break-mode salt" in ran.err


def test_responses_that_count_nothing_pass_no_check_of_their_count(measure: Hitlab) -> None:
    found = document(measure("--engine", "vllm", "--emulate", "--fault", "cached-tokens=null", "--json"))
    assert "responses agree with counters" not in {each["name"] for each in found["checks"]}
