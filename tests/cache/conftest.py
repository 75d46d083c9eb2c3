"""What every test of cache models may ask for."""

import pytest
from cache.builders import Ids


@pytest.fixture
def ids() -> Ids:
    """Token ids nobody has seen before."""
    return Ids()
