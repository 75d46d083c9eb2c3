"""Read a running server's counters again and again. Reads only: no prompt, no reset."""

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime

from hitlab.client.http import EngineClient
from hitlab.errors import ServerError
from hitlab.measurement.intervals import Interval, Meter


async def begin(client: EngineClient) -> Meter:
    """The first reading. Raises MetricsError and the other errors of a server that can't be watched at all."""
    return Meter(await client.scrape(), time.monotonic())


async def intervals(
    client: EngineClient, meter: Meter, interval_s: float, count: int | None
) -> AsyncIterator[Interval]:
    """One interval after another, `count` of them or endlessly; a server that fails or restarts does not end it."""
    due_s = time.monotonic()
    known = True
    number = 0
    while count is None or number < count:
        due_s = max(due_s + interval_s, time.monotonic())
        await asyncio.sleep(due_s - time.monotonic())
        number += 1
        try:
            if not known:
                await client.facts()  # the server that is back may serve another model
            counters = await client.scrape()
        except ServerError as error:
            known = False
            yield meter.missed(str(error), time.monotonic(), _now())
        else:
            interval = meter.read(counters, time.monotonic(), _now())
            known = interval.kind != "restart"
            yield interval


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
