"""The public Python face: small, typed, light, equal to the command line, and as docs/python.md shows it."""

import asyncio
import dataclasses
import doctest
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from helpers import Hitlab

import hitlab as hl
from hitlab.errors import InputError, UsageError


def test_what_is_public_is_this_and_nothing_else() -> None:
    assert hl.__all__ == [
        "HitlabError",
        "__version__",
        "hit_curve",
        "measure",
        "measure_async",
        "predict",
        "read_result",
        "read_trace",
        "replay",
        "sweep",
    ]
    assert dir(hl) == sorted(hl.__all__)
    assert all(getattr(hl, name) for name in hl.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        hl.nothing  # noqa: B018


def test_importing_it_imports_no_library(root: Path) -> None:
    script = "import sys; before = set(sys.modules); import hitlab; print(*sorted(set(sys.modules) - before))"
    ran = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=True)
    assert {name for name in ran.stdout.split() if name.startswith("hitlab")} == {"hitlab"}
    libraries = {"typer", "rich", "numpy", "msgspec", "httpx", "numba", "dataclasses", "asyncio"}
    assert libraries.isdisjoint(name.partition(".")[0] for name in ran.stdout.split())


def test_predicting_imports_nothing_heavy(root: Path) -> None:
    script = "import sys, hitlab; hitlab.predict(); print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=True)
    assert {"numpy", "msgspec", "httpx", "numba", "rich", "typer"}.isdisjoint(ran.stdout.split())


def test_the_page_shows_what_happens(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)
    tests = doctest.DocTestParser().get_doctest((root / "docs/python.md").read_text(), {}, "python.md", None, 0)
    assert len(tests.examples) > 20
    said: list[str] = []
    failed = doctest.DocTestRunner(verbose=False).run(tests, out=said.append).failed
    assert not failed, "".join(said)


def test_a_prediction_is_the_command_lines(hitlab: Hitlab) -> None:
    assert hl.predict(prefix_tokens=1000, block_tokens=16).hit_tokens == 62_496
    found = hl.predict(requests=40, groups=4, ranks=2, block_tokens=64, break_mode="capacity")
    shown = json.loads(
        hitlab("predict", "-n", 40, "--groups", 4, "--dp", 2, "-B", 64, "--break-mode", "capacity", "--json").out
    )
    assert (found.hit_tokens, found.prompt_tokens, found.hit_rate) == tuple(
        shown[name] for name in ("hit_tokens", "prompt_tokens", "hit_rate")
    )
    assert [(each.name, each.hit_tokens) for each in found.phases] == [
        (each["name"], each["hit_tokens"]) for each in shown["phases"]
    ]


def test_predictions_and_results_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        hl.predict().ranks = 2  # type: ignore[misc]
    result = hl.measure("vllm", emulate=True, requests=4)
    with pytest.raises(AttributeError):
        result.valid = False  # type: ignore[misc]


def test_a_replay_and_a_sweep_are_the_command_lines(hitlab: Hitlab, chats: Path, tmp_path: Path) -> None:
    trace = hl.read_trace(chats)
    shown = json.loads(hitlab("replay", chats, "--policy", "s3fifo", "--capacity", 4096, "--json").out)
    assert hl.replay(trace, "s3fifo", 4096).hit_rate == shown["overall_hit_rate"]
    points = hl.sweep(trace, "lru,fifo", "100:900:lin3")
    swept = hitlab("sweep", chats, "--policy", "lru,fifo", "--capacity", "100:900:lin3", "--out", tmp_path, "--json")
    assert points.rows() == json.loads(swept.out)["points"]
    assert len(points) == len(points[:4]) + 2 == 6
    assert [point.capacity_blocks for point in points[:3]] == [100, 500, 900]


def test_a_curve_is_a_sweep_at_every_capacity(chats: Path) -> None:
    trace = hl.read_trace(chats)
    curve = hl.hit_curve(trace)
    for point in hl.sweep(trace, ["lru"], [1, 77, 5000]):
        assert curve.hit_tokens(point.capacity_blocks) == point.cold_hit_tokens
        assert curve.hit_rate(point.capacity_blocks) == point.cold_token_hit_rate
    enough = curve.capacity_blocks(share=0.5)
    assert curve.hit_tokens(enough) >= curve.hit_tokens(10**9) / 2 > curve.hit_tokens(enough - 1)
    with pytest.raises(UsageError, match="replay it at each capacity with sweep"):
        hl.hit_curve(trace, "s3fifo")


def test_points_make_tables(chats: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points = hl.sweep(hl.read_trace(chats), ["lru"], [10, 20])
    assert points.to_arrow().to_pylist() == points.rows()
    made: list[Any] = []

    class Pandas:
        @staticmethod
        def DataFrame(rows: Any, columns: Any) -> str:  # noqa: N802
            made.append((rows, columns))
            return "a frame"

    monkeypatch.setitem(sys.modules, "pandas", Pandas)
    assert points.to_pandas() == "a frame"
    assert made == [(points.rows(), list(points.rows()[0]))]
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UsageError, match="pip install pandas"):
        points.to_pandas()


def test_a_measurement_is_the_command_lines(hitlab: Hitlab, tmp_path: Path) -> None:
    asked = ("--requests", 8, "--break-mode", "salt", "--block-size", 32, "--seed", 5)
    shown = json.loads(hitlab("measure", "--engine", "vllm", "--emulate", *asked, "--out", tmp_path, "--json").out)
    result = hl.measure("vllm", emulate=True, requests=8, break_mode="salt", block_tokens=32, seed=5)
    assert [msgspec.to_builtins(each)["prompts_sha256"] for each in result.phases] == [
        each["prompts_sha256"] for each in shown["phases"]
    ]
    assert (result.verdict, result.explanation) == (shown["verdict"], shown["explanation"])
    assert [each.hit_tokens for each in result.phases] == [each["hit_tokens"] for each in shown["phases"]]


def test_plain_measuring_works_where_an_event_loop_runs() -> None:
    async def notebook() -> tuple[str, str]:
        plain = hl.measure("sglang", emulate=True, requests=4)
        awaited = await hl.measure_async("sglang", emulate=True, requests=4)
        return plain.explanation, awaited.explanation

    plain, awaited = asyncio.run(notebook())
    assert plain == awaited


def test_what_can_not_be_measured_is_an_error_that_names_the_field() -> None:
    with pytest.raises(UsageError, match="`base_url` names a server and `emulate` starts one"):
        hl.measure("vllm", "http://127.0.0.1:8000", emulate=True)
    with pytest.raises(UsageError, match="`concurrency` is 0"):
        hl.measure("vllm", emulate=True, concurrency=0)
    with pytest.raises(hl.HitlabError, match="`base_url`"):
        hl.measure("vllm", "http://127.0.0.1:9")


def test_kept_runs_and_labs_are_read_and_nothing_else(root: Path, tmp_path: Path) -> None:
    reference = root / "results" / "reference"
    assert hl.read_result(reference / "20261129T235952-vllm-none.json").verdict == "healthy"
    lab = hl.read_result(str(reference / "20261130T001819-lab-hit-rate-vllm.json"))
    assert lab.agrees
    (tmp_path / "no.json").write_text("{}")
    with pytest.raises(InputError):
        hl.read_result(tmp_path / "no.json")


@pytest.mark.parametrize("key", ["sekrét", "sekret-tail\n", " sekret", "sekr\tt"])
def test_a_key_that_no_header_carries_is_refused_here_and_there_and_never_printed(
    hitlab: Hitlab, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    with pytest.raises(UsageError, match="`api_key` has characters that no key has") as refused:
        hl.measure("vllm", "http://127.0.0.1:9", api_key=key)
    assert "sekr" not in repr(refused.value) + str(refused.value)
    monkeypatch.setenv("HITLAB_KEY", key)
    ran = hitlab("measure", "--engine", "vllm", "--base-url", "http://127.0.0.1:9", "--api-key-env", "HITLAB_KEY")
    assert (ran.status, ran.err) == (
        2,
        "hitlab: the key in HITLAB_KEY, named by --api-key-env, has characters that no key has; "
        "is there a line break or a space at its end?\n",
    )
