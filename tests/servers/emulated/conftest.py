"""What every test of emulated engines may ask for."""

import pytest
from servers.emulated.callers import Prompts


@pytest.fixture
def prompts() -> Prompts:
    """Prompts that share nothing by accident."""
    return Prompts()
