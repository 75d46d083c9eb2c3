"""Every error a user can meet, as one tree.

HitlabError
├── UsageError          the command line asks for something that makes no sense (exit status 2)
├── InputError          a file or value given by the user cannot be used
│   └── TraceError      ... a trace, with its line number
├── ServerError         the engine's server cannot be used as it is
│   ├── UnreachableError    nobody answers, or not in time
│   ├── KeyRefusedError     401 or 403
│   ├── ResetRefusedError   the cache could not be emptied
│   ├── MetricsError        no counters, or counters that make no sense
│   ├── CountersFellError   counters are lower than they were
│   └── RequestRefusedError a completion came back with an error status
│       └── RequestAbortedError ... or with status 200, given up on the server
├── LaunchError         a server of our own could not be started
└── InterruptedRunError stopped by Ctrl-C, SIGTERM or SIGHUP (exit status 130, 143, 129)

A disagreement between measurement and prediction is a result, not an error.
"""

from typing import ClassVar


class HitlabError(Exception):
    """What happened, where, and what to do next; the CLI prints it as one line."""

    exit_status: ClassVar[int] = 1

    def __init__(self, what: str, *, where: str = "", todo: str = "") -> None:
        self.what, self.where, self.todo = what, where, todo
        super().__init__(what)

    def __str__(self) -> str:
        line = f"{self.where}: {self.what}" if self.where else self.what
        return f"{line}; {self.todo}" if self.todo else line


class UsageError(HitlabError):
    """The command line asks for something that makes no sense."""

    exit_status = 2


class InputError(HitlabError):
    """A file or value given by the user cannot be used."""


class TraceError(InputError):
    """A trace cannot be read; `where` names the file and line."""


class ServerError(HitlabError):
    """The engine's server cannot be used as it is."""


class UnreachableError(ServerError):
    """Nobody answers at the address, or not in time."""


class KeyRefusedError(ServerError):
    """The server wants a key, or another one."""


class ResetRefusedError(ServerError):
    """The cache could not be emptied."""


class MetricsError(ServerError):
    """No counters at the address, or counters that make no sense."""


class CountersFellError(ServerError):
    """Counters are lower than they were: the server restarted, or another one answers."""


class RequestRefusedError(ServerError):
    """A completion came back with an error status."""


class RequestAbortedError(RequestRefusedError):
    """A completion came back with status 200, and the server had given it up; `words` are its own."""

    def __init__(self, finish: str, words: str, *, where: str = "") -> None:
        done = "aborted" if finish.startswith("abort") else f"ended ({finish})"
        self.words = f"was {done} by the server" + (f": {words}" if words else "")
        super().__init__(f"the request {self.words}", where=where)


class LaunchError(HitlabError):
    """A server of our own could not be started."""


class InterruptedRunError(HitlabError):
    """Stopped by Ctrl-C or another signal, whose exit status it gets; what was measured is kept."""

    exit_status = 130
