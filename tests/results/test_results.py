"""Kept results: read whatever version wrote them, listed, shown, compared; the published schema."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from helpers import Hitlab

from hitlab.errors import InputError
from hitlab.results import store
from hitlab.results.diff import difference
from hitlab.results.run_result import SCHEMA_VERSION, Result

# A file of schema version 1 as the first hitlab wrote it. Never add a field here: new fields have defaults.
FIRST: dict[str, Any] = {
    "schema_version": 1,
    "hitlab_version": "0.1.0",
    "started_utc": "2026-11-29T23:10:24+00:00",
    "engine": {
        "name": "vllm",
        "title": "vLLM",
        "version": "0.32.0",
        "model": "tiny",
        "base_url": "http://127.0.0.1:8000",
        "block_tokens": 16,
        "capacity_blocks": 2048,
        "data_parallel_ranks": 1,
        "source": "real",
    },
    "experiment": {
        "shape": {"requests": 64, "prefix_tokens": 1000, "suffix_tokens": 200, "groups": 1},
        "break_mode": "none",
        "options": {"at": 0, "fixed": False},
        "seed": 0,
    },
    "phases": [
        {
            "name": "warm",
            "requests": 63,
            "prompt_tokens": 75600,
            "queried_tokens": 75600,
            "hit_tokens": 62496,
            "hit_rate": 62496 / 75600,
            "closed_form_hit_tokens": 62496,
            "model_hit_tokens": 62496,
            "error_tokens": 0,
            "error_points": 0.0,
            "agrees": True,
            "computed_tokens": 13104,
            "median_latency_s": 0.0013,
            "reported_cached_tokens": 62496,
            "external_hit_tokens": 0,
            "evicted_tokens": None,
            "counters": "vllm:prefix_cache",
            "prompts_sha256": "ab",
        }
    ],
    "checks": [{"name": "cold start", "ok": True, "detail": "nothing hit"}],
    "complete": True,
    "valid": True,
    "agrees": True,
    "verdict": "healthy",
    "explanation": "as predicted",
    "notes": [],
    "seed": 0,
    "counters_before": {},
    "counters_after": {},
}


def written(folder: Path, name: str, **changes: Any) -> Path:
    path = folder / name
    path.write_text(json.dumps(FIRST | changes))
    return path


def result(**changes: Any) -> Result:
    return msgspec.convert(FIRST | changes, Result)


def test_file_of_the_first_version_loads(tmp_path: Path) -> None:
    loaded = store.load(written(tmp_path, "a.json"))
    assert loaded.phases[0].hit_tokens == 62_496
    assert loaded.phases[0].overall_hit_rate is None


def test_field_of_a_later_version_is_passed_over(tmp_path: Path) -> None:
    assert store.load(written(tmp_path, "a.json", mood="sunny")).verdict == "healthy"


def test_newer_schema_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"schema 2, this one reads up to 1\); update hitlab"):
        store.load(written(tmp_path, "a.json", schema_version=SCHEMA_VERSION + 1, phases="all new"))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema_version": 1}', '{"schema_version": 1, "phases', "\xff"])
def test_file_that_is_no_result_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(InputError, match="not a result") as caught:
        store.load(path)
    assert "a.json" in str(caught.value)


def test_schema_requires_no_more_than_the_first_version_wrote(root: Path) -> None:
    required = json.loads((root / "docs/schemas/result.schema.json").read_text())["$defs"]
    for name, example in (
        ("Result", FIRST),
        ("EngineInfo", FIRST["engine"]),
        ("PhaseResult", FIRST["phases"][0]),
        ("Check", FIRST["checks"][0]),
    ):
        assert set(required[name]["required"]) <= set(example), f"a new field of {name} needs a default"


def test_difference_names_what_was_asked_and_each_phases_tokens() -> None:
    asked = FIRST["experiment"] | {"shape": FIRST["experiment"]["shape"] | {"groups": 4}, "workload": "x"}
    phase = FIRST["phases"][0] | {"hit_tokens": 61_504, "prompts_sha256": "cd"}
    found = difference(result(), result(experiment=asked, phases=[phase, phase | {"name": "break"}]))
    assert [(each.name, each.a, each.b) for each in found.asked] == [
        ("shape.groups", 1, 4),
        ("workload", "shared-prefix", "x"),
    ]
    warm, broken = found.phases
    assert warm.a
    assert warm.b
    assert warm.b.hit_tokens - warm.a.hit_tokens == -992
    assert (warm.same_prompts, warm.same_tokens, broken.a) == (False, False, None)
    assert not found.same_tokens


def test_result_is_no_different_from_itself_wherever_it_ran() -> None:
    elsewhere = FIRST["engine"] | {"base_url": "http://gpu-box:8000"}
    found = difference(result(), result(engine=elsewhere, started_utc="2027-01-01T00:00:00+00:00"))
    assert (found.asked, found.same_tokens) == ([], True)


@pytest.fixture
def folder(hitlab: Hitlab, tmp_path: Path) -> Path:
    """Two real results, an old file, a newer one and a broken one."""
    for arguments in (["--block-size", 16], ["--block-size", 64]):
        hitlab("measure", "--engine", "vllm", "--emulate", "--requests", 8, "--out", tmp_path, *arguments)
    for path in sorted(tmp_path.glob("*.json")):
        block = json.loads(path.read_text())["engine"]["block_tokens"]
        path.rename(tmp_path / f"20270101T00000{block // 16}-vllm-none.json")
    written(tmp_path, "20261129T231024-vllm-none.json")
    written(tmp_path, "20990101T000000-new.json", schema_version=99)
    (tmp_path / "20990101T000000-broken.json").write_text("{")
    return tmp_path


def test_list_has_every_readable_result_and_says_what_it_left_out(hitlab: Hitlab, folder: Path) -> None:
    ran = hitlab("results", "list", "--folder", folder)
    assert ran.status == 0
    assert "3 results" in ran.out
    assert ran.err.count("left out") == 2
    assert "update hitlab" in ran.err
    assert max(map(len, ran.out.splitlines())) <= 80
    found = json.loads(hitlab("results", "list", "--folder", folder, "--json").out)
    assert [Path(each["file"]).name[:16] for each in found] == [
        "20261129T231024-",
        "20270101T000001-",
        "20270101T000004-",
    ]
    assert found[1]["hit_rate"] == 7 * 992 / 9600


def test_show_prints_what_measure_printed(hitlab: Hitlab, folder: Path) -> None:
    ran = hitlab("results", "show", "20270101T000001", "--folder", folder)
    assert "EMULATED healthy: 6,944 of 9,600 prompt tokens hit" in ran.out
    shown = json.loads(hitlab("results", "show", folder / "20261129T231024-vllm-none.json", "--json").out)
    since = dict.fromkeys(("overall_hit_rate", "local_hit_tokens", "host_hit_tokens", "storage_hit_tokens"))
    assert shown["phases"][0] == FIRST["phases"][0] | since | {"role": "unbroken"}


def test_diff_tells_the_tokens_another_block_size_costs(hitlab: Hitlab, folder: Path) -> None:
    ran = hitlab("results", "diff", "20270101T000001", "20270101T000004", "--folder", folder)
    assert ran.status == 3
    assert "engine.block_tokens" in ran.out
    assert "-224" in ran.out  # 7 requests, 992 - 960 tokens each
    assert max(map(len, ran.out.splitlines())) <= 80
    same = hitlab("results", "diff", "20270101T000001", "20270101T000001", "--folder", folder)
    assert (same.status, "asked: the same" in same.out) == (0, True)


@pytest.mark.parametrize(("name", "says"), [("2027", "2 results begin"), ("1999", "no result begins")])
def test_name_that_means_no_single_result_is_refused(hitlab: Hitlab, folder: Path, name: str, says: str) -> None:
    ran = hitlab("results", "show", name, "--folder", folder)
    assert (ran.status, says in ran.err) == (1, True)


def test_folder_that_is_not_there_is_one_line(hitlab: Hitlab, tmp_path: Path) -> None:
    ran = hitlab("results", "list", "--folder", tmp_path / "none")
    assert (ran.status, ran.err.count("\n")) == (1, 1)


def test_latest_is_the_last_started_also_of_one_second(hitlab: Hitlab, tmp_path: Path) -> None:
    names = ["20270101T000000-vllm-none.json", "20270101T000001-vllm-none.json"]
    names += [f"20270101T000001-vllm-none-{number}.json" for number in range(2, 12)]
    for name in reversed(names):
        written(tmp_path, name)
    assert [path.name for path in store.kept(tmp_path)] == names
    assert store.find("latest", tmp_path).name == names[-1]


def test_latest_is_a_result_whatever_else_lies_there(tmp_path: Path) -> None:
    wanted = written(tmp_path, "20270101T000000-vllm-none.json")
    (tmp_path / "zoo.json").write_text('{"animals": 9}')
    (tmp_path / "zz.json").write_text("{")
    (tmp_path / "zz-lab.json").write_text('{"schema_version": 1, "kind": "lab"}')
    assert store.find("latest", tmp_path) == wanted
    wanted.unlink()
    with pytest.raises(InputError, match="no results"):
        store.find("latest", tmp_path)


def test_every_name_that_the_list_prints_finds_its_own_result(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    names = [
        *("20270101T000000-vllm-none.json", "20270101T000000-vllm-none-2.json", "20270101T000000-sglang-none.json"),
        *("20270101T000001-vllm-none.json", "20270101T000002-vllm-none.json", "below/20270101T000002-vllm-none.json"),
    ]
    for name in names:
        written(tmp_path, name)
    found = store.short_names(store.kept(tmp_path), tmp_path)
    assert {str(path.relative_to(tmp_path)): name for path, name in found.items()} == {
        names[0]: "20270101T000000-vllm-none",
        names[1]: "20270101T000000-vllm-none-2",
        names[2]: "20270101T000000-sglang",
        names[3]: "20270101T000001",
        names[4]: names[4],
        names[5]: names[5],
    }
    assert all(store.find(name, tmp_path) == path for path, name in found.items())


def test_ambiguous_name_is_answered_with_names_to_choose_from(hitlab: Hitlab, folder: Path) -> None:
    ran = hitlab("results", "show", "2027", "--folder", folder)
    assert ran.err.strip().endswith("choose from 20270101T000001, 20270101T000004")
    for number in range(10, 17):
        written(folder, f"20270101T0000{number}-vllm-none.json")
    assert hitlab("results", "show", "2027", "--folder", folder).err.strip().endswith("and 4 more")


@pytest.mark.parametrize("name", ["20270101T000000-lab-x-vllm.json", "renamed.json"])
def test_lab_is_not_shown_but_pointed_out(hitlab: Hitlab, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text('{"schema_version": 1, "kind": "lab"}')
    for asked in (name[:10], tmp_path / name):
        ran = hitlab("results", "show", asked, "--folder", tmp_path)
        assert (ran.status, ran.err.count("\n")) == (1, 1)
        assert "is a lab; see hitlab report" in ran.err


def test_list_shows_the_probe_of_a_flood_and_no_rate_of_a_run_that_can_not_be_trusted(
    hitlab: Hitlab, tmp_path: Path
) -> None:
    warm = FIRST["phases"][0]
    probe = warm | {"name": "evicted", "requests": 1, "queried_tokens": 1200, "hit_tokens": 0, "hit_rate": 0.0}
    flooded = {"experiment": FIRST["experiment"] | {"break_mode": "capacity"}}
    written(tmp_path, "20270101T000000-a.json", phases=[warm, probe, warm | {"name": "recovery"}], **flooded)
    written(tmp_path, "20270101T000001-b.json", valid=False)
    written(tmp_path, "20270101T000002-c.json", valid=False, complete=False)
    ran = hitlab("results", "list", "--folder", tmp_path)
    rows = [" ".join(line.split()) for line in ran.out.splitlines() if line.startswith(" 2027")]
    assert [row.split("S=200 ")[1] for row in rows] == ["0.000 % healthy", "- INVALID", "- interrupted"]
    assert "of the one request that probes what it left" in ran.out


def test_diff_leaves_one_line_between_its_parts(hitlab: Hitlab, folder: Path) -> None:
    for other in ("20270101T000004", "20270101T000001"):
        ran = hitlab("results", "diff", "20270101T000001", other, "--folder", folder)
        lines = [line.strip() for line in ran.out.splitlines()]
        assert ("", "") not in pairwise(lines)
        assert lines.count("") == 3
