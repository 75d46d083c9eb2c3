"""The command line: one file per command, imported only when it is the one called.

A command's file holds a function `command` (or, for a group like `lab`, a typer app `app`). Its docstring is
its help and ends with an example. It prints results on stdout and everything else on stderr; errors it raises
as HitlabError and `main` prints as one line. A command imports what it needs at the top of its file. Only what loads
numba or matplotlib comes at the point of use, so that `--help` answers at once.
"""

import errno
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from importlib import import_module
from typing import Any

import typer

from hitlab import __version__
from hitlab.cli import _signals
from hitlab.errors import HitlabError, InterruptedRunError, UsageError
from hitlab.flags import in_flags

# Each command's line on the help page, in its order: one server, what came out of it, traces. It is the first line of
# the command's own help, kept here so that the page imports no command.
COMMANDS = {
    "predict": "Predict the hit rate of a shared-prefix or multi-turn workload by arithmetic, offline.",
    "measure": "Measure an engine's prefix-cache hit rate and compare it with the prediction, to the token.",
    "serve": "Start an engine to measure and keep it until Ctrl-C; prints the command that measures it.",
    "preflight": "Say what a server is and whether it can be measured; sends one short prompt and empties nothing.",
    "watch": "Watch a running server's interval hit rate, from its counters; sends no prompt and empties nothing.",
    "log": "Read an engine's log: tokens where its lines count them, else the window's rate. For eyeballing only.",
    "record": (
        "Record what an engine answers to random sequences, one request after another; `model` explains the file."
    ),
    "model": "Compare a cache model with what its engine answered: hit tokens and, where counted, evicted tokens.",
    "results": "List, show and compare the results that measure has kept.",
    "report": "Write kept results as one self-contained HTML page: asked, predicted, measured, checked, repeatable.",
    "lab": "Experiments that ask one question each: predict, run, look at the picture.",
    "check": "Recompute every number of the lab page and say whether it agrees; exit status 3 if one does not.",
    "replay": "Replay a trace through a prefix cache of fixed size: hit tokens, longest prefix only.",
    "sweep": "Replay a trace at many cache sizes: how much cache it needs, and whether the policy matters.",
    "trace": "Look at a trace.",
}

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
        if argv[0] == "--" and len(argv) > 1:  # no more options before the command: there is none that could matter
            argv = argv[1:]
        # Building every command costs more than `predict` itself, so only the called one is built.
        app = build_app((argv[0],)) if argv[0] in COMMANDS else _overview()
        command: Any = typer.main.get_command(app)
        _refuse_empty_paths(command)
        status: int = command(argv, prog_name="hitlab", standalone_mode=False) or 0
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


def build_app(commands: Iterable[str] = COMMANDS) -> typer.Typer:
    """The typer application with these commands, whose modules are imported."""
    app = _no_commands()
    for name in commands:
        module = import_module(f"hitlab.cli.{name}")
        if hasattr(module, "app"):
            app.add_typer(module.app, name=name)
        else:
            app.command(name)(module.command)
    return app


def _refuse_empty_paths(command: Any) -> None:
    """Have the command, or each of a group, raise UsageError for an empty path, which pathlib takes for this folder."""

    def refusing(name: str, usual: Any) -> Any:
        def convert(value: Any, *where: Any) -> Any:
            if value == "":
                raise UsageError(f"{name} is empty", todo="name a file or a folder, as . for the current one")
            return usual(value, *where)

        return convert

    for each in getattr(command, "commands", {}).values():
        _refuse_empty_paths(each)
    for each in command.params:
        if type(each.type).__name__ in ("TyperPath", "Path"):  # of typer's own click, or of the one beside it
            name = each.opts[0] if each.opts[0].startswith("-") else each.name.upper()
            each.type.convert = refusing(name, each.type.convert)


def _overview() -> typer.Typer:
    """The typer application that knows every command by its line alone, for the help page and for wrong names."""
    app = _no_commands()
    for name, line in COMMANDS.items():
        app.command(name, help=line)(_never_called)
    return app


def _no_commands() -> typer.Typer:
    app = typer.Typer(
        add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode="rich"
    )
    app.callback()(_hitlab)
    return app


def _never_called() -> None:
    """Stands for a command: one that is called is built by itself."""


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
