"""Writes files whole or not at all: a crash, a full disk or Ctrl-C leaves the old file as it was.

The bytes go to a temporary file in the same folder, reach the disk, and the file is renamed. A device or a pipe is
written to as it is. Of a symbolic link, the file that it leads to is replaced and the link stays. A file that appeared
or changed since its place was claimed (`outputs.claim`) is kept, and ours gets a numbered name beside it.
"""

import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import BinaryIO

from hitlab.errors import InputError

State = tuple[int, ...] | None  # what tells a file from another one and from itself before a change; None: no file

_PACKED = (".gz", ".zst")
_NUMBER_BYTES = 8  # room for a number in a name
_NAME_BYTES = 255  # of the longest name on usual file systems

# By absolute path, without links resolved, so that a link that was turned to another file is noticed, too.
_claimed: dict[str, State] = {}  # what stood at an output's place when it was checked, or what we put there since
_placed: dict[str, Path] = {}  # where an output was put whose place had changed

_TRIAL = bytes(64 * 1024)  # more than a result takes: a full disk can still hold an empty file


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Yield a binary file; what was written to it takes the place of `path` when the block ends without an error.

    Raises InputError for everything that goes wrong in writing.
    """
    target = target_of(path)
    try:
        if is_stream(target) and _key(path) not in _claimed:
            with target.open("wb") as stream:
                yield stream
            return
        if not target.parent.is_dir():
            raise no_folder(target)
        with _beside(target) as (temporary, file):
            yield file
            _finish(file)
            _put(temporary, target, path)
    except OSError as error:
        raise unwritable(path, error) from None


def replace(path: Path, data: bytes) -> None:
    """Write `data` as the whole of `path`. Raises InputError, with the old file as it was."""
    with replacing(path) as file:
        file.write(data)


def remember(path: Path, state: State) -> None:
    """From now on `replacing` keeps whatever stands at the place of `path` in another state than this one."""
    _placed.pop(_key(path), None)
    if is_stream(path):
        _claimed.pop(_key(path), None)
    else:
        _claimed[_key(path)] = state


def state_of(target: Path) -> State:
    """The state of a file as it is now; None if there is none."""
    try:
        found = target.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size


def written(path: Path) -> Path:
    """Where `replacing` put what was meant for `path`: there, or beside it if the place had changed."""
    return _placed.get(_key(path), path)


def write_whole(path: Path, text: str) -> None:
    """Write a file of the cache directory and the folders above it. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with _renamed(path) as file:
        file.write(text.encode())


def check_folder(folder: Path) -> None:
    """Make the folder of results and try it, so that no run is lost for want of a place. Raises InputError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try_folder(folder)
    except OSError as error:
        raise InputError(
            f"results can't be written: {error.strerror}", where=str(folder), todo="name another `out`"
        ) from None


def write_new(folder: Path, stem: str, data: bytes, ending: str = ".json", beside: Sequence[str] = ()) -> Path:
    """Write a new file, `stem` with this ending or the first of stem-2, stem-3, ... that is free, and return its path.

    No existing file is replaced. Free is a number of which no file exists with one of the endings `beside`, either.
    Raises InputError.
    """
    try:
        return _stored(data, folder, stem, ending, beside)
    except OSError as error:
        raise InputError(f"the result can't be written: {error.strerror}", where=str(folder)) from None


def target_of(path: Path) -> Path:
    """The file that `path` leads to through links; a device keeps its name, as what /dev/stdout leads to may have none.

    Raises InputError for a link that leads to itself.
    """
    try:
        return path if is_stream(path) else path.resolve()
    except (OSError, RuntimeError) as error:
        raise unwritable(path, error) from None


def is_stream(path: Path) -> bool:
    """Whether there is something of this name that is neither a file nor a folder: a device, a pipe, a socket."""
    return path.exists() and not path.is_file() and not path.is_dir()


def unwritable(path: Path, error: Exception) -> InputError:
    """The error of a file that can't be written, for the user."""
    why = getattr(error, "strerror", None) or str(error)
    return InputError(f"can't be written: {why}", where=str(path), todo="name another file")


def no_folder(target: Path) -> InputError:
    """The error of a file in a folder that does not exist, for the user."""
    return InputError(
        "can't be written: no such folder", where=str(target.parent), todo="make it, or name another file"
    )


def try_folder(folder: Path) -> None:
    """Write a small file there in every step that a result takes, and remove it. Raises OSError."""
    _stored(_TRIAL, folder, f".try-{secrets.token_hex(4)}", ".json", ()).unlink()


@contextmanager
def _renamed(target: Path) -> Iterator[BinaryIO]:
    """A temporary file that becomes `target` at the end of the block. Raises OSError."""
    with _beside(target) as (temporary, file):
        yield file
        _finish(file)
        temporary.replace(target)


@contextmanager
def _beside(target: Path) -> Iterator[tuple[Path, BinaryIO]]:
    """A temporary file beside `target` with the permissions of that, if it exists. Raises OSError."""
    with _temporary(target.parent) as (temporary, file):
        with suppress(FileNotFoundError):
            os.fchmod(file.fileno(), stat.S_IMODE(target.stat().st_mode))
        yield temporary, file


def _put(temporary: Path, target: Path, path: Path) -> None:
    """Give a finished file the name `target`, or a numbered one if there is now what was not claimed."""
    key = _key(path)
    if key not in _claimed:
        temporary.replace(target)
        return
    if _may_replace(target, _claimed[key]):
        try:
            if target.exists():
                temporary.replace(target)
            else:
                _link_or_rename(temporary, target)
        except FileExistsError:  # just made
            pass
        else:
            _claimed[key] = state_of(target)
            return
    place = _numbered(temporary, target)
    _placed[key] = path.with_name(place.name) if path.parent.resolve() == place.parent else place


def _may_replace(target: Path, claimed: State) -> bool:
    """Whether nothing is lost: the file is as it was, or gone, or empty."""
    state = state_of(target)
    return state in (None, claimed) or (target.is_file() and target.stat().st_size == 0)


def _numbered(temporary: Path, target: Path) -> Path:
    """Give a finished file the first free name of points-2.csv, points-3.csv, ..., and return its path."""
    ending = target.suffix
    if ending in _PACKED:
        ending = Path(target.stem).suffix + ending
    stem = target.name.removesuffix(ending)
    stem = os.fsdecode(os.fsencode(stem)[: _NAME_BYTES - _NUMBER_BYTES - len(os.fsencode(ending))])
    for number in count(2):
        place = target.with_name(f"{stem}-{number}{ending}")
        with suppress(FileExistsError):
            _link_or_rename(temporary, place)
            return place
    raise AssertionError


def _key(path: Path) -> str:
    return os.path.abspath(path)  # noqa: PTH100  # Path.resolve would follow links


def _stored(data: bytes, folder: Path, stem: str, ending: str, beside: Sequence[str]) -> Path:
    with _temporary(folder) as (temporary, file):
        file.write(data)
        _finish(file)
        number = 1
        while True:
            name = stem if number == 1 else f"{stem}-{number}"
            number += 1
            if any((folder / f"{name}{other}").exists() for other in beside):
                continue
            path = folder / f"{name}{ending}"
            with suppress(FileExistsError):
                _link_or_rename(temporary, path)
                return path


@contextmanager
def _temporary(folder: Path) -> Iterator[tuple[Path, BinaryIO]]:
    """A new file in `folder`, removed at the end of the block unless it was renamed. Raises OSError."""
    path = folder / f".hitlab-{os.getpid()}-{secrets.token_hex(4)}"
    try:
        with path.open("xb") as file:
            yield path, file
    finally:
        with suppress(OSError):
            path.unlink()


def _finish(file: BinaryIO) -> None:
    """Put what was written on the disk, so that a rename never comes before the bytes."""
    file.flush()
    os.fsync(file.fileno())


def _link_or_rename(temporary: Path, path: Path) -> None:
    """Give the finished file its name; unlike a rename alone, neither way replaces a file. Raises FileExistsError."""
    try:
        path.hardlink_to(temporary)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links: the name is taken first, and then the file put there
        path.touch(exist_ok=False)
        try:
            temporary.replace(path)
        except OSError:
            path.unlink()
            raise
