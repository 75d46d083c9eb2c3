"""Scripts: random steps of overlapping requests, as data, and how any cache answers one.

The same file serves both sides: the tests, where a cache model answers, and an engine's own environment, where
its cache manager does. So it imports nothing but the standard library.
"""

import json
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

Step = tuple[Any, ...]
Outcome = list[Any]

TOKEN_IDS = 5  # so few that prompts share by accident, too


@dataclass(frozen=True)
class Script:
    """A small pool and what happens in it.

    A step is ("begin", number, tokens, salt), ("decode", number, tokens), ("finish", number, stopped) or
    ("reset",). A step of a request that is not running, because it was refused or has finished, is passed over.
    `settings` are the engine's own: its sizes and which of its managers to drive.
    """

    settings: dict[str, Any]
    steps: list[Step]


class Cache(Protocol):
    """What answers a script."""

    @property
    def running(self) -> Collection[int]:
        """Numbers of the requests that run."""

    def begin(self, number: int, tokens: list[int], salt: str | None) -> int | None:
        """Hit tokens; None when there is no room now."""

    def decode(self, number: int, tokens: list[int]) -> int:
        """Generate these tokens; how many there was room for."""

    def finish(self, number: int, stopped: bool) -> None:
        """End the request, by a stop token or by length."""

    def reset(self) -> bool:
        """Empty the cache; whether it did."""

    def state(self) -> list[int]:
        """What the pool looks like now."""


def outcomes(cache: Cache, steps: list[Step]) -> Iterator[Outcome]:
    """After each step, what it answered and the state it left."""
    for name, *arguments in steps:
        if name in ("decode", "finish") and arguments[0] not in cache.running:
            yield ["not running", []]
        else:
            answer = getattr(cache, name)(*arguments)
            yield [answer, cache.state()]


def answer_scripts(build: Callable[[dict[str, Any]], Cache]) -> None:
    """Read a script a line from stdin, write its outcomes a line to stdout, until stdin ends."""
    answers, sys.stdout = sys.stdout, sys.stderr  # whatever else the engine prints is no answer
    for line in sys.stdin:
        script = json.loads(line)
        print(json.dumps(list(outcomes(build(script["settings"]), script["steps"]))), file=answers, flush=True)


def random_steps(random: Random, block_tokens: int, pool_tokens: int) -> list[Step]:
    """30 to 200 steps: prompts that branch off each other, follow-up turns, salts, decode, resets."""
    texts = [_fresh(random, pool_tokens) for _ in range(3)]  # bases, and what requests have said since
    running: dict[int, list[int]] = {}
    steps: list[Step] = []
    for number in range(random.randrange(30, 200)):
        kind = random.random()
        if kind < 0.35 or not running:
            tokens = _prompt(random, texts, block_tokens, pool_tokens)
            running[number] = list(tokens)
            steps.append(("begin", number, tokens, random.choice([None, None, None, "a", "b"])))
        elif kind < 0.60:
            chosen = random.choice(list(running))
            output = _fresh(random, random.randrange(1, 2 * block_tokens + 2))
            running[chosen] += output
            steps.append(("decode", chosen, output))
        elif kind < 0.97:
            _finish(random, random.choice(list(running)), running, texts, steps)
        else:
            while running and random.random() < 0.9:
                _finish(random, random.choice(list(running)), running, texts, steps)
            steps.append(("reset",))
    return steps


def _prompt(random: Random, texts: list[list[int]], block_tokens: int, pool_tokens: int) -> list[int]:
    """A text cut anywhere or at its end, at most a third of the pool, and a suffix of a telling length."""
    text = random.choice(texts)
    cut = random.choice([random.randrange(pool_tokens // 3), len(text)])
    suffix = random.choice([0, 1, 2, block_tokens - 1, block_tokens, block_tokens + 1, 3 * block_tokens])
    return text[: min(cut, pool_tokens // 3)] + _fresh(random, suffix) or [0]


def _finish(
    random: Random, number: int, running: dict[int, list[int]], texts: list[list[int]], steps: list[Step]
) -> None:
    texts.append(running.pop(number))
    steps.append(("finish", number, random.random() < 0.5))


def _fresh(random: Random, length: int) -> list[int]:
    return random.choices(range(TOKEN_IDS), k=length)
