"""An engine's token counters at one moment, and waiting until they hold everything that was sent."""

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import add

from hitlab.tokens import NOTHING, Tally

SETTLE_S = 5.0  # SGLang's counters were complete within 102 ms in 150 tries
_POLL_S = 0.02
_AND = " + "


@dataclass(frozen=True, slots=True)
class Tiers:
    """Prompt tokens by where they were found; None is a tier that the engine does not have or does not tell apart."""

    local: int | None = None  # in the cache beside the model
    external: int | None = None  # vLLM's connectors
    host: int | None = None  # SGLang's, in the machine's memory
    storage: int | None = None  # SGLang's, behind that

    def __add__(self, other: "Tiers") -> "Tiers":
        return Tiers(*(None if None in pair else sum(filter(None, pair)) for pair in _in_pairs(self, other)))

    def __sub__(self, other: "Tiers") -> "Tiers":
        return Tiers(*(None if now is None else now - (before or 0) for now, before in _in_pairs(self, other)))


def _in_pairs(one: Tiers, other: Tiers) -> Iterable[tuple[int | None, int | None]]:
    return (
        (one.local, other.local),
        (one.external, other.external),
        (one.host, other.host),
        (one.storage, other.storage),
    )


@dataclass(frozen=True, slots=True)
class Part:
    """The token counters of one model, in one role, at one place: what may be added up without saying so.

    `pairs` maps each counter pair that was found to its tokens, the most trustworthy pair first. Which pair an
    interval uses is decided at its end, because a pair may appear only once its first token is counted; and for each
    part by itself, because servers of different versions name their counters differently.
    """

    pairs: Mapping[str, Tally] = field(default_factory=dict)
    tiers: Mapping[str, Tiers] = field(default_factory=dict)  # of each pair that tells its tiers
    external: Tally = NOTHING  # of a tier behind the cache; where it counts its look-ups, no hit of `pairs` is here
    model: str = ""  # "" where the page does not say
    role: str = ""  # prefill or decode; "" for a server that does both
    place: str = ""  # labels that tell servers on one page apart
    address: str = ""  # of the page, where there are several
    halves: Mapping[str, int] = field(default_factory=dict)  # prompt tokens of pairs whose hits are not known
    lacks: str = ""  # why the hits are not known, where there is no pair
    never: bool = True  # whether that is so for good; a counter may also be waiting for its first token

    @property
    def owner(self) -> tuple[str, str, str, str]:
        """What makes it the same part in another reading."""
        return self.address, self.model, self.role, self.place

    @property
    def apart_tokens(self) -> int:
        """Hits of a tier that counts its own look-ups: none of them is among the hits of a pair."""
        return self.external.hit_tokens if self.external.queried_tokens else 0

    def since(self, before: "Part") -> "Move":
        """What was counted since an earlier reading of the same part."""
        if not self.pairs:
            half = next(iter(self.halves), "")
            known = before.halves.get(half, before.pairs.get(half, NOTHING).queried_tokens)
            return Move(
                part=self,
                queried_tokens=self.halves.get(half, 0) - known,
                hit_tokens=None if self.lacks else 0,
            )
        source = next(iter(self.pairs))
        # A half whose hits were not on the page yet was whole all the same: its hits were 0.
        earlier = before.pairs.get(source, Tally(before.halves.get(source, 0), 0))
        moved = self.pairs[source] - earlier
        return Move(
            part=self,
            queried_tokens=moved.queried_tokens,
            hit_tokens=moved.hit_tokens,
            apart_tokens=self.apart_tokens - before.apart_tokens,
            external=self.external - before.external,
            tiers=self.tiers[source] - before.tiers.get(source, Tiers()) if source in self.tiers else Tiers(),
            source=source,
        )


@dataclass(frozen=True, slots=True)
class Move:
    """What counters moved by between two readings: of one part, or of several added up.

    `hit_tokens` are the hits as the engine counts them, beside which `apart_tokens` were found by a tier that counts
    its own; None is unknown.
    """

    part: Part
    queried_tokens: int = 0
    hit_tokens: int | None = 0
    apart_tokens: int = 0
    external: Tally = NOTHING
    tiers: Tiers = field(default_factory=Tiers)
    source: str = ""
    wrong: str = ""  # the contradiction of a part, where several are added up

    @property
    def contradiction(self) -> str:
        """Why no rate can be had from these numbers, in a sentence; "" where they fit together."""
        hit, tier = self.hit_tokens or 0, self.external
        if self.wrong:
            return self.wrong
        if min(self.queried_tokens, hit, self.apart_tokens) < 0:
            return f"{hit:,} cached of {self.queried_tokens:,} prompt tokens: counters can't move by less than nothing"
        if hit + self.apart_tokens > self.queried_tokens:
            return (
                f"{hit + self.apart_tokens:,} cached of {self.queried_tokens:,} prompt tokens: "
                "these counters contradict each other"
            )
        if tier.queried_tokens and tier.hit_tokens > tier.queried_tokens:
            return (
                f"{tier.hit_tokens:,} found of {tier.queried_tokens:,} tokens looked up in the external tier: "
                "these counters contradict each other"
            )
        return ""

    @property
    def hit_rate(self) -> float | None:
        """Hit tokens over prompt tokens, 0 to 1; None where nothing was looked up or the hits are not known."""
        return self._rate(self.hit_tokens)

    @property
    def overall_hit_rate(self) -> float | None:
        """The same with the hits of every tier."""
        return self._rate(None if self.hit_tokens is None else self.hit_tokens + self.apart_tokens)

    @property
    def computed_tokens(self) -> int | None:
        """Prompt tokens that no tier had; None where that is not known."""
        if self.hit_tokens is None or self.contradiction:
            return None
        return self.queried_tokens - self.hit_tokens - self.apart_tokens

    @property
    def tally(self) -> Tally:
        """As two numbers, for what has made sure that the hits are known."""
        return Tally(self.queried_tokens, self.hit_tokens or 0)

    def _rate(self, hit_tokens: int | None) -> float | None:
        if hit_tokens is None or self.contradiction:
            return None
        return Tally(self.queried_tokens, hit_tokens).hit_rate

    def __add__(self, other: "Move") -> "Move":
        """Both together; the sum belongs to no part."""
        hits = self.hit_tokens, other.hit_tokens
        sources = {*self.source.split(_AND), *other.source.split(_AND)} - {""}
        return Move(
            part=Part(lacks=self.part.lacks or other.part.lacks),
            queried_tokens=self.queried_tokens + other.queried_tokens,
            hit_tokens=None if None in hits else sum(filter(None, hits)),
            apart_tokens=self.apart_tokens + other.apart_tokens,
            external=self.external + other.external,
            tiers=self.tiers + other.tiers,
            source=_AND.join(sorted(sources)),
            wrong=self.contradiction or other.contradiction,
        )


def added_up(moves: Sequence[Move]) -> Move:
    """The moves of several parts together; of none, nothing."""
    return reduce(add, moves) if moves else Move(Part())


@dataclass(frozen=True, slots=True)
class Counters:
    """A server's token counters at one moment, of every part that its pages tell apart."""

    parts: tuple[Part, ...] = ()
    preemptions: int = 0
    evicted_tokens: int | None = None
    raw: Mapping[str, float] = field(default_factory=dict)  # every series looked at
    births: Mapping[str, float] = field(default_factory=dict)  # when counters were made, where the page says
    notes: tuple[str, ...] = ()  # what a reader of the numbers should know

    @property
    def lacks(self) -> str:
        """What a part does not count, in a sentence; "" when all parts have a hit rate."""
        return next((part.lacks for part in self.parts if part.lacks), "")

    @property
    def mixed(self) -> str:
        """Why the parts have no rate together, in words; "" where their sum means something."""
        models = {part.model for part in self.parts}
        if len(models) > 1:
            return f"counters of {len(models)} models: {', '.join(sorted(model or '(no name)' for model in models))}"
        roles = {part.role for part in self.parts}
        if len(roles) > 1:  # each prompt is looked up once in either role
            return f"counters of {len(roles)} roles: {', '.join(sorted(role or '(no role)' for role in roles))}"
        return ""

    def moves(self, before: "Counters") -> list[Move]:
        """What each part counted since an earlier reading; a part that is new counts from nothing."""
        known = {part.owner: part for part in before.parts}
        return [part.since(known.get(part.owner, Part())) for part in self.parts]

    def move(self, before: "Counters") -> Move:
        """The same added up; only where they are not `mixed` its rates mean something."""
        return added_up(self.moves(before))

    def evicted_since(self, before: "Counters") -> int | None:
        """Tokens evicted since an earlier reading; None where the engine does not count them."""
        return None if self.evicted_tokens is None else self.evicted_tokens - (before.evicted_tokens or 0)

    def since(self, before: "Counters") -> tuple[Tally, str]:
        """Tokens counted since an earlier reading, and what they were read from; nothing and "" without a pair."""
        moved = self.move(before)
        return moved.tally, moved.source

    @property
    def external(self) -> Tally:
        """Of tiers behind the cache."""
        return sum((part.external for part in self.parts), NOTHING)

    def restarted_since(self, before: "Counters") -> str:
        """Which counter fell, vanished or was created anew since, so that another server must be answering; or ""."""
        for series, value in before.raw.items():
            if self.raw.get(series, -1.0) < value:
                return f"{series} fell"
        for series, moment in before.births.items():
            if self.births.get(series, moment) != moment:
                return f"{series} was made anew"
        return ""

    def at(self, address: str) -> "Counters":
        """The same counters, with their page's address on every part and in front of every series' name."""
        raw, births = (
            {f"{address} {series}": value for series, value in values.items()} for values in (self.raw, self.births)
        )
        parts = tuple(replace(part, address=address) for part in self.parts)
        return replace(self, parts=parts, raw=raw, births=births)

    def __add__(self, other: "Counters") -> "Counters":
        """The counters of two servers, in an order that does not depend on which comes first."""
        evicted = [part for part in (self.evicted_tokens, other.evicted_tokens) if part is not None]
        return Counters(
            parts=tuple(sorted((*self.parts, *other.parts), key=lambda part: part.owner)),
            preemptions=self.preemptions + other.preemptions,
            evicted_tokens=sum(evicted) if evicted else None,
            raw={**self.raw, **other.raw},
            births={**self.births, **other.births},
            notes=tuple(sorted({*self.notes, *other.notes})),
        )


async def wait_for_counters(
    scrape: Callable[[], Awaitable[Counters]],
    baseline: Counters,
    sent_tokens: int,
    last: Counters,
    patience_s: float = SETTLE_S,
    *,
    twice: bool = True,
) -> Counters:
    """Scrape until two readings are equal and hold `sent_tokens` since `baseline`.

    Unless `twice`, one reading that holds exactly these tokens is enough: nothing is missing, and nothing else moves.
    After `patience_s` seconds the last reading is returned as it is. Counters that restarted since `last` are
    returned at once, and the caller has to notice.
    """
    import asyncio  # slow, and `predict` waits for nothing

    deadline = time.monotonic() + patience_s
    previous: Counters | None = None
    pause_s = _POLL_S
    while True:
        now = await scrape()
        counted = now.since(baseline)[0].queried_tokens
        short = counted < sent_tokens
        still = (previous is not None and now.raw == previous.raw) or (not twice and counted == sent_tokens)
        if now.restarted_since(last) or (still and not short) or time.monotonic() > deadline:
            return now
        if short:
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, 0.25)
        previous = now
