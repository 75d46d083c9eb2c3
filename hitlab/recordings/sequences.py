"""Random request sequences that show what a prefix cache does: prompts that branch, repeat, go on and push out."""

from dataclasses import dataclass
from random import Random

from hitlab.errors import UsageError
from hitlab.tokens import Prompt

BASES = 3  # long texts that prompts are cut from, the same in all sequences
SALTS = (None, None, None, "a", "b")

Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Shape:
    """What the requests of a recording look like; `token_ids` are the first and the last that are sent."""

    max_prompt_tokens: int
    max_output_tokens: int
    block_tokens: int
    token_ids: tuple[int, int]

    def __post_init__(self) -> None:
        if self.max_prompt_tokens < 2 or self.max_output_tokens < 1:
            raise UsageError(
                f"no random sequences of {self.max_prompt_tokens} prompt and {self.max_output_tokens} output tokens",
                todo="prompts take at least 2 tokens, outputs 1",
            )


@dataclass(frozen=True, slots=True)
class Planned:
    """A request to send; its `max_tokens` are what it should generate."""

    prompt: Prompt
    max_tokens: int


class RandomSequence:
    """One sequence: take a request, say what was generated, take the next.

    >>> shape = Shape(max_prompt_tokens=100, max_output_tokens=8, block_tokens=16, token_ids=(1000, 1999))
    >>> one, same = (RandomSequence(shape, seed=7, index=0) for _ in range(2))
    >>> request = one.next()
    >>> one.generated(request, (5, 6, 7))
    >>> request == same.next(), request == RandomSequence(shape, seed=7, index=1).next()
    (True, False)

    Every sequence begins with the whole first base, so that a reset that emptied nothing shows at once.
    """

    def __init__(self, shape: Shape, seed: int, index: int) -> None:
        self._shape = shape
        bases = Random(f"{seed} bases")
        self._bases = [self._fresh(bases, shape.max_prompt_tokens) for _ in range(BASES)]
        self._random = Random(f"{seed} sequence {index}")
        self._sent: list[tuple[Prompt, Tokens]] = []

    def next(self) -> Planned:
        """The next request."""
        return Planned(self._prompt(), self._max_tokens())

    def generated(self, request: Planned, output: Tokens) -> None:
        """Take the tokens that were generated, so that later prompts can go on from them."""
        self._sent.append((request.prompt, output))

    def _prompt(self) -> Prompt:
        random = self._random
        if not self._sent:
            return Prompt(self._bases[0][: self._shape.max_prompt_tokens - random.randrange(2)])
        earlier, output = random.choice(self._sent)
        kind = random.random()
        if kind < 0.15:
            return earlier
        if kind < 0.25:
            return Prompt(earlier.tokens, random.choice(SALTS))
        if kind < 0.45:
            return self._cut(earlier.tokens + output + self._fresh(random, self._suffix()), earlier.salt)
        if kind < 0.60:
            return self._cut(earlier.tokens[: self._border()] + self._fresh(random, self._suffix()), earlier.salt)
        if kind < 0.90:
            base = random.choice(self._bases)
            start = base[: random.randrange(len(base) + 1)]
            return self._cut(start + self._fresh(random, self._suffix()), random.choice(SALTS))
        return Prompt(self._fresh(random, random.randint(1, self._shape.max_prompt_tokens)))

    def _cut(self, tokens: Tokens, salt: str | None) -> Prompt:
        """The tokens cut to the longest length of a prompt, or one token where there are none."""
        return Prompt(tokens[: self._shape.max_prompt_tokens] or self._bases[0][:1], salt)

    def _suffix(self) -> int:
        """A suffix length: 0 to 2, at and beside a block's size, or any up to half a prompt."""
        block, random = self._shape.block_tokens, self._random
        anything = random.randint(1, 1 + self._shape.max_prompt_tokens // 2)
        return random.choice([0, 1, 2, block - 1, block, block + 1, anything])

    def _border(self) -> int:
        """A prompt length at a multiple of the block size, or one beside it."""
        block = self._shape.block_tokens
        borders = self._shape.max_prompt_tokens // block
        return max(1, block * self._random.randint(0, borders) + self._random.choice([-1, 0, 1]))

    def _max_tokens(self) -> int:
        """Output length: often one token; else a few, or as many as cross into the next block."""
        block, most, random = self._shape.block_tokens, self._shape.max_output_tokens, self._random
        wanted = random.choice([1, 1, 1, 2, 3, block, block + 1, random.randint(1, most)])
        return min(most, wanted)

    def _fresh(self, random: Random, length: int) -> Tokens:
        first, last = self._shape.token_ids
        return tuple(random.choices(range(first, last + 1), k=length))
