"""Writes docs/reference.md, every command with every option, from the commands themselves.

python tools/reference.py           # rewrite it
python tools/reference.py --check   # exit status 1 when it is out of date
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from hitlab.cli import COMMANDS, build_app

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference.md"
HEAD = """\
# Reference

Every command with every option, written by `python tools/reference.py` from the commands' own help. From a checkout
`python run.py` stands for `hitlab`.
"""


def reference() -> str:
    """The page as Markdown: a list of the commands, then a section for each."""
    group: Any = typer.main.get_command(build_app())
    leaves = [leaf for name in COMMANDS for leaf in _leaves(name, group.commands[name])]
    contents = [
        f"- [`hitlab {path}`](#hitlab-{path.replace(' ', '-')}): {_help(command)[0]}" for path, command in leaves
    ]
    sections = [line for path, command in leaves for line in _section(path, command)]
    return "\n".join([HEAD, *contents, *sections]) + "\n"


def _anchor(path: str) -> str:
    """The name that Markdown viewers give a command's heading."""
    return f"hitlab-{path}".replace(" ", "-")


def _leaves(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    """A command, or the commands below it, each with the words that call it."""
    children = getattr(command, "commands", None)
    if not children:
        yield path, command
        return
    for name, child in children.items():
        yield from _leaves(f"{path} {name}", child)


def _help(command: Any) -> tuple[str, str]:
    """First line of a command's help and its example, the last line."""
    summary, *_, example = [line.strip() for line in command.help.splitlines() if line.strip()]
    return summary, example.removeprefix("Example: ")


def _section(path: str, command: Any) -> Iterator[str]:
    summary, example = _help(command)
    yield from ("", f"## `hitlab {path}`", "", summary, "", f"`{example}`", "")
    yield from ("| option | default | meaning |", "| --- | --- | --- |")
    for parameter in command.params:
        if parameter.opts == ["--help"]:
            continue
        named = parameter.opts[0].startswith("-")
        names = ", ".join(f"`{name}`" for name in (parameter.opts if named else [parameter.name.upper()]))
        default = "" if parameter.default in (None, False, "") or parameter.required else f"`{parameter.default}`"
        meaning = parameter.help.replace("|", r"\|")
        yield f"| {names} | {'required' if parameter.required else default} | {meaning} |"


def main() -> None:
    """Rewrite the page, or check it."""
    fresh = reference()
    if "--check" in sys.argv[1:]:
        sys.exit(not PAGE.is_file() or PAGE.read_text() != fresh)
    PAGE.write_text(fresh)


if __name__ == "__main__":
    main()
