"""The command line: one file per command, imported only when it is the one called.

A command's file holds a function `command` (or, for a group like `lab`, a typer app `app`). Its docstring is
its help and ends with an example. It prints results on stdout and everything else on stderr; errors it raises
as HitlabError and `main` prints as one line.
"""

import errno
import os
import sys
from contextlib import suppress
from importlib import import_module

import typer

from hitlab import __version__
from hitlab.cli import _signals
from hitlab.errors import HitlabError, InterruptedRunError
from hitlab.flags import in_flags

# In the order of the help page: one server, what came out of it, traces.
COMMANDS = (
    *("predict", "measure", "serve", "preflight", "watch", "log", "record", "model"),
    *("results", "report", "lab", "check"),
    *("replay", "sweep", "trace"),
)

# Typer may bring its own click along; its usage error is BadParameter's parent wherever it lives.
_CommandLineError: type[Exception] = typer.BadParameter.__mro__[1]

_INTERRUPTED = 130  # what some versions of typer make of a KeyboardInterrupt, without a word

# Of a stdout that cannot be written: /dev/full, a full disk, a terminal that is gone, one that was closed.
_UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF}


def main(arguments: list[str] | None = None) -> None:
    """Run one command and leave with its exit status; a user never sees a traceback."""
    with _signals.handled() as stops:
        status = _status((sys.argv[1:] if arguments is None else arguments) or ["--help"], stops)
    sys.exit(status)


def _status(argv: list[str], stops: _signals.Stops) -> int:
    """Run one command; what goes wrong is said in one line on stderr."""
    try:
        # Building every command costs more than `predict` itself, so only the called one is built.
        app = build_app((argv[0],) if argv[0] in COMMANDS else COMMANDS)
        status: int = app(argv, prog_name="hitlab", standalone_mode=False) or 0
        if status == _INTERRUPTED:
            raise KeyboardInterrupt
        if sys.stdout:
            sys.stdout.flush()  # here, where what goes wrong is still said
    except _CommandLineError as error:
        context = getattr(error, "ctx", None)
        path = context.command_path if context else "hitlab"
        status = _complain(f"{getattr(error, 'format_message')()} See '{path} --help'.", 2)  # noqa: B009
    except InterruptedRunError as error:
        status = _complain(str(error), stops.status)
    except HitlabError as error:
        status = _complain(str(error), error.exit_status)
    except (typer.Abort, KeyboardInterrupt):
        status = _complain("interrupted", stops.status)
    except BrokenPipeError:
        _drop_output()  # the reader has left: nothing to tell
        status = 1
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _UNWRITABLE and error.filename is None:
            _drop_output()
            return _complain(f"the output can't be written: {error.strerror}", 1)
        if os.environ.get("HITLAB_TRACEBACK"):
            raise
        todo = "this is a bug in hitlab: HITLAB_TRACEBACK=1 shows where, please report it"
        status = _complain(f"{type(error).__name__}: {error}; {todo}", 1)
    return status


def build_app(commands: tuple[str, ...] = COMMANDS) -> typer.Typer:
    """The typer application with these commands."""
    app = typer.Typer(
        add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode="rich"
    )
    app.callback()(_hitlab)
    for name in commands:
        module = import_module(f"hitlab.cli.{name}")
        if hasattr(module, "app"):
            app.add_typer(module.app, name=name)
        else:
            app.command(name)(module.command)
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"hitlab {__version__}")
        raise typer.Exit


def _hitlab(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    """Predict, measure and explain the prefix-cache hit rate of LLM serving engines.

    Start with: hitlab predict --prefix-len 1000 --block-size 16
    """


def _drop_output() -> None:
    """What stdout still holds goes nowhere, so that Python's own flush at the end is quiet."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complain(message: str, status: int) -> int:
    with suppress(OSError):  # stderr is gone, too: the status says it
        print(f"hitlab: {in_flags(message)}", file=sys.stderr, flush=True)
    return status
