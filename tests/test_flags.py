"""Messages of the core name fields; the command line shows the flags that set them."""

import ast
import re
from pathlib import Path
from typing import Any

import typer
from helpers import Hitlab

from hitlab.cli import build_app
from hitlab.flags import FLAGS, in_flags

ROOMS_WITHOUT_FLAGS = ("experiment", "measurement", "client", "recordings", "cache", "traces", "simulation", "files")


def options(command: Any) -> set[str]:
    own = {name for parameter in command.params for name in parameter.opts}
    return own.union(*map(options, getattr(command, "commands", {}).values()))


def test_every_flag_of_the_table_is_one_of_the_command_line() -> None:
    group: Any = typer.main.get_command(build_app())
    assert set(FLAGS.values()) <= options(group)
    assert len(set(FLAGS.values())) == len(FLAGS)


def test_a_field_is_shown_as_its_flag_and_anything_else_as_it_stands() -> None:
    assert in_flags("`ranks` is 0; give 1 or more") == "--dp is 0; give 1 or more"
    assert in_flags("prompt `x`, `vllm serve`, ranks") == "prompt `x`, `vllm serve`, ranks"


def test_the_command_line_names_flags(hitlab: Hitlab) -> None:
    assert hitlab("predict", "--prefix-len", -1).err == "hitlab: --prefix-len is -1; give 0 or more\n"
    assert hitlab("predict", "--workload", "multi-turn").err.endswith("give --output-len 2 or more\n")


def test_the_core_names_no_flag_of_the_command_line(root: Path) -> None:
    """Engines' own flags, and whole commands to type, may be named anywhere."""
    ours = re.compile("|".join(rf"(?<![\w-]){re.escape(flag)}(?![\w-])" for flag in sorted(FLAGS.values())))
    found = [
        f"{file.relative_to(root)}:{node.lineno}: {node.value}"
        for room in ROOMS_WITHOUT_FLAGS
        for file in (root / "hitlab" / room).rglob("*.py")
        for node in texts(ast.parse(file.read_text()))
        if ours.search(node.value) and "hitlab " not in node.value
    ]
    assert found == []


def texts(tree: ast.Module) -> list[Any]:
    """Strings of a module that are neither docstrings nor a command to type."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    first = [node.body[0] for node in ast.walk(tree) if isinstance(node, documented)]
    left_out = {id(node.value) for node in first if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr) and "hitlab " in ast.unparse(node):
            left_out |= {id(part) for part in node.values}
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in left_out
    ]
