"""Files under the user's cache directory: $XDG_CACHE_HOME/hitlab, else ~/.cache/hitlab."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile

from hitlab.errors import LaunchError


def cache_dir() -> Path:
    """Where environments, models and logs are kept."""
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (given if given.is_absolute() else Path.home() / ".cache") / "hitlab"


def write_whole(path: Path, text: str) -> None:
    """Write a file whole or not at all: another start may be reading it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}-", delete=False) as part:
        part.write(text)
    Path(part.name).replace(path)


@contextmanager
def os_errors_named() -> Iterator[None]:
    """Turn what the operating system refuses into a LaunchError that names the file."""
    try:
        yield
    except OSError as error:
        raise LaunchError(
            error.strerror or str(error),
            where=str(error.filename or cache_dir()),
            todo="make room there, or set XDG_CACHE_HOME to a directory you can write to",
        ) from error
