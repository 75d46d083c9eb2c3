"""How a command says where an output is."""

from pathlib import Path

from hitlab.files import written


def said(path: Path) -> str:
    """Where an output was written, in words: not at `path` where something else has been put since the start."""
    place = written(path)
    return str(path) if place == path else f"{place}, as {path} was changed meanwhile and is kept"
