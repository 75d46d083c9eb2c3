"""Cache models of both engines with room for a test, and prompts to send them."""

from collections.abc import Callable, Sequence
from itertools import count

import pytest

from hitlab.cache.model import CacheModel, serve
from hitlab.cache.paged import PagedCache
from hitlab.cache.radix import RadixCache
from hitlab.tokens import Prompt

ROOM = 200_000  # tokens: more than any case here stores
N, P, S = 64, 1000, 200


class Ids:
    """Token ids nobody has seen before."""

    def __init__(self) -> None:
        self._next = count(1000)

    def __call__(self, length: int) -> tuple[int, ...]:
        return tuple(next(self._next) for _ in range(length))


def paged(block_tokens: int, capacity_tokens: int = ROOM) -> PagedCache:
    return PagedCache(capacity_tokens // block_tokens + 1, block_tokens)


def radix(page_tokens: int, capacity_tokens: int = ROOM) -> RadixCache:
    return RadixCache(capacity_tokens, page_tokens)


Build = Callable[..., CacheModel]
BOTH = pytest.mark.parametrize("build", [paged, radix])


def hits(model: CacheModel, prompts: Sequence[tuple[int, ...]], salt: str | None = None) -> list[int]:
    return [serve(model, Prompt(prompt, salt)).hit_tokens for prompt in prompts]


def shared_prefix(prefix: tuple[int, ...], ids: Ids, requests: int = N, suffix: int = S) -> list[tuple[int, ...]]:
    return [prefix + ids(suffix) for _ in range(requests)]
