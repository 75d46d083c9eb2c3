"""Processes of our own, which never outlive us, and what the user sees while they work."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Column

from hitlab.servers.cpu import guard
from hitlab.servers.cpu.process_log import Log

GRACE_SECONDS = 10.0  # between asking a process to stop and killing it
POLL_SECONDS = 0.25

# Of hitlab's own environment; in the engine's they would mix in foreign packages or make pip install elsewhere,
# and without bytecode an engine compiles itself anew at every start.
_UNWANTED = {"PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE", "PIP_USER", "PIP_TARGET", "PIP_PREFIX"}


class Guarded:
    """A command under guard.py, which ends it with all its children when we leave the `with` or are gone."""

    def __init__(self, command: Sequence[str], settings: Mapping[str, str], log: Log, cwd: Path) -> None:
        kept = {name: value for name, value in os.environ.items() if name not in _UNWANTED}
        with log.path.open("ab") as output:
            self._process = subprocess.Popen(
                # -I also keeps the script's own folder, whose types.py would hide Python's, from being searched.
                [sys.executable, "-I", "-S", guard.__file__, str(GRACE_SECONDS), *command],
                stdin=subprocess.PIPE,
                stdout=output,
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

    def __enter__(self) -> "Guarded":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()  # should this be interrupted, the guard finishes alone


def in_words(status: int) -> str:
    """An exit status, for people.

    >>> in_words(2), in_words(128 + 15)
    ('exit status 2', 'killed by signal 15')
    """
    number = status - 128 if status > 128 else -status
    if number == signal.SIGKILL:
        return "killed by signal 9, perhaps for lack of memory"
    return f"killed by signal {number}" if number > 0 else f"exit status {status}"


@contextmanager
def progress(console: Console, what: str) -> Iterator[Callable[[str], None]]:
    """Show what is being done, for how long, and a detail; afterwards (or on a plain stream) one line."""
    began = time.monotonic()
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        TimeElapsedColumn(),
        TextColumn("{task.fields[detail]}", style="dim", markup=False, table_column=Column(no_wrap=True, ratio=1)),
    )
    shown = console.is_terminal
    with Progress(*columns, console=console, transient=True, expand=True, disable=not shown) as bar:
        task = bar.add_task(what, total=None, detail="")
        yield lambda detail: bar.update(task, detail=detail)
    say(console, f"{what}: {time.monotonic() - began:.0f} s")


def say(console: Console, text: str) -> None:
    """Print a line as it is: paths have brackets, and are to be copied whole."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)
