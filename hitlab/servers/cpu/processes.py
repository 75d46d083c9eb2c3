"""Processes that end when hitlab does, however it ends."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from hitlab.servers.cpu import guard
from hitlab.servers.cpu.process_log import Log

GRACE_SECONDS = 10.0  # between asking a process to stop and killing it
POLL_SECONDS = 0.25

# Of hitlab's own environment; in the engine's they would mix in foreign packages or make pip install elsewhere,
# and without bytecode an engine compiles itself anew at every start.
_UNWANTED = {"PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE", "PIP_USER", "PIP_TARGET", "PIP_PREFIX"}


class Guarded:
    """A command run by guard.py, which ends it and its children when the `with` block or this process ends."""

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
    """An exit status in words.

    >>> in_words(2), in_words(128 + 15)
    ('exit status 2', 'killed by signal 15')
    """
    number = status - 128 if status > 128 else -status
    if number == signal.SIGKILL:
        return "killed by signal 9, perhaps for lack of memory"
    return f"killed by signal {number}" if number > 0 else f"exit status {status}"
