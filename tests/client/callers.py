"""What the tests of the HTTP client share: one call of a client, run to its end."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from hitlab.client.dialect import load_engine
from hitlab.client.http import EngineClient
from hitlab.tokens import Prompt

T = TypeVar("T")
URL = "http://engine:8000"
PROMPT = Prompt(tuple(range(1000, 1097)))


def ask(what: Callable[[EngineClient], Awaitable[T]], engine: str = "vllm", **options: Any) -> T:
    """Run one client call to its end."""

    async def run() -> T:
        async with EngineClient(load_engine(engine), URL, **options) as client:
            return await what(client)

    return asyncio.run(run())
