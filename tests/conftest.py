"""What every test may ask for."""

import os
import re
import signal
from pathlib import Path

import pytest
from helpers import Hitlab, Ran

from hitlab.cli import main

ROOT = Path(__file__).resolve().parent.parent
# A command started under nohup or in a script's background ignores Ctrl-C, and so would all that tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
_STYLE = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return ROOT


@pytest.fixture(scope="session")
def shared() -> Path:
    """Cases, traces, recordings and real /metrics bodies that stand beside the checkout."""
    folder = Path(os.environ.get("HITLAB_SHARED", ROOT.parent / "shared"))
    if not folder.is_dir():
        pytest.skip(f"no shared data at {folder}: this checkout stands alone (HITLAB_SHARED names another place)")
    return folder


@pytest.fixture
def hitlab(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Hitlab:
    """Run the command line in this process, as `hitlab ARGUMENTS`, on a terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")

    def run(*arguments: object) -> Ran:
        with pytest.raises(SystemExit) as left:
            main([str(argument) for argument in arguments])
        captured = capfd.readouterr()
        return Ran(int(left.value.code or 0), _STYLE.sub("", captured.out), _STYLE.sub("", captured.err))

    return run
