"""What the tests of the Python face share."""

from pathlib import Path

import pytest

from hitlab.traces.reader import read_trace
from hitlab.traces.trace import Trace


@pytest.fixture(scope="session")
def chats(root: Path) -> Path:
    """A trace that ships with the checkout."""
    return root / "examples" / "chats.jsonl.gz"


@pytest.fixture(scope="session")
def trace(chats: Path) -> Trace:
    """The same, read."""
    return read_trace(chats)
