"""Read a running server's counters again and again: the hit rate of one interval after another. Sends no prompt.

A cumulative rate hides what happens now; the difference of two readings does not (lab page, section 2).
"""

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import msgspec

from hitlab.client.counters import Counters
from hitlab.client.http import EngineClient
from hitlab.errors import ServerError
from hitlab.experiment.closed_form import matchable_tokens
from hitlab.flags import in_flags
from hitlab.tokens import NOTHING, Tally


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """What happened between two readings. Rates are 0 to 1, None where nothing was looked up.

    `kind` is "interval", or "restart" (other counters answer: counting begins again) or "missed" (they could not be
    read: the next interval covers this one, too), of which `detail` says why.
    """

    kind: str
    at_utc: str
    seconds: float
    queried_tokens: int = 0
    hit_tokens: int = 0
    hit_rate: float | None = None
    queried_tokens_per_s: float = 0.0
    computed_tokens_per_s: float = 0.0
    external_hit_tokens: int = 0  # of a tier behind the cache
    evicted_tokens: int | None = None  # None where the engine does not say
    preemptions: int = 0
    detail: str = ""


class Meter:
    """Turns readings into intervals; seconds are those of any clock that never goes back.

    >>> meter = Meter(Counters({"tokens": Tally(1000, 900)}), 0.0)
    >>> interval = meter.read(Counters({"tokens": Tally(1400, 1000)}), 2.0, "12:00:02")
    >>> interval.hit_rate, interval.queried_tokens_per_s
    (0.25, 200.0)
    """

    def __init__(self, first: Counters, at_s: float) -> None:
        self._last, self._last_s = first, at_s
        self._started_s = self._seen_s = at_s
        self.tally = NOTHING
        self.evicted_tokens: int | None = None
        self.intervals = self.restarts = self.missed_readings = 0

    @property
    def seconds(self) -> float:
        """From the first reading to the last, or to the last try."""
        return self._seen_s - self._started_s

    def read(self, now: Counters, at_s: float, at_utc: str) -> Interval:
        """The interval that ends with this reading."""
        before, seconds = self._last, at_s - self._last_s
        self._last, self._last_s, self._seen_s = now, at_s, at_s
        restarted = now.restarted_since(before)
        if restarted:
            self.restarts += 1
            return Interval(kind="restart", at_utc=at_utc, seconds=seconds, detail=restarted)
        tally, _ = now.since(before)
        evicted = None
        if now.evicted_tokens is not None:
            evicted = now.evicted_tokens - (before.evicted_tokens or 0)
            self.evicted_tokens = (self.evicted_tokens or 0) + evicted
        self.tally += tally
        self.intervals += 1
        return Interval(
            kind="interval",
            at_utc=at_utc,
            seconds=seconds,
            queried_tokens=tally.queried_tokens,
            hit_tokens=tally.hit_tokens,
            hit_rate=tally.hit_rate,
            queried_tokens_per_s=_per_second(tally.queried_tokens, seconds),
            computed_tokens_per_s=_per_second(tally.queried_tokens - tally.hit_tokens, seconds),
            external_hit_tokens=now.external.hit_tokens - before.external.hit_tokens,
            evicted_tokens=evicted,
            preemptions=now.preemptions - before.preemptions,
        )

    def missed(self, why: str, at_s: float, at_utc: str) -> Interval:
        """No reading now; the time goes to the next one."""
        self.missed_readings += 1
        self._seen_s = at_s
        return Interval(kind="missed", at_utc=at_utc, seconds=at_s - self._last_s, detail=why)


def ceiling(prefix_tokens: int, suffix_tokens: int, block_tokens: int) -> Tally:
    """Of one request with a stored prefix: the most that the closed form allows, every request of the interval warm.

    >>> ceiling(1000, 200, 16)
    Tally(queried_tokens=1200, hit_tokens=992)
    """
    prompt_tokens = prefix_tokens + suffix_tokens
    return Tally(prompt_tokens, matchable_tokens(prefix_tokens, prompt_tokens, block_tokens))


def _per_second(tokens: int, seconds: float) -> float:
    return tokens / seconds if seconds > 0 else 0.0


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
            yield meter.missed(in_flags(str(error)), time.monotonic(), _now())
        else:
            interval = meter.read(counters, time.monotonic(), _now())
            known = interval.kind != "restart"
            yield interval


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
