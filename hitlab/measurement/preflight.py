"""What a server is, and whether it can be measured: one finding a line, each with what to do about it.

Nothing here empties a cache or sends more than one short prompt.
"""

from dataclasses import dataclass, replace
from random import SystemRandom

from hitlab.client.counters import Counters
from hitlab.client.dialect import HttpRequest, ServerFacts
from hitlab.client.http import EngineClient
from hitlab.client.ledger import CounterLedger
from hitlab.client.model_files import vocabulary_tokens
from hitlab.errors import HitlabError, KeyRefusedError, ServerError, UnreachableError
from hitlab.experiment.vocabulary import safe_range
from hitlab.flags import in_flags
from hitlab.tokens import Prompt

PROBE_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Finding:
    """`ok` None is "the server does not say": a run is possible, with less to check it by."""

    name: str
    ok: bool | None
    detail: str
    todo: str = ""


async def preflight(client: EngineClient) -> list[Finding]:
    """Every finding, in the order in which a failure would explain the next; texts name flags, not fields."""
    return [
        replace(finding, detail=in_flags(finding.detail), todo=in_flags(finding.todo))
        for finding in await _findings(client)
    ]


async def _findings(client: EngineClient) -> list[Finding]:
    try:
        facts = await client.facts()
    except ServerError as error:
        names = {UnreachableError: "reachable", KeyRefusedError: "key accepted"}
        name = names.get(type(error), f"answers as {client.engine.TITLE} does")
        return [Finding(name, False, error.what, error.todo)]
    findings = [
        Finding("reachable", True, client.base_url),
        _said("version", facts.version, "older engines do not say"),
        _said("model", facts.model, ""),
        _said("block size", facts.block_tokens, "give measure `block_tokens`"),
        _pool(facts),
        _caching(facts),
    ]
    before, metrics = await _metrics(client)
    findings.append(metrics)
    findings.append(await _reset_route(client))
    findings += await _probe(client, facts, before)
    findings += [Finding("beware", None, note) for note in facts.notes]
    return findings


def measurable(findings: list[Finding]) -> bool:
    """Whether nothing failed."""
    return all(finding.ok is not False for finding in findings)


def _said(name: str, value: object, todo: str) -> Finding:
    if value is None:
        return Finding(name, None, "the server does not say", todo)
    return Finding(name, True, f"{value:,}" if isinstance(value, int) else str(value))


def _pool(facts: ServerFacts) -> Finding:
    if facts.capacity_tokens is None:
        return Finding("pool", None, "the server does not say", "give measure `flood_requests` a number")
    detail = f"{facts.capacity_tokens:,} tokens a rank"
    blocks, block_tokens = facts.capacity_blocks, facts.block_tokens
    if blocks and block_tokens and blocks * block_tokens != facts.capacity_tokens:
        detail += f", of {blocks:,} x {block_tokens:,}: one block is the null block"
    return Finding("pool", True, detail)


def _caching(facts: ServerFacts) -> Finding:
    if facts.caching is False:
        return Finding(
            "prefix caching", False, "off", "--enable-prefix-caching (vLLM), no --disable-radix-cache (SGLang)"
        )
    return Finding("prefix caching", facts.caching, "on" if facts.caching else "the server does not say")


async def _metrics(client: EngineClient) -> tuple[Counters | None, Finding]:
    try:
        counters = await client.scrape()
    except ServerError as error:
        return None, Finding("metrics", False, error.what, error.todo)
    return counters, Finding("metrics", True, next(iter(counters.pairs), "no token counted yet"))


async def _reset_route(client: EngineClient) -> Finding:
    """Ask which methods the route has: 404 says there is none, and nothing is emptied."""
    request = client.engine.reset()
    try:
        reply = await client.call(HttpRequest("OPTIONS", request.path))
    except ServerError as error:
        return Finding("reset allowed", False, error.what, error.todo)
    if reply.status == 404:
        return Finding("reset allowed", False, f"404 at {request.path.partition('?')[0]}", client.engine.NO_RESET)
    return Finding("reset allowed", True, f"the route is there: {request.path.partition('?')[0]}")


async def _probe(client: EngineClient, facts: ServerFacts, before: Counters | None) -> list[Finding]:
    """One short random prompt: is it taken as it is, does the response report hits, do the counters move?"""
    first, last = safe_range(None, vocabulary_tokens(facts.model_path))
    prompt = Prompt(tuple(SystemRandom().choices(range(first, last + 1), k=PROBE_TOKENS)))
    try:
        completion = (await client.complete(prompt)).completion
    except HitlabError as error:
        return [Finding("prompt accepted", False, error.what, error.todo)]
    counted = completion.prompt_tokens
    kept = counted == PROBE_TOKENS
    findings = [
        Finding(
            "prompt accepted",
            kept,
            f"{PROBE_TOKENS} token ids sent, {'none' if counted is None else f'{counted:,}'} counted",
            "" if kept else "the server changes prompts: measure another endpoint",
        ),
        Finding("cached tokens in responses", True, "reported")
        if completion.cached_tokens is not None
        else Finding(
            "cached tokens in responses", None, "not reported", "--enable-prompt-tokens-details (vLLM) adds a check"
        ),
    ]
    if before is not None:
        # With caching off the counters stand still, and waiting for them would tell nothing.
        findings.append(await _counted(client, before, 0 if facts.caching is False else None))
    return findings


async def _counted(client: EngineClient, before: Counters, patience_s: float | None) -> Finding:
    ledger = CounterLedger(client, patience_s)
    ledger.rebase(before)
    ledger.sent(PROBE_TOKENS)
    try:
        await ledger.read()
    except ServerError as error:
        return Finding("counters", False, error.what, error.todo)
    if not ledger.off_tokens:
        return Finding("counters", True, "moved by exactly the tokens sent")
    todo = "stop other traffic" if ledger.off_tokens > 0 else "is this the server's own /metrics, with caching on?"
    return Finding("counters", False, f"moved by {ledger.counted_tokens:,} tokens for {PROBE_TOKENS} sent", todo)
