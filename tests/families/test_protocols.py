"""Members are found, load by their own names only, and are all checked against their protocols by mypy."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from hitlab import families
from hitlab.client.dialect import load_engine
from hitlab.errors import InputError, UsageError
from hitlab.simulation.policy import load_policy


@pytest.mark.parametrize("family", families.FAMILIES)
def test_every_family_has_members_and_each_loads(family: str) -> None:
    members = families.names(family)
    assert members
    for name in members:
        assert families.load(family, name).__doc__


@pytest.mark.parametrize("family", families.FAMILIES)
def test_an_unknown_name_says_what_it_is_no_name_of(family: str) -> None:
    with pytest.raises(UsageError, match=f"no {families.FAMILIES[family]} named 'nobody'"):
        families.load(family, "nobody")


def test_names_are_known_in_any_case() -> None:
    assert load_engine("vLLM") is load_engine("vllm")
    assert load_policy("S3FIFO") is load_policy("s3fifo")


def test_mypy_holds_every_member_against_its_protocol() -> None:
    tree = ast.parse(Path(__file__).with_name("protocols.py").read_text())
    held = {
        (node.module, alias.name)
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module and not node.module.startswith("hitlab")
        for alias in node.names
    }
    members = {
        (family, path.stem)
        for family in families.FAMILIES
        for path in Path(importlib.import_module(f"hitlab.{family}").__path__[0]).glob("*.py")
        if path.stem != "__init__"
    }
    assert held == members


@pytest.mark.parametrize("stray", ["hitlab", "run", "tests", "docs", "benchmarks", "examples"])
def test_nothing_of_a_checkout_but_the_families_imports_as_part_of_the_package(root: Path, stray: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", f"import hitlab.{stray}"], cwd=root, capture_output=True, text=True, check=False
    )
    assert f"No module named 'hitlab.{stray}'" in ran.stderr


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder whose files are members of labs."""
    package = importlib.import_module("hitlab.labs")
    monkeypatch.setattr(package, "__path__", [str(tmp_path)])
    monkeypatch.setattr(package.__spec__, "submodule_search_locations", [str(tmp_path)])
    return tmp_path


def test_every_name_that_is_listed_can_be_loaded(folder: Path) -> None:
    for file in ("my_own.py", "Upper.py", "_3x.py", "my-own.py", "4y.py", "a b.py", "notes.txt"):
        (folder / file).write_text(f'"""{file}"""\n')
    assert families.names("labs") == ["3x", "my-own", "upper"]
    assert [families.load("labs", name).__doc__ for name in families.names("labs")] == [
        "_3x.py",
        "my_own.py",
        "Upper.py",
    ]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("LAB = (\n", "was never closed (line 1)"),
        ("\nimport no_such_module\n", "No module named 'no_such_module' (line"),
        ("LAB = 1 / 0\n", "ZeroDivisionError: division by zero (line 1)"),
    ],
)
def test_a_file_that_can_not_be_imported_is_named(folder: Path, content: str, says: str) -> None:
    (folder / "broken.py").write_text(content)
    with pytest.raises(InputError) as caught:
        families.load("labs", "broken")
    assert caught.value.where == str(folder / "broken.py")
    assert says in caught.value.what
