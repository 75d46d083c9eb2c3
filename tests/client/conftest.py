"""What every test of the client may ask for."""

import asyncio
from typing import Any

import pytest
import respx
from client.callers import URL


@pytest.fixture
def server() -> Any:
    with respx.mock(base_url=URL, assert_all_called=False) as router:
        yield router


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Pauses are counted, not spent."""
    pauses: list[float] = []
    real = asyncio.sleep

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        await real(0)

    monkeypatch.setattr("hitlab.client.http.asyncio.sleep", sleep)
    return pauses
