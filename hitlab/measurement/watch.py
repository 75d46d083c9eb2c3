"""Read a running server's counters again and again: the hit rate of one interval after another. Sends no prompt.

A cumulative rate hides what happens now; the difference of two readings does not (lab page, section 2).
"""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime

import msgspec

from hitlab.client.counters import Counters, Move, Part, added_up
from hitlab.client.http import EngineClient
from hitlab.errors import ServerError
from hitlab.experiment.closed_form import matchable_tokens
from hitlab.flags import in_flags
from hitlab.tokens import Tally


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One model, role or server of an interval in which there are several; None is unknown.

    `hit_tokens` and `hit_rate` are the hits as the engine counts them, `overall_hit_rate` those of every tier.
    """

    model: str
    role: str
    place: str
    address: str
    queried_tokens: int
    hit_tokens: int | None
    hit_rate: float | None
    overall_hit_rate: float | None
    local_hit_tokens: int | None
    external_hit_tokens: int
    host_hit_tokens: int | None
    storage_hit_tokens: int | None
    computed_tokens: int | None
    detail: str = ""

    @property
    def label(self) -> str:
        """What it is called in a table."""
        named = (self.model, self.role, self.place, self.address.removeprefix("http://"))
        return ", ".join(filter(None, named)) or "(no labels)"


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """What happened between two readings. Rates are 0 to 1, None where nothing was looked up or it is not known.

    `kind` is "interval", or "restart" (other counters answer: counting begins again) or "missed" (they could not be
    read: the next interval covers this one, too), of which `detail` says why. Of an interval without a rate that had
    prompts, and of one that took longer than it should, `detail` says why, too.

    `rows` are the models, roles or servers, where the counters tell several apart. Where their sum has no meaning, as
    that of two models, tokens and rates of the interval itself are None.
    """

    kind: str
    at_utc: str
    seconds: float
    queried_tokens: int | None = 0
    hit_tokens: int | None = 0
    hit_rate: float | None = None
    queried_tokens_per_s: float | None = 0.0
    computed_tokens_per_s: float | None = 0.0
    external_hit_tokens: int = 0  # of a tier behind the cache
    evicted_tokens: int | None = None  # None where the engine does not say
    preemptions: int = 0
    detail: str = ""
    overall_hit_rate: float | None = None  # hits of every tier
    computed_tokens: int | None = None  # that no tier had
    local_hit_tokens: int | None = None  # of the cache beside the model
    host_hit_tokens: int | None = None  # of SGLang's host memory
    storage_hit_tokens: int | None = None  # of the storage behind that
    rows: tuple[Row, ...] = ()


class Meter:
    """Turns readings into intervals; seconds are those of any clock that never goes back.

    >>> meter = Meter(Counters((Part({"tokens": Tally(1000, 900)}),)), 0.0)
    >>> interval = meter.read(Counters((Part({"tokens": Tally(1400, 1000)}),)), 2.0, "12:00:02")
    >>> interval.hit_rate, interval.queried_tokens_per_s
    (0.25, 200.0)
    """

    def __init__(self, first: Counters, at_s: float) -> None:
        self.first = self._last = first
        self._started_s = self._seen_s = self._last_s = at_s
        self.total = Move(Part())
        self.by_owner: dict[tuple[str, str, str, str], Move] = {}
        self.mixed = ""
        self.evicted_tokens: int | None = None
        self.intervals = self.restarts = self.missed_readings = 0

    @property
    def seconds(self) -> float:
        """From the first reading to the last, or to the last try."""
        return self._seen_s - self._started_s

    @property
    def tally(self) -> Tally:
        """All intervals together; hits that are not known count as none, which `total` tells apart."""
        return self.total.tally

    def read(self, now: Counters, at_s: float, at_utc: str) -> Interval:
        """The interval that ends with this reading."""
        before, seconds = self._last, at_s - self._last_s
        self._last, self._last_s, self._seen_s = now, at_s, at_s
        restarted = now.restarted_since(before)
        if restarted:
            self.restarts += 1
            return Interval(kind="restart", at_utc=at_utc, seconds=seconds, detail=restarted)
        moves = now.moves(before)
        evicted = now.evicted_since(before)
        if evicted is not None:
            self.evicted_tokens = (self.evicted_tokens or 0) + evicted
        moved = added_up(moves)
        self.total = self.total + moved if self.intervals else moved
        for move in moves:
            owner = move.part.owner
            self.by_owner[owner] = (
                replace(self.by_owner[owner] + move, part=move.part) if owner in self.by_owner else move
            )
        self.mixed = now.mixed
        self.intervals += 1
        summed = not now.mixed
        return Interval(
            kind="interval",
            at_utc=at_utc,
            seconds=seconds,
            queried_tokens=moved.queried_tokens if summed else None,
            hit_tokens=moved.hit_tokens if summed else None,
            hit_rate=moved.hit_rate if summed else None,
            overall_hit_rate=moved.overall_hit_rate if summed else None,
            queried_tokens_per_s=_per_second(moved.queried_tokens, seconds) if summed else None,
            computed_tokens_per_s=_per_second(moved.computed_tokens, seconds) if summed else None,
            computed_tokens=moved.computed_tokens if summed else None,
            external_hit_tokens=moved.external.hit_tokens,
            local_hit_tokens=moved.tiers.local if summed else None,
            host_hit_tokens=moved.tiers.host if summed else None,
            storage_hit_tokens=moved.tiers.storage if summed else None,
            evicted_tokens=evicted,
            preemptions=now.preemptions - before.preemptions,
            detail=now.mixed or _why_no_rate(moved),
            rows=tuple(map(_row, moves)) if len(moves) > 1 else (),
        )

    def missed(self, why: str, at_s: float, at_utc: str) -> Interval:
        """No reading now; the time goes to the next one."""
        self.missed_readings += 1
        self._seen_s = at_s
        return Interval(kind="missed", at_utc=at_utc, seconds=at_s - self._last_s, detail=why)


def _row(move: Move) -> Row:
    part = move.part
    return Row(
        model=part.model,
        role=part.role,
        place=part.place,
        address=part.address,
        queried_tokens=move.queried_tokens,
        hit_tokens=move.hit_tokens,
        hit_rate=move.hit_rate,
        overall_hit_rate=move.overall_hit_rate,
        local_hit_tokens=move.tiers.local,
        external_hit_tokens=move.external.hit_tokens,
        host_hit_tokens=move.tiers.host,
        storage_hit_tokens=move.tiers.storage,
        computed_tokens=move.computed_tokens,
        detail=_why_no_rate(move),
    )


def _why_no_rate(move: Move) -> str:
    return move.contradiction or (move.part.lacks if move.hit_tokens is None else "")


def ceiling(prefix_tokens: int, suffix_tokens: int, block_tokens: int) -> Tally:
    """Of one request with a stored prefix: the most that the closed form allows, every request of the interval warm.

    >>> ceiling(1000, 200, 16)
    Tally(queried_tokens=1200, hit_tokens=992)
    """
    prompt_tokens = prefix_tokens + suffix_tokens
    return Tally(prompt_tokens, matchable_tokens(prefix_tokens, prompt_tokens, block_tokens))


def _per_second(tokens: int | None, seconds: float) -> float | None:
    if tokens is None:
        return None
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
        asked_s = time.monotonic()
        try:
            if not known:
                await client.facts()  # the server that is back may serve another model
            counters = await client.scrape()
        except ServerError as error:
            known = False
            yield meter.missed(in_flags(str(error)), time.monotonic(), _now())
        else:
            read_s = time.monotonic()
            interval = meter.read(counters, read_s, _now())
            known = interval.kind != "restart"
            yield _slow(interval, read_s - asked_s, interval_s)


def _slow(interval: Interval, reading_s: float, interval_s: float) -> Interval:
    """The interval, saying so where reading the counters took longer than the time between two readings."""
    if reading_s <= interval_s:
        return interval
    said = f"this reading took {reading_s:.1f} s, longer than the interval of {interval_s:g} s"
    return msgspec.structs.replace(interval, detail="; ".join(filter(None, (interval.detail, said))))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
