"""What the tests of simulation may ask for."""

from pathlib import Path

import pytest

from hitlab.traces.reader import read_trace
from hitlab.traces.trace import Trace


@pytest.fixture
def chats(root: Path) -> Path:
    return root / "examples" / "chats.jsonl.gz"


@pytest.fixture
def trace(chats: Path) -> Trace:
    return read_trace(chats)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path
