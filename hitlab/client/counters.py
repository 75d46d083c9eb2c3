"""Waiting until an engine's counters hold everything that was sent: SGLang's come a moment after the response."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from hitlab.client.dialect import Counters

SETTLE_S = 5.0  # SGLang's counters were complete within 102 ms in 150 tries
_POLL_S = 0.02


async def settled(
    scrape: Callable[[], Awaitable[Counters]],
    baseline: Counters,
    sent_tokens: int,
    last: Counters,
    patience_s: float = SETTLE_S,
) -> Counters:
    """The counters once they hold `sent_tokens` since `baseline`, twice the same; at the deadline, as they are.

    At once if they have restarted since `last`, which is for the caller to see.
    """
    deadline = time.monotonic() + patience_s
    previous: Counters | None = None
    pause_s = _POLL_S
    while True:
        now = await scrape()
        short = now.since(baseline)[0].queried_tokens < sent_tokens
        same = previous is not None and now.raw == previous.raw
        if now.restarted_since(last) or (same and not short) or time.monotonic() > deadline:
            return now
        if short:
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, 0.25)
        previous = now
