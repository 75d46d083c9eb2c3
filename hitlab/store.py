"""Results on disk: written whole or not at all, never over another one, and read whatever version wrote them."""

import os
import re
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TypeVar

import msgspec

from hitlab.errors import InputError
from hitlab.labresult import LAB_SCHEMA_VERSION, LabResult
from hitlab.result import SCHEMA_VERSION, Result

_LAB = "-lab-"  # in the name of a lab's file


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
    return _write(result, folder, _stem(result))


def save_lab(result: LabResult, folder: Path) -> Path:
    """Write what a lab found and return its file. Raises InputError, with nothing half-written."""
    engines = {part.engine.name for part in result.parts}
    emulated = any(part.engine.source == "emulated" for part in result.parts)
    parts = [_moment(result.started_utc), f"{_LAB.strip('-')}-{result.lab}", *sorted(engines)]
    return _write(result, folder, "-".join([*parts, *_marks(emulated, result.complete)]))


def replace(path: Path, data: bytes) -> None:
    """Write a file whole, over one that is there. Raises InputError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        _write_through(temporary, data)
        temporary.replace(path)
    except OSError as error:
        raise InputError(f"can't be written: {error.strerror}", where=str(path), todo="name another file") from None
    finally:
        with suppress(OSError):
            temporary.unlink()


_Kept = TypeVar("_Kept", Result, LabResult)


class _Versioned(msgspec.Struct):
    """What every version of a result has."""

    schema_version: int


def load(path: Path) -> Result:
    """A result of this version or an older one. Raises InputError."""
    return _read(path, Result, SCHEMA_VERSION)


def load_lab(path: Path) -> LabResult:
    """What a lab found, by this version or an older one. Raises InputError."""
    return _read(path, LabResult, LAB_SCHEMA_VERSION)


def _read(path: Path, kind: type[_Kept], newest: int) -> _Kept:
    try:
        data = path.read_bytes()
        version = msgspec.json.decode(data, type=_Versioned).schema_version
        if version > newest:
            raise InputError(
                f"written by a newer hitlab (schema {version}, this one reads up to {newest})",
                where=str(path),
                todo="update hitlab",
            )
        return msgspec.json.decode(data, type=kind)
    except OSError as error:
        raise InputError(error.strerror or str(error), where=str(path), todo="see hitlab results list") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InputError(f"not a result: {error}", where=str(path), todo="see hitlab results list") from None


def kept(folder: Path) -> list[Path]:
    """The result files of a folder and those below it, the oldest run first. Raises InputError without a folder."""
    return [path for path in _files(folder) if not is_lab(path)]


def kept_labs(folder: Path) -> list[Path]:
    """The files of labs, in the same way."""
    return [path for path in _files(folder) if is_lab(path)]


def is_lab(path: Path) -> bool:
    """Whether a file's name is that of a lab's."""
    return _LAB in path.name


def _files(folder: Path) -> list[Path]:
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


def _write(document: Result | LabResult, folder: Path, stem: str) -> Path:
    data = msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"
    temporary = folder / f".{stem}.{os.getpid()}"
    try:
        _write_through(temporary, data)
        return _place(temporary, folder, stem)
    except OSError as error:
        raise InputError(f"the result can't be written: {error.strerror}", where=str(folder)) from None
    finally:
        with suppress(OSError):
            temporary.unlink()


def _write_through(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


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
    parts = [_moment(result.started_utc), result.engine.name, str(result.experiment["break_mode"])]
    return "-".join([*parts, *_marks(result.engine.source == "emulated", result.complete)])


def _moment(started_utc: str) -> str:
    return re.sub(r"[-:]|\+.*", "", started_utc)


def _marks(emulated: bool, complete: bool) -> list[str]:
    return [*(["EMULATED"] if emulated else []), *([] if complete else ["incomplete"])]
