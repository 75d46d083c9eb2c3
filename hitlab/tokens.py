"""Tokens counted and tokens sent: the nouns that every room speaks in."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tally:
    """Prompt tokens looked up and found; the same type for a prediction and a measurement.

    >>> measured, predicted = Tally(76_800, 62_496), Tally(76_800, 63_000)
    >>> measured - predicted
    Tally(queried_tokens=0, hit_tokens=-504)
    >>> measured.hit_rate
    0.81375
    >>> Tally(0, 0).hit_rate is None
    True
    """

    queried_tokens: int
    hit_tokens: int

    @property
    def hit_rate(self) -> float | None:
        """Hit tokens over queried tokens, 0 to 1; None when nothing was queried."""
        return self.hit_tokens / self.queried_tokens if self.queried_tokens else None

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(self.queried_tokens + other.queried_tokens, self.hit_tokens + other.hit_tokens)

    def __sub__(self, other: "Tally") -> "Tally":
        return Tally(self.queried_tokens - other.queried_tokens, self.hit_tokens - other.hit_tokens)


NOTHING = Tally(0, 0)


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request's token ids and its cache salt; None is the unsalted namespace."""

    tokens: tuple[int, ...]
    salt: str | None = None
