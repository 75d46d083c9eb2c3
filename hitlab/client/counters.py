"""An engine's token counters at one moment, and waiting until they hold everything that was sent."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from hitlab.tokens import NOTHING, Tally

SETTLE_S = 5.0  # SGLang's counters were complete within 102 ms in 150 tries
_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Counters:
    """A server's token counters at one moment.

    `pairs` maps each counter pair that was found to its tokens, the most trustworthy pair first. Which pair an
    interval uses is decided at its end, because a pair may appear only once its first token is counted.
    """

    pairs: Mapping[str, Tally]
    external: Tally = NOTHING  # of an offload tier
    preemptions: int = 0
    evicted_tokens: int | None = None
    raw: Mapping[str, float] = field(default_factory=dict)  # every series looked at
    births: Mapping[str, float] = field(default_factory=dict)  # when counters were made, where the page says

    def since(self, before: "Counters") -> tuple[Tally, str]:
        """Tokens counted since an earlier reading, and the pair they were read from; nothing and "" without a pair."""
        for source, now in self.pairs.items():
            return now - before.pairs.get(source, NOTHING), source
        return NOTHING, ""

    def restarted_since(self, before: "Counters") -> str:
        """Which counter fell, vanished or was created anew since, so that another server must be answering; or ""."""
        for series, value in before.raw.items():
            if self.raw.get(series, -1.0) < value:
                return f"{series} fell"
        for series, moment in before.births.items():
            if self.births.get(series, moment) != moment:
                return f"{series} was made anew"
        return ""

    def __add__(self, other: "Counters") -> "Counters":
        """The counters of two servers added up."""
        evicted = [part for part in (self.evicted_tokens, other.evicted_tokens) if part is not None]
        return Counters(
            pairs={
                source: self.pairs.get(source, NOTHING) + other.pairs.get(source, NOTHING)
                for source in {**self.pairs, **other.pairs}
            },
            external=self.external + other.external,
            preemptions=self.preemptions + other.preemptions,
            evicted_tokens=sum(evicted) if evicted else None,
            raw={**self.raw, **other.raw},
            births={**self.births, **other.births},
        )


async def wait_for_counters(
    scrape: Callable[[], Awaitable[Counters]],
    baseline: Counters,
    sent_tokens: int,
    last: Counters,
    patience_s: float = SETTLE_S,
) -> Counters:
    """Scrape until two readings are equal and hold `sent_tokens` since `baseline`.

    After `patience_s` seconds the last reading is returned as it is. Counters that restarted since `last` are
    returned at once, and the caller has to notice.
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
