"""The policy that docs/policies.md writes works as it stands there, as one file put into policies/."""

import json
import re
import shutil
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from hitlab import families
from hitlab.errors import HitlabError, InputError
from hitlab.simulation.policy import load_policy
from hitlab.simulation.replay import compiled, replay
from hitlab.traces.trace import Trace

REQUESTS = [(10, [block]) for block in (1, 2, 3, 1, 2)]


@pytest.fixture(scope="module")
def source(root: Path) -> str:
    (block,) = re.findall(r"^```python\n(.*?)^```$", (root / "docs" / "policies.md").read_text(), re.M | re.S)
    return str(block)


@pytest.fixture
def mru(source: str, tmp_path: Path) -> Any:
    file = tmp_path / "mru.py"
    file.write_text(source)
    spec = spec_from_file_location("mru", file)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_hits_what_the_page_says_and_lru_does_not(mru: Any) -> None:
    trace = Trace.of(REQUESTS, 10)
    assert replay(trace, mru, 2, check_invariants=True).hit_tokens.tolist() == [0, 0, 0, 10, 0]
    assert replay(trace, load_policy("lru"), 2).hit_tokens.tolist() == [0] * 5


def test_it_sees_its_own_broken_arrays(mru: Any) -> None:
    def corrupting(state: Any, *columns: Any) -> None:
        compiled(mru)(state, *columns)
        state.here.fill(True)

    with pytest.raises(HitlabError, match="does not hold each resident block once"):
        replay(Trace.of(REQUESTS, 10), mru, 2, kernel=corrupting, check_invariants=True)


@pytest.mark.parametrize("missing", ["VARIANT", "new", "access"])
def test_file_that_lacks_something_is_named_with_what_it_lacks(
    mru: Any, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    delattr(mru, missing)
    monkeypatch.setattr(families, "load", lambda family, name: mru)
    with pytest.raises(InputError, match=rf"mru\.py: offers no {missing}; "):
        load_policy("mru")


def test_failure_of_its_rules_names_the_file(mru: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def uncompilable(state: Any, block: int, now: int) -> None:
        vars(state)

    monkeypatch.setattr(mru, "access", uncompilable)
    with pytest.raises(InputError, match=r"mru\.py: its rules can't be compiled: "):
        replay(Trace.of(REQUESTS, 10), mru, 2)


def test_failure_of_its_new_names_the_file(mru: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mru, "new", lambda trace, capacity_blocks: 1 // 0)
    with pytest.raises(InputError, match=r"mru\.py: `new` failed: ZeroDivisionError"):
        replay(Trace.of(REQUESTS, 10), mru, 2)


def test_the_file_alone_makes_it_a_policy_of_the_command_line(source: str, root: Path, tmp_path: Path) -> None:
    for folder in ("hitlab", "engines", "workloads", "policies", "labs"):
        shutil.copytree(root / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "policies" / "mru.py").write_text(source)
    rows = [{"input_length": tokens, "hash_ids": blocks} for tokens, blocks in REQUESTS]
    (tmp_path / "trace.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = ("replay", "trace.jsonl", "--block-size", "10", "--policy", "mru", "--capacity", "2")
    ran = subprocess.run(
        [sys.executable, "-m", "hitlab", *command, "--check-invariants", "--per-request", "--json"],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(tmp_path), "NUMBA_CACHE_DIR": str(tmp_path / "kernels")},
        capture_output=True,
        text=True,
        check=True,
    )
    document = json.loads(ran.stdout)
    assert document["policy"] == "MRU"
    assert [each["hit_tokens"] for each in document["per_request"]] == [0, 0, 0, 10, 0]
