"""Writes the README's command reference from the commands themselves.

python docs/reference.py           # rewrite it
python docs/reference.py --check   # exit status 1 when it is out of date
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from hitlab.cli import COMMANDS, build_app

README = Path(__file__).resolve().parent.parent / "README.md"
BEGIN, END = "<!-- reference: written by docs/reference.py -->", "<!-- end of reference -->"


def reference() -> str:
    """The reference as Markdown."""
    group: Any = typer.main.get_command(build_app())
    return "\n".join(line for name in COMMANDS for line in _command(name, group.commands[name]))


def _command(path: str, command: Any) -> Iterator[str]:
    children = getattr(command, "commands", None)
    if children:
        for name, child in children.items():
            yield from _command(f"{path} {name}", child)
        return
    summary, *_, example = [line.strip() for line in command.help.splitlines() if line.strip()]
    yield from (f"### `hitlab {path}`", "", summary, "", f"`{example.removeprefix('Example: ')}`", "")
    yield from ("| option | default | meaning |", "| --- | --- | --- |")
    for parameter in command.params:
        if parameter.opts == ["--help"]:
            continue
        named = parameter.opts[0].startswith("-")
        names = ", ".join(f"`{name}`" for name in (parameter.opts if named else [parameter.name.upper()]))
        default = "" if parameter.default in (None, False) or parameter.required else f"`{parameter.default}`"
        yield f"| {names} | {'required' if parameter.required else default} | {parameter.help} |"
    yield ""


def main() -> None:
    """Rewrite the README, or check it."""
    text = README.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    fresh = f"{before}{BEGIN}\n\n{reference()}\n{END}{after}"
    if "--check" in sys.argv[1:]:
        sys.exit(fresh != text)
    README.write_text(fresh)


if __name__ == "__main__":
    main()
