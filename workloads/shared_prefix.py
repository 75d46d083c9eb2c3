"""Prompts that share a prefix in each group and have a suffix of their own.

What must differ differs by construction, not by luck: every prompt's first token, every suffix's first token
and every broken token come from one walk over the vocabulary that never returns to an id. A page-1 radix cache
finds a one-token match that a random draw would make now and then (69 of 300 prompts with 512 ids).
"""

from collections.abc import Iterator
from math import gcd
from random import Random

from hitlab.errors import UsageError
from hitlab.types import Draw, Prompt, SharedPrefix

SUMMARY = "G prefixes used in turn, a fresh suffix in every request"


class SharedPrefixWorkload:
    """Builds every prompt of a run, the same ones for the same seed and the same order of calls."""

    def __init__(self, shape: SharedPrefix, seed: int, vocab_range: tuple[int, int]) -> None:
        """`vocab_range` is the first and the last token id that may be sent."""
        first, last = vocab_range
        if not 0 <= first < last:
            raise UsageError(f"--vocab-range {first}:{last} holds no two ids", todo="give FIRST:LAST, as 1000:31999")
        self.shape, self.seed = shape, seed
        self._ids = range(first, last + 1)
        self._unused = _walk(self._ids, Random(f"{seed} walk"))
        self._sent = 0
        self.fresh_prefixes()

    def fresh_prefixes(self) -> None:
        """From now on other prefixes, as `--cold-by fresh-prefix` wants them where a cache can't be emptied."""
        self._prefixes = [self._text(self.shape.prefix_tokens, "prefix") for _ in range(self.shape.groups)]
        self._fixed = [_KeptDraw(self) for _ in range(self.shape.groups)]

    def prompts(self, requests: int) -> list[Prompt]:
        """The next requests, groups in turn from the first, each with a suffix never used before."""
        return [
            Prompt(self._prefixes[index % self.shape.groups] + self._text(self.shape.suffix_tokens, "suffix"))
            for index in range(requests)
        ]

    def unrelated(self, requests: int, tokens: int) -> Iterator[Prompt]:
        """Prompts of so many tokens that share nothing with any other: a flood, built one at a time."""
        return (Prompt(self._text(tokens, "flood")) for _ in range(requests))

    def draws(self, requests: int, fixed: bool) -> list[Draw]:
        """What a break draws from for each request: its own, or its group's, for good, when the break is fixed."""
        if not fixed:
            return [_OwnDraw(self) for _ in range(requests)]
        return [self._fixed[index % self.shape.groups] for index in range(requests)]

    def unused_token(self) -> int:
        """The walk's next id. Raises UsageError when the vocabulary range is used up."""
        try:
            return next(self._unused)
        except StopIteration:
            raise UsageError(
                f"the run needs more different first tokens than the {len(self._ids):,} ids of its vocabulary range",
                todo="send fewer requests, a smaller flood, or widen --vocab-range (never above the model's)",
            ) from None

    def _text(self, tokens: int, purpose: str) -> tuple[int, ...]:
        if tokens == 0:
            return ()
        self._sent += 1
        body = Random(f"{self.seed} {purpose} {self._sent}").choices(self._ids, k=tokens - 1)
        return (self.unused_token(), *body)


class _OwnDraw:
    """Something new at every call."""

    def __init__(self, workload: SharedPrefixWorkload) -> None:
        self._workload = workload

    def token(self, unlike: int) -> int:
        token = self._workload.unused_token()
        return token if token != unlike else self._workload.unused_token()

    def salt(self) -> str:
        return f"hitlab-{self._workload.seed}-{self._workload.unused_token()}"


class _KeptDraw(_OwnDraw):
    """The first thing drawn, again and again."""

    def __init__(self, workload: SharedPrefixWorkload) -> None:
        super().__init__(workload)
        self._token: int | None = None
        self._salt: str | None = None

    def token(self, unlike: int) -> int:
        self._token = super().token(unlike) if self._token is None else self._token
        return self._token

    def salt(self) -> str:
        self._salt = super().salt() if self._salt is None else self._salt
        return self._salt


def _walk(ids: range, random: Random) -> Iterator[int]:
    """Every id once, in an order that looks random and needs no list: start + k*step modulo their number."""
    count = len(ids)
    step = next(step for step in iter(lambda: random.randrange(1, count), None) if gcd(step, count) == 1)
    start = random.randrange(count)
    return (ids[(start + k * step) % count] for k in range(count))
