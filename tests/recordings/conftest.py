"""Recordings of real engines, read once."""

from pathlib import Path

import pytest

from hitlab.recordings.recording import Recording, read_recording


@pytest.fixture(scope="session")
def recordings(data: Path) -> dict[str, Recording]:
    """All of tests/data, by name."""
    files = sorted((data / "recordings").glob("*.json.gz"))
    return {file.name.removesuffix(".json.gz"): read_recording(file.read_bytes()) for file in files}
