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
            raise UsageError(f"--vocab-range {first}:{last} holds no two ids", todo="give FIRST:LAST, as 1000:31999")
        self.seed = seed
        self._ids = range(first, last + 1)
        self._unused = _walk(self._ids, Random(f"{seed} walk"))
        self._made = 0

    def text(self, tokens: int, purpose: str) -> tuple[int, ...]:
        """So many ids; the first is one that nothing else begins with."""
        if tokens == 0:
            return ()
        self._made += 1
        body = Random(f"{self.seed} {purpose} {self._made}").choices(self._ids, k=tokens - 1)
        return (self.unused_token(), *body)

    def unused_token(self) -> int:
        """The walk's next id. Raises UsageError when the vocabulary range is used up."""
        try:
            return next(self._unused)
        except StopIteration:
            raise UsageError(
                f"the run needs more different first tokens than the {len(self._ids):,} ids of its vocabulary range",
                todo="send fewer requests, a smaller flood, or widen --vocab-range (never above the model's)",
            ) from None


class GroupedPrompts:
    """A Workload of prompts that share a prefix in each group and have a suffix of their own; groups in turn."""

    def __init__(self, shape: SharedPrefix, seed: int, vocab_range: tuple[int, int]) -> None:
        self.shape = shape
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
        """From now on other prefixes, as `--cold-by fresh-prefix` wants them where a cache can't be emptied."""
        self._prefixes = [self._source.text(self.shape.prefix_tokens, "prefix") for _ in range(self.shape.groups)]
        self._fixed = [_KeptDraw(self._source) for _ in range(self.shape.groups)]

    def prompts(self, requests: int) -> list[Prompt]:
        """The next requests, each with a suffix never used before."""
        self._sent_groups = self.order(requests)
        return [
            Prompt(self._prefixes[group] + self._source.text(self.shape.suffix_tokens, "suffix"))
            for group in self._sent_groups
        ]

    def unrelated(self, requests: int, tokens: int) -> Iterator[Prompt]:
        """Prompts of so many tokens that share nothing with any other: a flood, built one at a time."""
        return (Prompt(self._source.text(tokens, "flood")) for _ in range(requests))

    def draws(self, requests: int, fixed: bool) -> list[Draw]:
        """What a break draws from for each request: its own, or its group's, for good, when the break is fixed."""
        if not fixed:
            return [OwnDraw(self._source) for _ in range(requests)]
        return [self._fixed[group] for group in self._sent_groups]

    def learn(self, prompt: Prompt, output: Sequence[int] | None) -> None:
        """Later prompts do not depend on answers."""


class ShuffledPrompts(GroupedPrompts):
    """The same with the groups of a pass shuffled, but for one request of each, which go first.

    Without eviction a group's order does not matter; that each is stored before others of it overlap does.
    """

    def __init__(self, shape: SharedPrefix, seed: int, vocab_range: tuple[int, int]) -> None:
        self._groups = _shuffled_passes(shape, seed)
        super().__init__(shape, seed, vocab_range)

    def order(self, requests: int) -> Sequence[int]:
        """The group of each of the next requests, pass after pass."""
        return list(islice(self._groups, requests))


class OwnDraw:
    """Something new at every call."""

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
    """The first thing drawn, again and again."""

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
    """Every id once, in an order that looks random and needs no list: start + k*step modulo their number."""
    many = len(ids)
    step = next(step for step in iter(lambda: random.randrange(1, many), None) if gcd(step, many) == 1)
    start = random.randrange(many)
    return (ids[(start + k * step) % many] for k in range(many))
