"""The user's cache directory: $XDG_CACHE_HOME/hitlab, else ~/.cache/hitlab."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hitlab.errors import LaunchError


def cache_dir() -> Path:
    """Where environments, models and logs are kept."""
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (given if given.is_absolute() else Path.home() / ".cache") / "hitlab"


def writable_cache_folder(name: str, *overrides: str) -> Path | None:
    """`hitlab/name` below the user's cache directory, made if it is missing; None where it cannot be written to.

    The first of the environment variables `overrides` that is set names another directory than the user's.
    """
    try:
        base = next(filter(None, map(os.environ.get, (*overrides, "XDG_CACHE_HOME"))), None)
        folder = (Path(base) if base else Path.home() / ".cache") / "hitlab" / name
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # no home, or not ours to write to
        return None
    return folder if os.access(folder, os.W_OK) else None


def is_folder(path: Path) -> bool:
    """Whether there is a folder of this name; False, too, for a name that is too long, at which Path.is_dir raises."""
    return os.path.isdir(path)  # noqa: PTH112


@contextmanager
def os_errors_named() -> Iterator[None]:
    """Turn an OSError into a LaunchError that names the file."""
    try:
        yield
    except OSError as error:
        raise LaunchError(
            error.strerror or str(error),
            where=str(error.filename or cache_dir()),
            todo="make room there, or set XDG_CACHE_HOME to a directory you can write to",
        ) from error
