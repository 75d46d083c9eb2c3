"""Conversations: every turn sends all that was said before, the generated tokens too, and a new message.

G conversations take turns; each opens with P tokens of its own, every message has S, every answer n. Turn t sends
L(t) = P + t*S + (t-1)*n tokens and finds what turn t-1 left: its prompt and all of its answer but the last token,
which nothing has computed. So B*floor((L(t-1) + n - 1) / B) tokens hit (measured, docs/engine-notes.md).
"""

from collections.abc import Iterator, Sequence
from math import gcd

from hitlab.errors import ServerError, UsageError
from hitlab.experiment.prompts import OwnDraw, TokenSource
from hitlab.experiment.shape import ColdRequests, Phase, Role, SharedPrefix
from hitlab.experiment.steps import Draw
from hitlab.tokens import Prompt

SUMMARY = "G conversations in turn; every turn sends all before it, generated tokens too"
BREAKABLE = False
SEQUENTIAL = True


def fit(shape: SharedPrefix) -> SharedPrefix:
    """The shape, unchanged: each conversation has N/G turns. Raises UsageError where N/G is not whole or S is 0."""
    if shape.requests % shape.groups:
        raise UsageError(
            f"{shape.requests:,} requests are no multiple of {shape.groups:,} conversations",
            todo="give `requests_per_group`, the turns of each, in place of `requests`",
        )
    if not shape.suffix_tokens:
        raise UsageError("a turn without a message", todo="give `suffix_tokens` 1 or more")
    return shape


def phases(shape: SharedPrefix, output_tokens: int, ranks: int) -> list[Phase]:
    """One phase a turn. With several ranks a conversation is on the same rank only every few turns, and finds that one.

    Raises UsageError for answers of one token, whose id does not come back.
    """
    if output_tokens < 2:
        raise UsageError("a turn without an answer", todo="give `output_tokens` 2 or more")
    turns = shape.requests // shape.groups
    lengths = [
        shape.prefix_tokens + turn * shape.suffix_tokens + (turn - 1) * output_tokens for turn in range(1, turns + 1)
    ]
    back = ranks // gcd(shape.groups, ranks)
    return [
        Phase(
            f"turn {turn + 1}",
            Role.UNBROKEN,
            shape.groups,
            lengths[turn - back] + output_tokens - 1 if turn >= back else 0,
            ColdRequests.NONE,
            prompt_tokens=length,
        )
        for turn, length in enumerate(lengths)
    ]


def build(shape: SharedPrefix, seed: int, vocab_range: tuple[int, int], output_tokens: int) -> "Conversations":
    """The prompts, in the order in which they are sent."""
    return Conversations(shape, seed, vocab_range)


class Conversations:
    """Builds each prompt when it is asked for, since it holds the answers to the ones before."""

    def __init__(self, shape: SharedPrefix, seed: int, vocab_range: tuple[int, int]) -> None:
        self._shape = shape
        self._source = TokenSource(seed, vocab_range)
        self._asked = self._speaking = 0
        self.fresh_prefixes()

    def fresh_prefixes(self) -> None:
        """Start all conversations over, with other opening tokens."""
        self._said = [self._source.text(self._shape.prefix_tokens, "opening") for _ in range(self._shape.groups)]

    def prompts(self, requests: int) -> Iterator[Prompt]:
        """The next turns, one of each conversation after the other."""
        for _ in range(requests):
            message = self._source.text(self._shape.suffix_tokens, "message")
            self._speaking = self._asked % self._shape.groups
            self._asked += 1
            yield Prompt(self._said[self._speaking] + message)

    def learn(self, prompt: Prompt, output: Sequence[int] | None) -> None:
        """Continue the conversation with this answer. Raises ServerError where its ids are not known."""
        if output is None:
            raise ServerError(
                "the response does not say the ids of the generated tokens",
                todo="a conversation can't go on without them: update the server",
            )
        self._said[self._speaking] = (*prompt.tokens, *output)

    def unrelated(self, requests: int, tokens: int) -> Iterator[Prompt]:
        """This many prompts of this many tokens each, which share nothing with any other prompt."""
        return (Prompt(self._source.text(tokens, "flood")) for _ in range(requests))

    def draws(self, requests: int, fixed: bool) -> list[Draw]:
        """Draws for breaks; conversations can't be broken, so none is ever used."""
        return [OwnDraw(self._source) for _ in range(requests)]
