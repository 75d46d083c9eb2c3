"""What every test may ask for."""

import os
import re
import signal
from pathlib import Path

import pytest
from helpers import Hitlab, Ran

from hitlab.cli import _signals, main

ROOT = Path(__file__).resolve().parent.parent
# A command started under nohup or in a script's background ignores Ctrl-C, and so would all that tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
_STYLE = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return ROOT


@pytest.fixture(scope="session")
def data() -> Path:
    """tests/data: cases, recordings, real /metrics bodies and logs, and the beginnings of traces (see its README)."""
    return ROOT / "tests" / "data"


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder whose traces/ holds the whole published traces, too large to be kept here; skips without it.

    HITLAB_SHARED names it; without that it is looked for beside the checkout. tests/data/README.md says what to put
    there, and tests/simulation/test_excerpts.py holds the same promises on the traces' beginnings.
    """
    folder = Path(os.environ.get("HITLAB_SHARED", ROOT.parent / "shared"))
    if not (folder / "traces").is_dir():
        pytest.skip(f"no published traces at {folder / 'traces'}: tests/data/README.md says where to get them")
    return folder


@pytest.fixture
def hitlab(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Hitlab:
    """Run the command line in this process, as `hitlab ARGUMENTS`, on a terminal of 80 columns.

    Signals stay pytest's own: one that ends the tests is not taken for one that ends the command.
    """
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(_signals, "SIGNALS", ())

    def run(*arguments: object) -> Ran:
        with pytest.raises(SystemExit) as left:
            main([str(argument) for argument in arguments])
        captured = capfd.readouterr()
        return Ran(int(left.value.code or 0), _STYLE.sub("", captured.out), _STYLE.sub("", captured.err))

    return run
