"""Members are found, load by their own names only, and are all checked against their protocols by mypy."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from hitlab import families
from hitlab.errors import UsageError


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
    assert families.engine("vLLM") is families.engine("vllm")
    assert families.policy("S3FIFO") is families.policy("s3fifo")


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
