"""Token ids that differ where they must, and prompts made of them: what every workload is built from.

What must differ differs by construction, not by luck: every prompt's first token, every suffix's first token
and every broken token come from one walk over the vocabulary that never returns to an id. A page-1 radix cache
finds a one-token match that a random draw would make now and then (69 of 300 prompts with 512 ids).
"""

from collections.abc import Iterator, Sequence
from itertools import count, islice
from math import gcd
from random import Random

from hitlab.errors import UsageError
from hitlab.experiment.shape import SharedPrefix
from hitlab.experiment.steps import Draw
from hitlab.tokens import Prompt


class TokenSource:
    """Texts of random ids with first ids that no other text has; the same for the same seed and order of calls."""

    def __init__(self, seed: int, vocab_range: tuple[int, int]) -> None:
        """`vocab_range` is the first and the last token id that may be sent."""
        first, last = vocab_range
        if not 0 <= first < last:
            raise UsageError(f"`vocab_range` {first}:{last} holds no two ids", todo="give FIRST:LAST, as 1000:31999")
        self.seed = seed
        self._ids = range(first, last + 1)
        self._unused = _walk(self._ids, Random(f"{seed} walk"))
        self._made = 0

    def text(self, tokens: int, purpose: str) -> tuple[int, ...]:
        """`tokens` ids; the first is used as a first id by no other text."""
        if tokens == 0:
            return ()
        self._made += 1
        body = Random(f"{self.seed} {purpose} {self._made}").choices(self._ids, k=tokens - 1)
        return (self.unused_token(), *body)

    def unused_token(self) -> int:
        """An id that was not given before. Raises UsageError when the vocabulary range is used up."""
        try:
            return next(self._unused)
        except StopIteration:
            raise UsageError(
                f"the run needs more different first tokens than the {len(self._ids):,} ids of its vocabulary range",
                todo="send fewer requests, a smaller flood, or widen `vocab_range` (never above the model's)",
            ) from None


class GroupedPrompts:
    """A Workload of prompts that share a prefix in each group and have a suffix of their own; groups in turn.

    With `salts`, one for each group, all groups have one same prefix and differ by their salt alone.
    """

    def __init__(
        self, shape: SharedPrefix, seed: int, vocab_range: tuple[int, int], salts: Sequence[str] | None = None
    ) -> None:
        self.shape = shape
        self._salts = salts
        self._source = TokenSource(seed, vocab_range)
        self._position = 0
        self._sent_groups: Sequence[int] = ()
        self.fresh_prefixes()

    def order(self, requests: int) -> Sequence[int]:
        """The group of each of the next requests: in turn, every pass of N from the first."""
        positions = range(self._position, self._position + requests)
        self._position = positions.stop
        return [position % self.shape.requests % self.shape.groups for position in positions]

    def fresh_prefixes(self) -> None:
        """Use other prefixes from now on, for servers whose cache can't be emptied."""
        self._prefixes = [self._source.text(self.shape.prefix_tokens, "prefix") for _ in range(self.shape.groups)]
        self._fixed = [_KeptDraw(self._source) for _ in range(self.shape.groups)]
        if self._salts:
            self._prefixes = self._prefixes[:1] * self.shape.groups

    def prompts(self, requests: int) -> list[Prompt]:
        """The next requests, each with a suffix that was never used before."""
        self._sent_groups = self.order(requests)
        return [
            Prompt(
                self._prefixes[group] + self._source.text(self.shape.suffix_tokens, "suffix"),
                self._salts[group] if self._salts else None,
            )
            for group in self._sent_groups
        ]

    def unrelated(self, requests: int, tokens: int) -> Iterator[Prompt]:
        """This many prompts of `tokens` ids, which share nothing with any other; each is built when it is taken."""
        return (Prompt(self._source.text(tokens, "flood")) for _ in range(requests))

    def draws(self, requests: int, fixed: bool) -> list[Draw]:
        """A draw for each of the last requests: one of its own, or, when the break is fixed, its group's."""
        if not fixed:
            return [OwnDraw(self._source) for _ in range(requests)]
        return [self._fixed[group] for group in self._sent_groups]

    def learn(self, prompt: Prompt, output: Sequence[int] | None) -> None:
        """Do nothing: later prompts do not depend on answers."""


class ShuffledPrompts(GroupedPrompts):
    """Grouped prompts in shuffled order; the first request of each group comes before all others.

    Without eviction the order of groups does not change the hits, as long as a group's first request is stored
    before others of the group overlap with it.
    """

    def __init__(self, shape: SharedPrefix, seed: int, vocab_range: tuple[int, int]) -> None:
        self._groups = _shuffled_passes(shape, seed)
        super().__init__(shape, seed, vocab_range)

    def order(self, requests: int) -> Sequence[int]:
        """The group of each of the next requests, pass after pass."""
        return list(islice(self._groups, requests))


class OwnDraw:
    """A Draw that gives something new at every call."""

    def __init__(self, source: TokenSource) -> None:
        self._source = source

    def token(self, unlike: int) -> int:
        """An unused id."""
        token = self._source.unused_token()
        return token if token != unlike else self._source.unused_token()

    def salt(self) -> str:
        """An unused salt."""
        return f"hitlab-{self._source.seed}-{self._source.unused_token()}"


class _KeptDraw(OwnDraw):
    """A Draw that gives the same token and the same salt at every call."""

    def __init__(self, source: TokenSource) -> None:
        super().__init__(source)
        self._token: int | None = None
        self._salt: str | None = None

    def token(self, unlike: int) -> int:
        self._token = super().token(unlike) if self._token is None else self._token
        return self._token

    def salt(self) -> str:
        self._salt = super().salt() if self._salt is None else self._salt
        return self._salt


def _shuffled_passes(shape: SharedPrefix, seed: int) -> Iterator[int]:
    for number in count():
        random = Random(f"{seed} order {number}")
        groups = list(range(shape.groups))
        rest = [index % shape.groups for index in range(shape.groups, shape.requests)]
        random.shuffle(groups)
        random.shuffle(rest)
        yield from groups
        yield from rest


def _walk(ids: range, random: Random) -> Iterator[int]:
    """Every id once, in an order that looks random: start + k*step modulo their number, which needs no list."""
    many = len(ids)
    step = next(step for step in iter(lambda: random.randrange(1, many), None) if gcd(step, many) == 1)
    start = random.randrange(many)
    return (ids[(start + k * step) % many] for k in range(many))
