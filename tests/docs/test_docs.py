"""The pages keep their word: what tools/ writes is up to date, links lead somewhere, commands and options exist."""

import subprocess
import sys
from pathlib import Path

import pytest

from hitlab.cli import COMMANDS


@pytest.mark.parametrize("tool", ["reference", "schemas"])
def test_what_a_tool_writes_is_up_to_date(root: Path, tool: str) -> None:
    ran = subprocess.run([sys.executable, f"tools/{tool}.py", "--check"], cwd=root, check=False)
    assert ran.returncode == 0, f"run python tools/{tool}.py"


def test_the_reference_has_every_command(root: Path) -> None:
    reference = (root / "docs" / "reference.md").read_text()
    assert [name for name in COMMANDS if f"## `hitlab {name}" not in reference] == []
