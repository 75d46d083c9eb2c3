"""What cache models have in common. A model answers as a real engine's prefix cache does, request for request.

A model is the cache of one data-parallel rank. `begin` looks a prompt up and takes room for it,
`Lease.decode` stores what the request generates, `Lease.finish` gives the room back and leaves the
content behind for later requests. Leases may overlap, as requests do in an engine.

>>> from hitlab.cache.paged import PagedCache
>>> cache = PagedCache(num_gpu_blocks=101, block_tokens=16)
>>> prompt = Prompt(tuple(range(96)))
>>> serve(cache, prompt)
Served(hit_tokens=0, evicted_tokens=0)
>>> serve(cache, prompt)  # the last token is always computed, and with it its whole block
Served(hit_tokens=80, evicted_tokens=0)
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from hitlab.errors import HitlabError
from hitlab.tokens import Prompt


class PoolFullError(HitlabError):
    """Beside the requests that run the pool has no room for this now; nothing was changed.

    From `begin`: begin again when a request has finished, as an engine's waiting queue does. From
    `Lease.decode`: decode the same token again later, or finish; an engine would preempt or retract.
    """


class Lease(Protocol):
    """The room one running request holds."""

    @property
    def hit_tokens(self) -> int:
        """Prompt tokens found in the cache when the request began."""

    def decode(self, token: int) -> None:
        """Report the next generated token, the prefill's first one included. Raises PoolFullError."""

    def finish(self, stopped: bool = False) -> None:
        """End the request, once; `stopped` when a stop token ended it and not its `max_tokens`."""


class CacheModel(Protocol):
    """The prefix cache of one data-parallel rank, or, as `Ranks`, of several."""

    @property
    def capacity_tokens(self) -> int:
        """Tokens the pool holds when full."""

    @property
    def resident_tokens(self) -> int:
        """Tokens that a later request could find."""

    @property
    def evicted_tokens(self) -> int:
        """Tokens evicted since the model was made; a reset does not set it back."""

    def begin(self, prompt: Prompt, max_tokens: int = 1) -> Lease:
        """Look the prompt up and take room for it. Raises PoolFullError when it does not fit now."""

    def reset(self) -> bool:
        """Empty the cache; while a request runs nothing changes and the answer is False."""


@dataclass(frozen=True, slots=True)
class Served:
    """Hit tokens of one request, and tokens that were evicted from its begin to its finish."""

    hit_tokens: int
    evicted_tokens: int


def serve(
    model: CacheModel,
    prompt: Prompt,
    output: Sequence[int] = (),
    max_tokens: int | None = None,
    stopped: bool = False,
) -> Served:
    """Run one request alone from begin to finish; `max_tokens` defaults to the length of `output`."""
    evicted_before = model.evicted_tokens
    lease = model.begin(prompt, max(1, len(output)) if max_tokens is None else max_tokens)
    try:
        for token in output:
            lease.decode(token)
    finally:
        lease.finish(stopped)
    return Served(lease.hit_tokens, model.evicted_tokens - evicted_before)


class Ranks:
    """Data-parallel ranks that take requests in turn; each has its own cache and its own cold request.

    >>> from hitlab.cache.radix import RadixCache
    >>> ranks = Ranks(RadixCache(max_total_num_tokens=1000) for _ in range(2))
    >>> prompt = Prompt(tuple(range(100)))
    >>> [serve(ranks, prompt).hit_tokens for _ in range(4)]
    [0, 0, 99, 99]
    """

    def __init__(self, models: Iterable[CacheModel]) -> None:
        self.models = tuple(models)
        #: Index of the rank that takes the next request.
        self.turn = 0

    @property
    def capacity_tokens(self) -> int:
        """Tokens all ranks hold when full."""
        return sum(model.capacity_tokens for model in self.models)

    @property
    def resident_tokens(self) -> int:
        """Resident tokens, summed: content resident on two ranks counts twice."""
        return sum(model.resident_tokens for model in self.models)

    @property
    def evicted_tokens(self) -> int:
        """Evicted tokens, summed."""
        return sum(model.evicted_tokens for model in self.models)

    def begin(self, prompt: Prompt, max_tokens: int = 1) -> Lease:
        """Begin on the rank whose turn it is. Raises PoolFullError, and then the turn stays."""
        lease = self.models[self.turn].begin(prompt, max_tokens)
        self.turn = (self.turn + 1) % len(self.models)
        return lease

    def reset(self) -> bool:
        """Reset every rank; False when one of them refused."""
        refused = [model for model in self.models if not model.reset()]
        return not refused
