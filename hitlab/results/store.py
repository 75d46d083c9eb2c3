"""The files of kept results: their names, how they are found again, and reading whatever version wrote them."""

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import TypeVar

import msgspec

from hitlab.errors import InputError
from hitlab.files import write_new
from hitlab.results.lab_result import LAB_SCHEMA_VERSION, LabResult
from hitlab.results.run_result import SCHEMA_VERSION, Result

_LAB, _LAB_KIND = "-lab-", "lab"  # in the name of a lab's file, and in the file
_CANDIDATES = 5  # shown of an ambiguous name


def save(result: Result, folder: Path) -> Path:
    """Write a result to a new file and return it. Raises InputError, with nothing half-written."""
    return write_new(folder, _stem(result), _encoded(result))


def save_lab(result: LabResult, folder: Path, beside: Sequence[str] = ()) -> Path:
    """Write what a lab found to a new file and return it. Raises InputError, with nothing half-written.

    Its name is one that is free with each of the endings `beside`, too, for pictures of the same name.
    """
    engines = {part.engine.name for part in result.parts}
    emulated = any(part.engine.source == "emulated" for part in result.parts)
    parts = [_moment(result.started_utc), f"{_LAB.strip('-')}-{result.lab}", *sorted(engines)]
    stem = "-".join([*parts, *_marks(emulated, result.complete)])
    return write_new(folder, stem, _encoded(result), beside=beside)


_Kept = TypeVar("_Kept", Result, LabResult)


class _Versioned(msgspec.Struct):
    """What every version of a result and of a lab has; only a lab has a kind."""

    schema_version: int
    kind: str = ""


def load(path: Path) -> Result:
    """A result of this version or an older one. Raises InputError."""
    return _read(path, Result, SCHEMA_VERSION)


def load_lab(path: Path) -> LabResult:
    """What a lab found, by this version or an older one. Raises InputError."""
    return _read(path, LabResult, LAB_SCHEMA_VERSION)


def _read(path: Path, kind: type[_Kept], newest: int) -> _Kept:
    try:
        data = path.read_bytes()
        head = msgspec.json.decode(data, type=_Versioned)
        if kind is Result and head.kind == _LAB_KIND:
            raise InputError("is a lab", where=str(path), todo=f"see hitlab report {path}")
        if head.schema_version > newest:
            raise InputError(
                f"written by a newer hitlab (schema {head.schema_version}, this one reads up to {newest})",
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
    """Whether a file is a lab's, by its name or, where it was given another one, by what it says."""
    head = None if _LAB in path.name else _head(path)
    return _LAB in path.name or (head is not None and head.kind == _LAB_KIND)


def _head(path: Path) -> _Versioned | None:
    """None of a file that is neither a result nor a lab."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Versioned)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise InputError("no such folder", where=str(folder), todo="name the `out` of measure with `folder`")
    return sorted(folder.rglob("[!.]*.json"), key=_order)


def _order(path: Path) -> tuple[str, int, str, Path]:
    """By the second of the start, then by the number that tells apart runs of one second."""
    stem, _, number = path.stem.rpartition("-")
    if not number.isdecimal():
        stem, number = path.stem, "1"
    return path.stem.partition("-")[0], int(number), stem, path


def find(name: str, folder: Path) -> Path:
    """The result file meant by a path, a file's name or its beginning, or `latest`. Raises InputError."""
    for path in (Path(name), folder / name):
        if path.is_file():
            return path
    paths = kept(folder)
    if name == "latest":
        found = next((path for path in reversed(paths) if _head(path)), None)
        if found is None:
            raise InputError("no results", where=str(folder), todo="measure something first")
        return found
    named = _named(name, paths)
    if len(named) == 1:
        return named[0]
    if not named:
        labs = _named(name, kept_labs(folder))
        if labs:
            raise InputError("is a lab", where=str(labs[0]), todo=f"see hitlab report {labs[0]}")
        raise InputError(
            f"no result begins with {name!r}", where=str(folder), todo=f"see hitlab results list `folder` {folder}"
        )
    names = short_names(paths, folder)
    shown = [names[path] for path in named[:_CANDIDATES]]
    more = f" and {len(named) - _CANDIDATES:,} more" if len(named) > _CANDIDATES else ""
    raise InputError(
        f"{len(named):,} results begin with {name!r}", where=str(folder), todo=f"choose from {', '.join(shown)}{more}"
    )


def short_names(paths: Sequence[Path], folder: Path) -> dict[Path, str]:
    """For each of the files kept in a folder the shortest beginning of its name by which `find` finds it alone.

    Names are cut between words only.
    """
    names = sorted(path.name for path in paths)
    stems = Counter(path.stem for path in paths)

    def known(beginning: str) -> int:
        return stems[beginning] or bisect_left(names, beginning + "\U0010ffff") - bisect_left(names, beginning)

    found: dict[Path, str] = {}
    for path in paths:
        beginnings = accumulate(path.stem.split("-"), "{}-{}".format)
        alone = (each for each in beginnings if known(each) == 1 and stems[each] == (each == path.stem))
        found[path] = next(alone, str(path.relative_to(folder)))
    return found


def _named(name: str, paths: Sequence[Path]) -> list[Path]:
    """Files of exactly this name, or else those whose names begin with it."""
    exactly = [path for path in paths if name in (path.stem, path.name)]
    return exactly or [path for path in paths if path.name.startswith(name)]


def _encoded(document: Result | LabResult) -> bytes:
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def _stem(result: Result) -> str:
    parts = [_moment(result.started_utc), result.engine.name, result.experiment.break_mode]
    return "-".join([*parts, *_marks(result.engine.source == "emulated", result.complete)])


def _moment(started_utc: str) -> str:
    return re.sub(r"[-:]|\+.*", "", started_utc)


def _marks(emulated: bool, complete: bool) -> list[str]:
    return [*(["EMULATED"] if emulated else []), *([] if complete else ["incomplete"])]
