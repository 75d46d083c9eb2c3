"""What every test may ask for."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


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
