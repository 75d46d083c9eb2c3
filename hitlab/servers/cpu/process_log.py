"""The logs of processes we start, and finding in them the line that says why one died."""

import re
import time

from hitlab.files import cache_dir

KEPT_LOGS = 20
_LONGEST = 300
_TAIL_BYTES = 4096

_ERROR = re.compile(
    r"(?:\b(?:[a-z_]\w*\.)*[A-Z]\w*(?:Error|Exception): |\berror: |^ERROR: |^(?:\w+\.)+[A-Z]\w+: )\S.*"
    r"|(?<=\] )[^\[\]]*\b(?:crashed with|exited unexpectedly|died unexpectedly)\b.*"
)
_WARNING = re.compile(r"\bWARNING\b|Warning: ")
_POINTER = re.compile(r"See (?:root cause|stack trace)")  # the cause stands elsewhere


class Log:
    """A new file in the cache directory's logs/; only the newest few are kept."""

    def __init__(self, name: str) -> None:
        folder = cache_dir() / "logs"
        folder.mkdir(parents=True, exist_ok=True)
        for old in sorted(folder.glob("*.log"), key=lambda log: log.stat().st_mtime)[: 1 - KEPT_LOGS]:
            old.unlink(missing_ok=True)
        self.path = folder / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{time.time_ns() % 10**6:06}.log"
        self.path.touch()

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return self.path.stat().st_size

    def text(self, begin: int = 0) -> str:
        """The log from that byte on; empty where the file was deleted meanwhile."""
        try:
            with self.path.open("rb") as file:
                file.seek(begin)
                return file.read().decode(errors="replace")
        except FileNotFoundError:  # tidied away by many later starts
            return ""

    def last_line(self) -> str:
        """The last line that is not blank."""
        return _last_line(self.text(begin=max(0, self.size - _TAIL_BYTES)))

    def verdict(self, begin: int = 0) -> str:
        """The line that says best why the process died, and the path of the log."""
        return f"{last_error_line(self.text(begin))}; its log is {self.path}"


def last_error_line(text: str) -> str:
    """The line of a log that says best why a program died.

    That is the last error naming a cause; without one the last error of any kind, without one the last line.

    >>> last_error_line("loading\\nValueError: too long\\nRuntimeError: Failed. See root cause above.\\nbye")
    'ValueError: too long'
    """
    lines = (line for line in text.splitlines() if not _WARNING.search(line))
    errors = [found[0].strip()[:_LONGEST] for line in lines if (found := _ERROR.search(line))]
    causes = [error for error in errors if not _POINTER.search(error)]
    last = causes[-1:] or errors[-1:] or [_last_line(text)]
    return last[0] or "it printed nothing"


def _last_line(text: str) -> str:
    return next((line.strip()[:_LONGEST] for line in reversed(text.splitlines()) if line.strip()), "")
