"""Recordings of real engines, read once."""

from pathlib import Path

import pytest

from hitlab.recordings.recording import Recording, read_recording


@pytest.fixture(scope="session")
def recordings(shared: Path) -> dict[str, Recording]:
    """Those that stand beside the checkout, by name."""
    files = sorted((shared / "recordings").glob("*.json.gz"))
    return {file.name.removesuffix(".json.gz"): read_recording(file.read_bytes()) for file in files}
