"""The command line stays light and in one piece: what a command imports, which help is shown, whose names it lists."""

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from hitlab.cli import COMMANDS, build_app

# Modules that load numba or matplotlib, which take a second: commands import them where they are used, and so does
# `predict` with what prints a document or a table.
AT_THE_POINT_OF_USE = {
    "_options.py": {"msgspec", "rich.console"},
    "_signals.py": {"asyncio"},
    "predict.py": {"hitlab.client.dialect"},
    "replay.py": {"hitlab.simulation"},
    "sweep.py": {"hitlab.cli", "hitlab.simulation", "hitlab.simulation.hit_curve"},
    "trace.py": {"hitlab.simulation"},
}


def loaded_by(root: Path, *arguments: str) -> set[str]:
    """Every module that is loaded when the command line has ended."""
    script = (
        "import sys\n"
        "from hitlab.cli import main\n"
        f"try: main({list(arguments)})\n"
        "except SystemExit: pass\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    ran = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=True)
    return set(ran.stderr.split())


@pytest.mark.parametrize("arguments", [["--help"], [], ["predictt"], ["--no-such-option"], ["--version"]])
def test_the_help_page_and_wrong_names_import_no_command(root: Path, arguments: list[str]) -> None:
    loaded = loaded_by(root, *arguments)
    assert "hitlab.cli" in loaded
    assert {f"hitlab.cli.{name}" for name in COMMANDS} & loaded == set()


def test_a_command_imports_no_other_one(root: Path) -> None:
    for called in ("measure", "replay", "results"):
        loaded = {name for name in COMMANDS if f"hitlab.cli.{name}" in loaded_by(root, called, "--help")}
        assert loaded == {called}


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command_loads_nothing_heavy(root: Path, command: str) -> None:
    loaded = {name.partition(".")[0] for name in loaded_by(root, command, "--help")}
    assert loaded & {"numba", "matplotlib", "pyarrow", "joblib", "uvicorn", "starlette"} == set()


def test_a_commands_line_on_the_help_page_is_the_first_line_of_its_own_help() -> None:
    group: Any = typer.main.get_command(build_app())
    assert list(COMMANDS.items()) == [
        (name, (group.commands[name].help or "").splitlines()[0].strip()) for name in COMMANDS
    ]


def test_the_word_after_two_dashes_is_the_command(root: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "run.py", "--", "predict", "--json"], cwd=root, capture_output=True, text=True, check=True
    )
    assert '"hit_tokens": 62496' in ran.stdout


@pytest.mark.parametrize(
    ("folder", "like", "command"),
    [("engines", "vllm", "measure"), ("workloads", "tenants", "predict"), ("workloads/breaks", "salt", "predict")],
)
def test_help_names_a_member_that_is_added_to_its_family(
    root: Path, tmp_path: Path, folder: str, like: str, command: str
) -> None:
    for name in ("hitlab", "engines", "workloads"):
        shutil.copytree(root / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(root / "run.py", tmp_path)
    shutil.copy(tmp_path / folder / f"{like}.py", tmp_path / folder / "brand_new.py")
    ran = subprocess.run(
        [sys.executable, "run.py", command, "--help"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert re.search(r"\bbrand-new\b", ran.stdout)


def files(root: Path) -> list[Path]:
    return sorted((root / "hitlab" / "cli").glob("*.py"))


def test_a_file_is_a_command_or_begins_with_an_underscore(root: Path) -> None:
    assert {file.stem for file in files(root) if not file.stem.startswith("_")} == set(COMMANDS)


def test_no_file_is_longer_than_300_lines(root: Path) -> None:
    assert [file.name for file in files(root) if len(file.read_text().splitlines()) > 300] == []


def test_imports_stand_at_the_top(root: Path) -> None:
    found: dict[str, set[str]] = {}
    for file in files(root):
        functions = [
            node
            for node in ast.walk(ast.parse(file.read_text()))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        inside = [node for function in functions for node in ast.walk(function)]
        names = {node.module or "" for node in inside if isinstance(node, ast.ImportFrom)}
        names |= {alias.name for node in inside if isinstance(node, ast.Import) for alias in node.names}
        if names:
            found[file.name] = names
    assert found == AT_THE_POINT_OF_USE


def test_numbers_and_tables_are_made_in_one_place(root: Path) -> None:
    """No command formats a percentage or builds a table of rich by itself."""
    by_hand = re.compile(r"100 \* [\w.]+:\.|:\.\d%\}|\bTable\(|add_column\(")
    found = [
        f"{file.name}: {line.strip()}"
        for file in files(root)
        if file.name not in ("_format.py", "_tables.py")
        for line in file.read_text().splitlines()
        if by_hand.search(line)
    ]
    assert found == []
