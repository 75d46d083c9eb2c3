"""Virtual environments of the engines, in the cache directory: each is made once, by one start at a time."""

import fcntl
import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from hitlab.errors import LaunchError
from hitlab.files import cache_dir, os_errors_named, write_whole
from hitlab.servers.cpu.process_log import Log, last_error_line
from hitlab.servers.cpu.processes import POLL_SECONDS, Guarded, in_words
from hitlab.servers.cpu.recipe import CpuRecipe
from hitlab.servers.progress import Progress

_MARKER = "hitlab.json"  # written last: an environment without it is half made
_NO_NETWORK = re.compile(
    r"NewConnectionError|Failed to establish a new connection|name resolution|ConnectTimeout|ProxyError"
    r"|Network is unreachable"
)


def environment_dir(recipe: CpuRecipe) -> Path:
    """The folder of the recipe's environment, whether it exists or not."""
    return cache_dir() / "envs" / recipe.name


def is_installed(recipe: CpuRecipe) -> bool:
    """Whether the environment exists, is complete and was made by this very recipe."""
    home = environment_dir(recipe)
    try:
        marker = json.loads((home / _MARKER).read_text())
    except (OSError, ValueError):
        return False
    # bin/python dangles after the Python that made the environment was removed.
    return bool(marker.get("recipe") == recipe.digest) and (home / "bin" / "python").exists()


@contextmanager
def environment(recipe: CpuRecipe, progress: Progress) -> Iterator[Path]:
    """The recipe's environment, made where it is missing; nobody remakes it before the block ends.

    Raises LaunchError, with pip's own last error line, where it cannot be made.
    """
    home = environment_dir(recipe)
    with os_errors_named():
        home.parent.mkdir(parents=True, exist_ok=True)
        used = home.with_name(f"{home.name}.lock").open("w")
        made = home.with_name(f"{home.name}.making.lock").open("w")
    # Two locks: who looks whether it is there, and makes it, is alone in that; who uses it is not, and keeps away
    # only those who would remake it. With one, a start that waits to make it would wait for its users to end.
    with used:
        with made:
            _hold(made, fcntl.LOCK_EX, home, progress)
            if not is_installed(recipe):
                _hold(used, fcntl.LOCK_EX, home, progress)
                with os_errors_named():
                    _make(recipe, home, progress)
            fcntl.flock(used, fcntl.LOCK_SH)
        yield home


def _hold(lock: IO[str], kind: int, home: Path, progress: Progress) -> None:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        progress.say(f"another hitlab is making or using {home}; waiting for it to finish")
        fcntl.flock(lock, kind)


def _make(recipe: CpuRecipe, home: Path, progress: Progress) -> None:
    title = recipe.full_title
    _check_python(recipe)
    if home.exists():
        progress.say(f"{home} is half made or made by another version of hitlab; making it again")
        shutil.rmtree(home)
    _check_space(recipe, home.parent)
    progress.say(
        f"{title} is not installed yet: about {_gb(recipe.download_mb)} to download and "
        f"{_gb(recipe.installed_mb)} on disk in {home}, once; it takes a few minutes",
    )
    steps = _steps(recipe, home)
    try:
        log = Log(f"install-{recipe.name}")
        scratch = home / "tmp"
        scratch.mkdir(parents=True)
        for number, (what, command) in enumerate(steps, start=1):
            with progress.step(f"{title}, step {number} of {len(steps)}: {what}") as detail:
                _run(what, command, scratch, log, detail)
        shutil.rmtree(scratch)
        site_packages = next((home / "lib").glob("python3.*/site-packages"))
        for path, text in recipe.site_files.items():
            write_whole(site_packages / path, text)
        write_whole(home / _MARKER, json.dumps({"recipe": recipe.digest, "python": sys.version.split()[0]}))
    except BaseException:
        shutil.rmtree(home, ignore_errors=True)
        raise


def _steps(recipe: CpuRecipe, home: Path) -> list[tuple[str, list[str]]]:
    python = str(home / "bin" / "python")
    # Without steps an environment needs no pip, the slowest part of making one.
    options = [] if recipe.pip_steps else ["--without-pip"]
    steps = [("a virtual environment", [sys.executable, "-m", "venv", *options, str(home)])]
    return steps + [(step.what, [python, "-m", "pip", "--no-input", *step.arguments]) for step in recipe.pip_steps]


def _run(what: str, command: Sequence[str], scratch: Path, log: Log, detail: Callable[[str], None]) -> None:
    begin = log.size
    # pip unpacks in TMPDIR: keep it on the disk whose free space was checked.
    settings = {"TMPDIR": str(scratch), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    with Guarded(command, settings, log, cwd=scratch) as process:
        while (status := process.wait(POLL_SECONDS)) is None:
            detail(log.last_line())
    if status:
        text = log.text(begin)
        cause = "pip cannot reach its package index: " if _NO_NETWORK.search(text) else ""
        raise LaunchError(
            f"installing {what} failed ({in_words(status)}): {cause}{last_error_line(text)}",
            todo=f"the whole log is {log.path}",
        )


def _check_python(recipe: CpuRecipe) -> None:
    oldest, newest = recipe.python
    if not oldest <= sys.version_info[:2] <= newest:
        raise LaunchError(
            f"{recipe.full_title} runs on Python {_dotted(oldest)} to {_dotted(newest)}, and this is "
            f"{_dotted(sys.version_info[:2])} ({sys.executable})",
            todo="run hitlab with one of those",
        )


def _check_space(recipe: CpuRecipe, where: Path) -> None:
    needed_mb = recipe.installed_mb + 2 * recipe.download_mb  # a download lies in pip's cache and is unpacked
    free_mb = shutil.disk_usage(where).free // 1_000_000
    if free_mb < needed_mb:
        raise LaunchError(
            f"not enough disk space for {recipe.full_title}: {_gb(needed_mb)} needed, {_gb(free_mb)} free",
            where=str(where),
            todo="free some, or set XDG_CACHE_HOME to a directory on a larger disk",
        )


def _gb(megabytes: int) -> str:
    return f"{megabytes / 1000:.1f} GB"


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
