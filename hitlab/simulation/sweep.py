"""The points of a sweep, policies times capacities: which capacities, their rates, and which policy leads where.

sweep_runner.py makes the points.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import numpy as np

from hitlab.errors import UsageError
from hitlab.simulation import kv_size
from hitlab.simulation.curve import Curve
from hitlab.simulation.policy import MAX_CAPACITY_BLOCKS, Choice
from hitlab.simulation.replay import Replay
from hitlab.tokens import Tally
from hitlab.traces.trace import Trace

POINTS = 30  # of a range that does not state their number


class Point(msgspec.Struct, frozen=True):
    """What one cache hit: cold is the whole trace from an empty cache, steady the requests after the warm-up.

    Token-weighted rates are hit tokens over prompt tokens; request-weighted ones are the mean of the requests'
    own rates. A rate is None where no tokens were asked for.
    """

    policy: str  # a choice's label
    capacity_blocks: int
    final_blocks: int
    cold_hit_tokens: int
    cold_prompt_tokens: int
    cold_token_hit_rate: float | None
    cold_request_hit_rate: float | None
    steady_hit_tokens: int
    steady_prompt_tokens: int
    steady_token_hit_rate: float | None
    steady_request_hit_rate: float | None


RATES = {
    "cold_token_hit_rate": "cold, token-weighted",
    "cold_request_hit_rate": "cold, request-weighted",
    "steady_token_hit_rate": "steady, token-weighted",
    "steady_request_hit_rate": "steady, request-weighted",
}


def point(choice: Choice, replay: Replay, first_steady: int) -> Point:
    """The point of a sweep that a replay makes."""
    cold, steady = replay.tally, replay.tally_from(first_steady)
    return Point(
        choice.label,
        replay.capacity_blocks,
        replay.final_blocks,
        cold.hit_tokens,
        cold.queried_tokens,
        cold.hit_rate,
        replay.request_hit_rate(),
        steady.hit_tokens,
        steady.queried_tokens,
        steady.hit_rate,
        replay.request_hit_rate(first_steady),
    )


def curve_points(
    choice: Choice, curve: Curve, trace: Trace, capacities: Iterable[int], first_steady: int
) -> list[Point]:
    """The points that a policy's hit-ratio curve has at these capacities."""
    wanted = np.array(list(capacities), np.int64)
    prompts = trace.prompt_tokens
    weights = 1 / np.maximum(prompts, 1)
    columns: list[Any] = []
    for first in (0, first_steady):
        asked = int(np.count_nonzero(prompts[first:]))
        hit_tokens, queried_tokens = curve.at(wanted, first=first).tolist(), int(prompts[first:].sum())
        shares = curve.at(wanted, weights, first).tolist()
        columns += [hit_tokens, [queried_tokens] * wanted.size]
        columns += [[Tally(queried_tokens, hit).hit_rate for hit in hit_tokens]]
        columns += [[share / asked if asked else None for share in shares]]
    final = [curve.final_blocks(capacity) for capacity in wanted.tolist()]
    return [Point(choice.label, *row) for row in zip(wanted.tolist(), final, *columns, strict=True)]


def spread(first: int, last: int, how: str) -> list[int]:
    """Whole numbers from first to last, `log30` by ratio or `lin10` by difference. Raises UsageError.

    >>> spread(1000, 100_000, "log5"), spread(10, 20, "lin3")
    ([1000, 3162, 10000, 31623, 100000], [10, 15, 20])
    """
    said = re.fullmatch(r"(log|lin)(\d{1,7})", how)
    if said is None or not 1 <= first <= last or int(said[2]) < 1:
        raise UsageError(f"{first}:{last}:{how} is no range", todo="write FIRST:LAST:log30 or FIRST:LAST:lin10")
    space: Any = np.geomspace if said[1] == "log" else np.linspace
    steps = space(first, last, int(said[2])) if last > first else np.array([first])
    return sorted({round(step) for step in steps.tolist()})


def capacities(text: str) -> list[int] | None:
    """Capacities in blocks: a list, a range (see `spread`) or None for `auto`. Raises UsageError.

    >>> capacities("4096"), capacities("500,100"), len(capacities("1000:100000")), capacities("auto")
    ([4096], [100, 500], 30, None)
    """
    if text.strip() == "auto":
        return None
    return _range_or_list(text, _whole)


def memory_capacities(text: str, bytes_per_token: int, block_tokens: int) -> list[int]:
    """Capacities in blocks of memory sizes, a list or a range as 8GiB:32GiB:log3.

    Raises UsageError for what is neither, and for a size into which no block fits.

    >>> memory_capacities("8GiB:32GiB:log3", 131_072, 512)
    [128, 256, 512]
    """
    found = {kv_size.blocks_in(size, bytes_per_token, block_tokens) for size in _range_or_list(text, kv_size.bytes_of)}
    if 0 in found:
        size = bytes_per_token * block_tokens
        raise UsageError(f"{text} has no room for a block of {size:,} bytes", todo="give it more memory")
    return sorted(found)


def _range_or_list(text: str, number: Any) -> list[int]:
    if ":" not in text:
        return sorted({number(each) for each in text.split(",")})
    first, _, rest = text.partition(":")
    last, _, how = rest.partition(":")
    return spread(number(first), number(last), how or f"log{POINTS}")


def _whole(text: str) -> int:
    try:
        number = int(text.strip().replace("_", ""))
    except ValueError:
        raise UsageError(
            f"{text!r} is no number of blocks", todo="write 4096, 500,1000, 1000:100000:log30 or auto"
        ) from None
    if number > MAX_CAPACITY_BLOCKS:  # no float of a range's arithmetic holds it
        raise UsageError(f"a capacity of {number} blocks", todo=f"choose 1 to {MAX_CAPACITY_BLOCKS}")
    return number


def auto_capacities(curve: Curve, smallest: int) -> list[int]:
    """From a thousandth of the trace's blocks to the capacity at which LRU hits all that can be hit, in 30 steps.

    `curve` is LRU's hit-ratio curve; no capacity is below `smallest`.
    """
    last = max(curve.capacity_for(1), smallest)
    return spread(min(last, max(smallest, curve.distinct_blocks // 1000)), last, f"log{POINTS}")


def leads(points: Iterable[Point], one: str, other: str, rate: str) -> list[tuple[int, float]]:
    """By how much one policy's rate is above another's, at each capacity that both have."""
    rates: dict[str, dict[int, float]] = {one: {}, other: {}}
    for each in points:
        value = getattr(each, rate)
        if each.policy in rates and value is not None:
            rates[each.policy][each.capacity_blocks] = value
    common = sorted(rates[one].keys() & rates[other].keys())
    return [(capacity, rates[one][capacity] - rates[other][capacity]) for capacity in common]


def crossings(points: Iterable[Point], one: str, other: str, rate: str) -> Iterator[tuple[str, int, int]]:
    """Where one policy overtakes another: the one that leads before, the capacity before and the capacity after.

    >>> rates = {"a": [0.3, 0.4], "b": [0.2, 0.5]}
    >>> points = [Point(p, c, 0, 0, 0, r, r, 0, 0, r, r) for p in "ab" for c, r in zip([10, 20], rates[p])]
    >>> list(crossings(points, "a", "b", "steady_token_hit_rate"))
    [('a', 10, 20)]
    """
    leader, at = "", 0
    for capacity, lead in leads(points, one, other, rate):
        if lead:
            now = one if lead > 0 else other
            if leader and now != leader:
                yield leader, at, capacity
            leader, at = now, capacity


def comparison(points: Iterable[Point], one: str, other: str, rate: str) -> str:
    """A sentence that says at which capacities each policy is ahead; empty if the two have no capacity in common.

    >>> points = [Point(p, c, 0, 0, 0, c / n, 0, 0, 0, 0, 0) for p, n in (("a", 50), ("b", 90)) for c in (10, 20)]
    >>> comparison(points, "a", "b", "cold_token_hit_rate")
    'a beats b at every capacity here'
    """
    points = list(points)
    ahead = leads(points, one, other, rate)
    changes = list(crossings(points, one, other, rate))
    if len(changes) > 1:
        first, last = changes[0][1], changes[-1][2]
        return f"{one} and {other} change places {len(changes)} times between {first:,} and {last:,} blocks"
    if changes:
        leader, below, above = changes[0]
        trailer = one if leader == other else other
        return f"{leader} beats {trailer} up to {below:,} blocks and loses to it from {above:,}"
    signs = {(lead > 0) - (lead < 0) for _, lead in ahead}
    if signs <= {0}:
        return f"{one} and {other} hit the same at every capacity here" if signs else ""
    leader, trailer = (one, other) if 1 in signs else (other, one)
    return f"{leader} {'equals or ' * (0 in signs)}beats {trailer} at every capacity here"
