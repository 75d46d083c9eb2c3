"""Real engines on a CPU: makes an engine's environment once, starts its server, waits for it, stops all of it.

    with running(recipe, ServerOptions(block_tokens=32), console) as server:
        measure(server.base_url)

Everything lies under $XDG_CACHE_HOME/hitlab (~/.cache/hitlab): envs/, models/, logs/. pip takes its packages
from wherever it is configured to (pip.conf, PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, ...). On Linux the torch of
PyPI is the CUDA build, which works but is several GB larger; for the CPU build set PIP_EXTRA_INDEX_URL to
PyTorch's CPU index.
"""

import fcntl
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

import httpx
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Column

from hitlab import guard
from hitlab.errors import LaunchError, ServerError
from hitlab.recipe import TINY_MODEL, CpuRecipe, ServerOptions, ServerSpec

HOST = "127.0.0.1"
GRACE_SECONDS = 10.0  # between asking an engine to stop and killing it
KEPT_LOGS = 20
_MARKER = "hitlab.json"  # written last: an environment without it is half made
_POLL_SECONDS = 0.25

# Of hitlab's own environment; in the engine's they would mix in foreign packages or make pip install elsewhere,
# and without bytecode an engine compiles itself anew at every start.
_UNWANTED = {"PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE", "PIP_USER", "PIP_TARGET", "PIP_PREFIX"}

_ERROR_LINE = re.compile(
    r"(?:\b(?:[a-z_]\w*\.)*[A-Z]\w*(?:Error|Exception): |\berror: |^ERROR: |^(?:\w+\.)+[A-Z]\w+: )\S.*"
)
# Lines that only say that the cause stands elsewhere.
_POINTER = re.compile(r"[Ss]ee (?:root cause|stack trace|the stack trace)|WARNING|Warning")
_NO_NETWORK = re.compile(
    r"NewConnectionError|Failed to establish a new connection|name resolution|ConnectTimeout|Network is unreachable"
    r"|ProxyError"
)


@dataclass(frozen=True, slots=True)
class Server:
    """A running server of our own."""

    base_url: str
    title: str
    log: Path
    _process: "_Guarded"

    def death(self, wait_seconds: float = 0.0) -> str | None:
        """Why the server has ended, in one line; None while it runs. Waits so long for an end under way."""
        status = self._process.wait(wait_seconds)
        return None if status is None else f"{self.title} ended by itself ({_in_words(status)}){_quote(self.log)}"

    def wait(self) -> str:
        """Block until the server ends by itself, and say why."""
        while True:
            if reason := self.death(wait_seconds=3600.0):
                return reason


def cache_dir() -> Path:
    """Where environments, models and logs are kept."""
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (given if given.is_absolute() else Path.home() / ".cache") / "hitlab"


def environment_dir(recipe: CpuRecipe) -> Path:
    """Where the recipe's environment is, or would be made."""
    return cache_dir() / "envs" / recipe.name


def is_installed(recipe: CpuRecipe) -> bool:
    """Whether the environment is there, whole, and made by this very recipe."""
    return _is_made(recipe, environment_dir(recipe))


@contextmanager
def running(recipe: CpuRecipe, options: ServerOptions, console: Console) -> Iterator[Server]:
    """A server, ready, its counters untouched; on leaving, whatever the reason, all its processes end.

    Makes the environment first where it is missing; `console` gets the warning about its size and the progress.
    Raises UsageError for options the engine refuses, LaunchError for everything that can go wrong before the
    server is ready, and LaunchError in place of a ServerError out of the body when the server has died.
    """
    cpus = tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else (0,)
    model_dir = cache_dir() / "models" / "tiny-llama"
    spec = recipe.spec(options, str(model_dir), cpus)
    _free_port(spec.port)  # better to hear it now than after a long installation
    with environment(recipe, console) as home, ExitStack() as started:
        with _readable_os_errors():
            spec = replace(spec, port=_free_port(spec.port))
            _write(model_dir / "config.json", json.dumps(TINY_MODEL, indent=1))
            log = started.enter_context(_new_log(recipe.name))
            # `python -m` looks for packages in the working directory first; there are none beside a model.
            process = started.enter_context(_guarded(*_command(recipe, spec, home), log, cwd=model_dir))
            server = Server(f"http://{HOST}:{spec.port}", _title(recipe), Path(log.name), process)
            _wait_until_ready(server, process, recipe, console)
        try:
            yield server
        except ServerError as error:
            if reason := server.death(wait_seconds=2.0):
                raise LaunchError(reason) from error
            raise


@contextmanager
def environment(recipe: CpuRecipe, console: Console) -> Iterator[Path]:
    """The recipe's environment, made where it is missing; meanwhile nobody else makes or remakes it."""
    home = environment_dir(recipe)
    with _readable_os_errors():
        home.parent.mkdir(parents=True, exist_ok=True)
        lock = home.with_name(f"{home.name}.lock").open("w")
    with lock:
        _hold(lock, fcntl.LOCK_SH, home, console)
        if not _is_made(recipe, home):
            _hold(lock, fcntl.LOCK_EX, home, console)
            if not _is_made(recipe, home):  # still: another start may have made it while we waited
                with _readable_os_errors():
                    _make(recipe, home, console)
            fcntl.flock(lock, fcntl.LOCK_SH)
        yield home


def _hold(lock: IO[str], kind: int, home: Path, console: Console) -> None:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        _say(console, f"another hitlab is making or using {home}; waiting for it to finish")
        fcntl.flock(lock, kind)


def _is_made(recipe: CpuRecipe, home: Path) -> bool:
    try:
        marker = json.loads((home / _MARKER).read_text())
    except (OSError, ValueError):
        return False
    # bin/python dangles after the Python that made the environment was removed.
    return bool(marker.get("recipe") == recipe.digest) and (home / "bin" / "python").exists()


def _make(recipe: CpuRecipe, home: Path, console: Console) -> None:
    title = _title(recipe)
    if home.exists():
        _say(console, f"{home} is half made or made by another version of hitlab; making it again")
        shutil.rmtree(home)
    _check_python(title, recipe)
    _check_space(title, recipe, home.parent)
    _say(
        console,
        f"{title} is not installed yet: about {_gb(recipe.download_mb)} to download and "
        f"{_gb(recipe.installed_mb)} on disk in {home}, once; it takes a few minutes",
    )
    # Without steps an environment needs no pip, the slowest part of making one.
    pip = () if recipe.pip_steps else ("--without-pip",)
    python = str(home / "bin" / "python")
    commands = [("a virtual environment", (sys.executable, "-m", "venv", *pip, str(home)))]
    for step in recipe.pip_steps:
        commands.append((step.what, (python, "-m", "pip", "--no-input", *step.arguments)))
    scratch = home / "tmp"
    try:
        with _new_log(f"install-{recipe.name}") as log:
            for number, (what, command) in enumerate(commands, start=1):
                with _progress(console, f"{title}, step {number} of {len(commands)}: {what}") as detail:
                    _run_step(what, command, scratch, log, detail)
        for path, text in recipe.site_files.items():
            _write(_site_packages(home) / path, text)
        shutil.rmtree(scratch, ignore_errors=True)
        _write(home / _MARKER, json.dumps({"recipe": recipe.digest, "python": sys.version.split()[0]}))
    except BaseException:
        shutil.rmtree(home, ignore_errors=True)
        raise


def _run_step(what: str, command: Sequence[str], scratch: Path, log: IO[bytes], detail: Callable[[str], None]) -> None:
    # pip unpacks in TMPDIR: keep it on the disk whose free space was checked.
    scratch.mkdir(parents=True, exist_ok=True)
    path, begin = Path(log.name), Path(log.name).stat().st_size
    with _guarded(command, {"TMPDIR": str(scratch), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}, log, scratch) as process:
        while (status := process.wait(_POLL_SECONDS)) is None:
            detail(_last_line(_tail(path)))
    if status:
        text = _text(path, begin)
        cause = "pip cannot reach its package index: " if _NO_NETWORK.search(text) else ""
        raise LaunchError(
            f"installing {what} failed ({_in_words(status)}): {cause}{last_error_line(text)}",
            todo=f"the whole log is {path}",
        )


def _check_python(title: str, recipe: CpuRecipe) -> None:
    oldest, newest = recipe.python
    if not oldest <= sys.version_info[:2] <= newest:
        raise LaunchError(
            f"{title} runs on Python {_dotted(oldest)} to {_dotted(newest)}, and this is "
            f"{_dotted(sys.version_info[:2])} ({sys.executable})",
            todo="run hitlab with one of those",
        )


def _check_space(title: str, recipe: CpuRecipe, where: Path) -> None:
    needed_mb = recipe.installed_mb + 2 * recipe.download_mb  # a download lies in pip's cache and is unpacked
    free_mb = shutil.disk_usage(where).free // 1_000_000
    if free_mb < needed_mb:
        raise LaunchError(
            f"not enough disk space for {title}: {_gb(needed_mb)} needed, {_gb(free_mb)} free",
            where=str(where),
            todo="free some, or set XDG_CACHE_HOME to a directory on a larger disk",
        )


def _command(recipe: CpuRecipe, spec: ServerSpec, home: Path) -> tuple[list[str], dict[str, str]]:
    program, *arguments = recipe.argv(spec)
    path = f"{home / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"
    return [str(home / "bin" / program), *arguments], {"PATH": path, **recipe.environment(spec)}


def _title(recipe: CpuRecipe) -> str:
    return f"{recipe.title} {recipe.version}"


def _wait_until_ready(server: Server, process: "_Guarded", recipe: CpuRecipe, console: Console) -> None:
    deadline = time.monotonic() + recipe.ready_seconds
    # No proxy from the environment: the server is on this machine.
    with (
        _progress(console, f"starting {server.title}") as detail,
        httpx.Client(trust_env=False, timeout=5.0) as client,
    ):
        while True:
            with suppress(httpx.TransportError):
                if client.get(server.base_url + recipe.ready_path).is_success and process.wait(0) is None:
                    return
            status = process.wait(_POLL_SECONDS)
            if status is not None:
                raise LaunchError(f"{server.title} died at start ({_in_words(status)}){_quote(server.log)}")
            if time.monotonic() > deadline:
                raise LaunchError(
                    f"{server.title} was not ready after {recipe.ready_seconds:.0f} s{_quote(server.log)}"
                )
            detail(_last_line(_tail(server.log)))


def _free_port(wanted: int) -> int:
    try:
        with socket.socket() as probe:
            # As the engines do, so that connections still closing after an earlier server are no obstacle.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((HOST, wanted))
            return int(probe.getsockname()[1])
    except (OSError, OverflowError) as error:
        raise LaunchError(
            f"port {wanted} cannot be used: {getattr(error, 'strerror', None) or error}",
            where=HOST,
            todo="choose another with --port, or 0 for any free one",
        ) from None


def _write(path: Path, text: str) -> None:
    """Whole or not at all: another start may be reading it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.write_text(text)
    part.replace(path)


def _site_packages(home: Path) -> Path:
    return next((home / "lib").glob("python3.*/site-packages"))


class _Guarded:
    """A command under guard.py, which ends it with all its children when we let go of it or are gone."""

    def __init__(self, command: Sequence[str], settings: Mapping[str, str], log: IO[bytes], cwd: Path) -> None:
        kept = {name: value for name, value in os.environ.items() if name not in _UNWANTED}
        self._process = subprocess.Popen(
            # -I also keeps the script's own folder, whose types.py would hide Python's, from being searched.
            [sys.executable, "-I", "-S", guard.__file__, str(GRACE_SECONDS), *command],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**kept, **settings},
            cwd=cwd,
            start_new_session=True,  # a terminal's Ctrl-C reaches only hitlab, which then ends things in order
        )

    def wait(self, seconds: float) -> int | None:
        """The exit status; None if it still runs after so long."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def end(self) -> None:
        """End all of it; should this be interrupted, the guard does it alone."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


@contextmanager
def _guarded(command: Sequence[str], settings: Mapping[str, str], log: IO[bytes], cwd: Path) -> Iterator[_Guarded]:
    process = _Guarded(command, settings, log, cwd)
    try:
        yield process
    finally:
        process.end()


@contextmanager
def _new_log(name: str) -> Iterator[IO[bytes]]:
    logs = cache_dir() / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    for old in sorted(logs.glob("*.log"), key=lambda log: log.stat().st_mtime)[: -KEPT_LOGS + 1]:
        old.unlink(missing_ok=True)
    with (logs / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{time.time_ns() % 10**6:06}.log").open("wb") as log:
        yield log


@contextmanager
def _progress(console: Console, what: str) -> Iterator[Callable[[str], None]]:
    """What is being done, for how long, and the last line of its log; on a plain stream a line when it is done."""
    began = time.monotonic()
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        TimeElapsedColumn(),
        TextColumn("{task.fields[detail]}", style="dim", markup=False, table_column=Column(no_wrap=True)),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=None, detail="")
        yield lambda detail: progress.update(task, detail=detail)
    _say(console, f"{what}: {time.monotonic() - began:.0f} s")


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def _readable_os_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LaunchError(
            error.strerror or str(error),
            where=str(error.filename or cache_dir()),
            todo="make room or set XDG_CACHE_HOME to a directory you can write to",
        ) from error


def last_error_line(text: str) -> str:
    """The line of a log that says best why a program died: the last error that names a cause, else the last line."""
    lines = text.splitlines()
    for line in reversed(lines):
        if (found := _ERROR_LINE.search(line)) and not _POINTER.search(line):
            return found[0].strip()[:300]
    return _last_line(text) or "it printed nothing"


def _last_line(text: str) -> str:
    return next((line.strip()[:300] for line in reversed(text.splitlines()) if line.strip()), "")


def _quote(log: Path) -> str:
    return f": {last_error_line(_text(log))}; its log is {log}"


def _text(path: Path, begin: int = 0) -> str:
    with path.open("rb") as file:
        file.seek(begin)
        return file.read().decode(errors="replace")


def _tail(path: Path) -> str:
    return _text(path, begin=max(0, path.stat().st_size - 4096))


def _in_words(status: int) -> str:
    number = status - 128 if status > 128 else -status
    if number == signal.SIGKILL:
        return "killed by signal 9, perhaps for lack of memory"
    return f"killed by signal {number}" if number > 0 else f"exit status {status}"


def _gb(megabytes: int) -> str:
    return f"{megabytes / 1000:.1f} GB"


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
