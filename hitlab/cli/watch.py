"""`hitlab watch`: the hit rate of a running server, interval by interval."""

import math
import sys
from contextlib import suppress
from typing import Annotated

import typer

from hitlab.cli import _server_options as given
from hitlab.cli import _target
from hitlab.cli._format import percent
from hitlab.cli._watch_views import AnyView, view
from hitlab.client.counters import Move, Part
from hitlab.client.dialect import ServerFacts
from hitlab.client.http import EngineClient
from hitlab.errors import UsageError
from hitlab.experiment.closed_form import check_shape
from hitlab.experiment.shape import SharedPrefix
from hitlab.measurement.asked import Asked
from hitlab.measurement.watch import Meter, begin, ceiling, intervals
from hitlab.tokens import Tally


def command(
    engine: given.EngineName,
    base_url: given.BaseUrl = None,
    metrics_url: given.MetricsUrl = None,
    interval: Annotated[float, typer.Option("--interval", help="Seconds between two readings.")] = 5.0,
    count: Annotated[int | None, typer.Option("--count", help="Stop after so many intervals.")] = None,
    prefix_len: Annotated[
        int | None, typer.Option("--prefix-len", help="P: tokens your requests share; with S, shows the ceiling.")
    ] = None,
    suffix_len: Annotated[int | None, typer.Option("--suffix-len", help="S: tokens of each request's own.")] = None,
    block_size: Annotated[
        int | None, typer.Option("--block-size", "--page-size", help="B, where the server does not say.")
    ] = None,
    api_key_env: given.ApiKeyEnv = None,
    timeout: given.Timeout = 10.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON line an interval on stdout.")] = False,
) -> None:
    """Watch a running server's interval hit rate, from its counters; sends no prompt and empties nothing.

    Ctrl-C, or SIGTERM, ends it, with a summary and exit status 0. A restart or a reading that fails is said.

    Example: hitlab watch --engine vllm --base-url http://127.0.0.1:8000 --prefix-len 1000 --suffix-len 200
    """
    if not 0 < interval < math.inf or (count is not None and count < 1):
        raise UsageError(
            "--interval and --count must be numbers of more than 0", todo="leave them out for every 5 s, endlessly"
        )
    if (prefix_len is None) != (suffix_len is None):
        raise UsageError("the ceiling needs both --prefix-len and --suffix-len", todo="give both or neither")
    where = _target.Target(
        engine=engine,
        base_url=base_url,
        metrics_urls=tuple(metrics_url or ()),
        asked=Asked(block_tokens=block_size),
        api_key_env=api_key_env,
        timeout_s=timeout,
    )
    meter: Meter | None = None
    with where.connected() as (loop, client), suppress(KeyboardInterrupt):
        facts = loop.run(client.facts())
        meter = loop.run(begin(client))
        best = _ceiling(prefix_len, suffix_len, facts.block_tokens or block_size)
        title = _title(client.engine.TITLE, client.base_url, facts, interval, best, meter)
        loop.run(_show(client, meter, interval, count, view(title, best, as_json)))
    if meter is not None:
        print(_summary(meter), file=sys.stderr if as_json else sys.stdout)


async def _show(client: EngineClient, meter: Meter, interval_s: float, count: int | None, shown: AnyView) -> None:
    with shown:
        async for each in intervals(client, meter, interval_s, count):
            shown.show(each)


def _ceiling(prefix_tokens: int | None, suffix_tokens: int | None, block_tokens: int | None) -> Tally | None:
    if prefix_tokens is None or suffix_tokens is None:
        return None
    if block_tokens is None:
        raise UsageError("the server does not say its block size", todo="give --block-size")
    check_shape(SharedPrefix(1, prefix_tokens, suffix_tokens), block_tokens, 1)
    return ceiling(prefix_tokens, suffix_tokens, block_tokens)


def _title(engine: str, url: str, facts: ServerFacts, interval_s: float, best: Tally | None, meter: Meter) -> list[str]:
    emulated = "EMULATED " if facts.emulated else ""
    blocks = f"{facts.block_tokens:,} tokens a block, " if facts.block_tokens else ""
    version = facts.version or "(version unknown)"
    lines = [f"{emulated}{engine} {version} at {url}", f"{blocks}every {interval_s:g} s; Ctrl-C ends"]
    lines += [f"note: {note}" for note in meter.first.notes]
    if len(meter.first.parts) > 1:
        lines.append(meter.first.mixed or f"counters of {len(meter.first.parts)} servers, and their sum")
    if best:
        lines.append(
            f"ceiling {percent(best.hit_rate or 0.0)}: "
            f"{best.hit_tokens:,} of {best.queried_tokens:,} tokens of a warm request"
        )
    return lines


def _summary(meter: Meter) -> str:
    moves = [(_label(move.part), move) for move in meter.by_owner.values()] if meter.mixed else [("", meter.total)]
    said = [": ".join(filter(None, (label, _hits(move)))) for label, move in moves]
    counts = (("evicted tokens", meter.evicted_tokens), ("restarts", meter.restarts))
    more = [f"{name}: {count:,}" for name, count in (*counts, ("failed readings", meter.missed_readings)) if count]
    begun = f"{meter.intervals:,} intervals in {meter.seconds:.1f} s"
    lines = [f"{begun}: {said[0]}"] if len(said) == 1 else [f"{begun}:", *said]
    return "\n".join(filter(None, (*lines, ", ".join(more))))


def _hits(move: Move) -> str:
    """What was hit of what was asked, in words, with a rate where there is one."""
    if move.hit_tokens is None:
        return f"{move.queried_tokens:,} prompt tokens, hit rate unknown: {move.part.lacks}"
    if not move.queried_tokens and not move.contradiction:
        return "no prompt tokens"
    if move.contradiction:
        return move.contradiction
    hit = f"{move.hit_tokens:,} of {move.queried_tokens:,} prompt tokens hit ({percent(move.hit_rate)})"
    return hit + (f", {percent(move.overall_hit_rate)} with external hits" if move.apart_tokens else "")


def _label(part: Part) -> str:
    return ", ".join(filter(None, (part.model, part.role, part.place, part.address.removeprefix("http://"))))
