"""Replay a trace through a policy with a given capacity: how many tokens of each request are hits.

A hit is the unbroken run of resident blocks from a request's first block on. It is counted when the request arrives;
then every block of the request, hit or miss, is accessed in order.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from hitlab.errors import HitlabError, InputError
from hitlab.simulation.policy import BlockPolicy, Cache, Kernel, Option, Policy, RequestPolicy, check
from hitlab.tokens import Tally
from hitlab.traces.trace import Trace


@dataclass(frozen=True, slots=True, eq=False)
class Replay:
    """What a replay counted, request by request."""

    policy: str
    variant: str
    options: dict[str, Option]
    block_tokens: int
    capacity_blocks: int
    final_blocks: int
    prompt_tokens: NDArray[np.int64]  # [requests]
    hit_tokens: NDArray[np.int64]  # [requests]

    @property
    def tally(self) -> Tally:
        """All requests together."""
        return self.tally_from(0)

    @property
    def hit_rate(self) -> float | None:
        """Hit tokens over prompt tokens of all requests, 0 to 1; None of a trace without tokens."""
        return self.tally.hit_rate

    def tally_from(self, first: int) -> Tally:
        """Requests from number `first` on together; the cache was warmed by those before."""
        return Tally(int(self.prompt_tokens[first:].sum()), int(self.hit_tokens[first:].sum()))

    def request_hit_rate(self, first: int = 0) -> float | None:
        """The mean of the hit rates of single requests, from number `first` on; None if none of them has tokens."""
        prompt, hit = self.prompt_tokens[first:], self.hit_tokens[first:]
        asked = prompt > 0
        return float(np.mean(hit[asked] / prompt[asked])) if asked.any() else None


def first_warm(requests: int, warmup: float) -> int:
    """The number of the first request after the warm-up, a share of all requests from 0 to 1, rounded down.

    >>> first_warm(12_031, 0.5), first_warm(100, 0.29)
    (6015, 29)
    """
    return int(round(requests * warmup, 9))


def replay(
    trace: Trace,
    policy: Policy,
    capacity_blocks: int,
    options: Mapping[str, Option] | None = None,
    *,
    kernel: Kernel | None = None,
    engine_cap: bool = False,
    check_invariants: bool = False,
) -> Replay:
    """Replay the whole trace from an empty cache.

    A hit of k blocks counts min(k*B, L) tokens; with `engine_cap` at most floor((L-1)/B)*B, what an engine
    that matches whole blocks and computes the last token can reuse.

    `kernel` is the policy's compiled kernel if one is at hand (simulation/kernels.py keeps them on disk); otherwise
    it is compiled, once a process. Raises UsageError as `check` does, and HitlabError if invariants are
    checked and broken.
    """
    effective = check(policy, capacity_blocks, options)
    state = policy.new(trace, capacity_blocks, **effective)
    hit_blocks = np.zeros(trace.requests, np.int64)
    try:
        (kernel or compiled(policy))(state, trace.blocks.view(np.uint32), trace.starts, hit_blocks)
    except Exception as error:
        from numba.core.errors import NumbaError

        if not isinstance(error, NumbaError):
            raise
        reason = next(filter(None, map(str.strip, str(error).splitlines())), "no reason is given")
        raise InputError(
            f"its rules can't be compiled: {reason}",
            where=str(policy.__file__),
            todo="rules take numbers, the cache's arrays and other rules, and make no arrays: see docs/policies.md",
        ) from error
    if check_invariants and (violations := policy.invariant_violations(state)):
        raise HitlabError(
            f"the {policy.NAME} kernel broke its own rules: {'; '.join(violations)}",
            todo="this is a bug in the policy's file: do not use its numbers",
        )
    return Replay(
        policy.NAME,
        policy.VARIANT,
        effective,
        trace.block_tokens,
        capacity_blocks,
        policy.size_blocks(state),
        trace.prompt_tokens,
        np.minimum(hit_blocks * trace.block_tokens, trace.countable_tokens(engine_cap)),
    )


@cache
def compiled(policy: Policy) -> Kernel:
    """The policy's rules as one machine-code loop over the trace; compiled when it is first called.

    It releases the interpreter lock. Like the rules, it must not allocate (simulation/structures.py says why).
    """
    import numba

    njit: Any = numba.njit  # its stubs do not know every option
    loop = _request_loop(policy) if policy.UNIT == "request" else _block_loop(policy)
    return cast(Kernel, njit(nogil=True, _nrt=False)(loop))


def _block_loop(policy: BlockPolicy) -> Kernel:
    resident, access = policy.resident, policy.access

    def kernel(
        state: Cache, blocks: NDArray[np.uint32], starts: NDArray[np.int64], hit_blocks: NDArray[np.int64]
    ) -> None:
        for request in range(hit_blocks.size):
            first, end = starts[request], starts[request + 1]
            missed = first
            while missed < end and resident(state, blocks[missed]):
                missed += 1
            hit_blocks[request] = missed - first
            for reference in range(first, end):
                access(state, blocks[reference])

    return kernel


def _request_loop(policy: RequestPolicy) -> Kernel:
    serve = policy.serve

    def kernel(
        state: Cache, blocks: NDArray[np.uint32], starts: NDArray[np.int64], hit_blocks: NDArray[np.int64]
    ) -> None:
        for request in range(hit_blocks.size):
            hit_blocks[request] = serve(state, request, starts[request], starts[request + 1])

    return kernel
