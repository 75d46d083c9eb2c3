"""The rule of named outputs: none replaces an input, or a file that hitlab did not write.

Every option that names a file to write goes through `claim` before any work starts, so that no hour of work ends in a
refusal. docs/decisions/0007 says why the rule is as it is.
"""

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hitlab.errors import InputError, UsageError
from hitlab.files.writing import is_stream, no_folder, remember, state_of, target_of, try_folder, unwritable


@dataclass(frozen=True, slots=True)
class Output:
    """A file that a command is asked to write.

    `option` names it on the command line. `kind` is what hitlab writes there, in words ("a table of points"), and
    `wrote` says of an existing file whether it is such a one; an exception is a no.
    """

    option: str
    path: Path
    kind: str
    wrote: Callable[[Path], bool]


def claim(outputs: Sequence[Output], inputs: Iterable[Path] = (), *, force: bool = False) -> None:
    """Check that each output may be written, and that it can be.

    Refused, also with `force`: a file that is one of `inputs` (an input folder stands for every .json file in it),
    through whatever links or names; one that another output names, or that stdout or stderr goes to. Refused without
    `force`: an existing file with something in it that hitlab did not write as this kind of output. Devices and pipes
    are written to as they are.

    The work may take hours. What stands at an output's place is remembered, and `replacing` keeps whatever else it
    finds there in the end, also with `force`.

    Raises UsageError for what can never be meant, InputError for the rest; nothing is left behind or changed.
    """
    if not outputs:
        return
    taken: dict[object, str] = {}
    for number in (1, 2):
        taken |= _printed_to(number)
    for each in inputs:
        taken |= {key: f"is the input {file}" for file in _files(each) for key in _keys(file)}
    for output in outputs:
        target = target_of(output.path)
        if target.is_dir():
            raise InputError("is a folder", where=str(output.path), todo="name a file in it")
        keys = _keys(target)
        for key in keys & taken.keys():
            raise UsageError(f"{output.option} {output.path} {taken[key]}", todo="name another file")
        taken |= dict.fromkeys(keys, f"is also the file of {output.option}")
    states = [state_of(target_of(output.path)) for output in outputs]  # before the checks: they are of this state
    for output in outputs:
        target = target_of(output.path)
        if not force and not is_stream(target) and not _replaceable(target, output):
            raise InputError(
                f"exists and is not {output.kind} that hitlab wrote",
                where=str(output.path),
                todo=f"name another file with {output.option}, or overwrite this one with `force`",
            )
    for output in outputs:
        _check_place(output.path)
    for output, state in zip(outputs, states, strict=True):
        remember(output.path, state)


def beginning(path: Path, most_bytes: int) -> bytes:
    """The first bytes of a file. Raises OSError."""
    with path.open("rb") as file:
        return file.read(most_bytes)


def ending(path: Path, most_bytes: int) -> bytes:
    """The last bytes of a file. Raises OSError."""
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - most_bytes))
        return file.read()


def _keys(path: Path) -> set[object]:
    """What tells a file from every other one; nothing for a terminal or another device that many things may share.

    A file that does not exist yet is known by its place, an existing one by its inode, which all its links share.
    """
    try:
        found = path.stat()
    except OSError:
        return {str(_resolved(path))}
    return set() if stat.S_ISCHR(found.st_mode) else {(found.st_dev, found.st_ino)}


def _resolved(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError):
        return path


def _printed_to(number: int) -> dict[object, str]:
    """The file that stdout (1) or stderr (2) goes to, if it is one."""
    try:
        found = os.fstat(number)
    except OSError:  # closed
        return {}
    where = "is where this command prints"
    return {(found.st_dev, found.st_ino): where} if stat.S_ISREG(found.st_mode) else {}


def _files(path: Path) -> Iterator[Path]:
    if os.path.isdir(path):  # noqa: PTH112  # Path.is_dir raises for a name that is too long
        yield from (file for file in path.rglob("*") if ".json" in file.suffixes)
    else:
        yield path


def _replaceable(target: Path, output: Output) -> bool:
    try:
        return not target.exists() or target.stat().st_size == 0 or output.wrote(target)
    except Exception:  # what can't be read as hitlab's is not hitlab's, whatever goes wrong in reading it
        return False


def _check_place(path: Path) -> None:
    """Try to write there, and leave what is there. Raises InputError."""
    target = target_of(path)
    if is_stream(target):
        return
    if not target.parent.is_dir():
        raise no_folder(target)
    try:
        if target.exists() and not os.access(target, os.W_OK):
            raise PermissionError(13, os.strerror(13))  # a rename would not ask
        try_folder(target.parent)
    except OSError as error:
        raise unwritable(path, error) from None
