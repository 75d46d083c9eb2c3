"""What every test of servers on a CPU may ask for."""

from pathlib import Path

import pytest
from servers.cpu.fakes import Heard


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache directory of this test's own, and little patience with what does not stop when asked."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("hitlab.servers.cpu.processes.GRACE_SECONDS", 0.2)
    return tmp_path / "hitlab"


@pytest.fixture
def heard() -> Heard:
    """The progress of whatever the test starts."""
    return Heard()
