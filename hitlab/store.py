"""Results on disk: written whole or not at all, and never over another one."""

import os
import re
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile

import msgspec

from hitlab.errors import InputError
from hitlab.result import Result


def make_ready(folder: Path) -> None:
    """Make the folder and try it, so that no run is lost for want of a place. Raises InputError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=folder, prefix=".try-"):
            pass
    except OSError as error:
        raise InputError(
            f"results can't be written: {error.strerror}", where=str(folder), todo="name another --out"
        ) from None


def save(result: Result, folder: Path) -> Path:
    """Write a result and return its file. Raises InputError, with nothing half-written."""
    data = msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n"
    stem = _stem(result)
    temporary = folder / f".{stem}.{os.getpid()}"
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        return _place(temporary, folder, stem)
    except OSError as error:
        raise InputError(f"the result can't be written: {error.strerror}", where=str(folder)) from None
    finally:
        with suppress(OSError):
            temporary.unlink()


def _place(temporary: Path, folder: Path, stem: str) -> Path:
    """Give the finished file its name; a link never replaces a file, as a rename would."""
    number = 1
    while True:
        path = folder / (f"{stem}.json" if number == 1 else f"{stem}-{number}.json")
        try:
            path.hardlink_to(temporary)
        except FileExistsError:
            number += 1
        else:
            return path


def _stem(result: Result) -> str:
    moment = re.sub(r"[-:]|\+.*", "", result.started_utc)
    parts = [moment, result.engine.name, str(result.experiment["break_mode"])]
    if result.engine.source == "emulated":
        parts.append("EMULATED")
    if not result.complete:
        parts.append("incomplete")
    return "-".join(parts)
