"""Results on disk: written whole or not at all, never over another one, and read whatever version wrote them."""

import os
import re
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile

import msgspec

from hitlab.errors import InputError
from hitlab.result import SCHEMA_VERSION, Result


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


class _Versioned(msgspec.Struct):
    """What every version of a result has."""

    schema_version: int


def load(path: Path) -> Result:
    """A result of this version or an older one. Raises InputError."""
    try:
        data = path.read_bytes()
        version = msgspec.json.decode(data, type=_Versioned).schema_version
        if version > SCHEMA_VERSION:
            raise InputError(
                f"written by a newer hitlab (schema {version}, this one reads up to {SCHEMA_VERSION})",
                where=str(path),
                todo="update hitlab",
            )
        return msgspec.json.decode(data, type=Result)
    except OSError as error:
        raise InputError(error.strerror or str(error), where=str(path), todo="see hitlab results list") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InputError(f"not a result: {error}", where=str(path), todo="see hitlab results list") from None


def kept(folder: Path) -> list[Path]:
    """The result files of a folder and those below it, the oldest run first. Raises InputError without a folder."""
    if not folder.is_dir():
        raise InputError("no such folder", where=str(folder), todo="name the --out of measure with --folder")
    return sorted(folder.rglob("[!.]*.json"), key=lambda path: (path.name, path))


def find(name: str, folder: Path) -> Path:
    """The result file meant by a path, the beginning of a file's name, or `latest`. Raises InputError."""
    if Path(name).is_file():
        return Path(name)
    paths = kept(folder)
    found = paths[-1:] if name == "latest" else [path for path in paths if path.name.startswith(name)]
    if len(found) != 1:
        what = f"{len(found):,} results begin with {name!r}" if found else f"no result begins with {name!r}"
        raise InputError(what, where=str(folder), todo="see hitlab results list")
    return found[0]


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
