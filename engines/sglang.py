"""SGLang: its requests and replies (/generate), its token counters by version, its radix cache.

The functions are those of hitlab.client.dialect.EngineApi; their docstrings say what is special to SGLang.

Measured on 0.5.23 and 0.5.5 (docs/engine-notes.md).
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from hitlab.cache.model import CacheModel, Ranks
from hitlab.cache.radix import RadixCache
from hitlab.client.counters import Counters, Part, Tiers
from hitlab.client.dialect import (
    Completion,
    Count,
    HttpRequest,
    LogEntry,
    Reply,
    ResetOutcome,
    ServerFacts,
    Size,
    first_broken,
)
from hitlab.client.metrics_page import (
    Owner,
    Page,
    Sample,
    by_owner,
    chosen_model,
    in_words,
    of_model,
    readings,
    tokens,
)
from hitlab.errors import MetricsError, RequestRefusedError
from hitlab.tokens import Prompt, Tally

NAME = "sglang"
TITLE = "SGLang"
DEFAULT_BASE_URL = "http://127.0.0.1:30000"
DEFAULT_BLOCK_TOKENS = 1
FACT_PATHS: tuple[tuple[str, ...], ...] = (("/server_info", "/get_server_info"), ("/model_info", "/get_model_info"))
METRIC_PREFIX = "sglang:"
NO_METRICS = "start SGLang with --enable-metrics, or give measure its log with `log` FILE"
NO_RESET = "measure with `cold_by` fresh-prefix"
LOG_LACKS = ""

_EFFECTIVE = "sglang:prefill_effective_tokens_total"  # 0.5.18 and newer; retracted requests not counted again
_PROMPT, _CACHED = "sglang:prompt_tokens_total", "sglang:cached_tokens_total"  # the second from 0.4.4 on
_REALTIME = "sglang:realtime_tokens_total"  # counts retracted requests again
_EVICTED, _RETRACTED = "sglang:evicted_tokens_total", "sglang:num_retracted_requests_total"
_COUNTED = (_EFFECTIVE, _PROMPT, _CACHED, _REALTIME)
_PAGE_SIZE, _POOL_SIZE = "sglang:page_size", "sglang:max_total_num_tokens"
_HIT_GAUGE, _RUNNING_GAUGE = "sglang:cache_hit_rate", "sglang:num_running_reqs"
METRICS: tuple[str, ...] = (*_COUNTED, _EVICTED, _RETRACTED, _PAGE_SIZE, _POOL_SIZE, _HIT_GAUGE, _RUNNING_GAUGE)

_BY_EFFECTIVE, _BY_CACHED = "sglang:prefill_effective_tokens", "sglang:prompt_tokens and cached_tokens"
_BY_REALTIME = "sglang:realtime_tokens"


class _Finish(msgspec.Struct):
    type: str | None = None
    message: str | None = None


class _Meta(msgspec.Struct):
    prompt_tokens: Count
    cached_tokens: Count | None = None
    finish_reason: _Finish | None = None


class _Generated(msgspec.Struct):
    meta_info: _Meta | None = None
    output_ids: tuple[int, ...] | None = None


class _Info(msgspec.Struct):
    version: str | None = None
    page_size: Size | None = None
    max_total_num_tokens: Count | None = None
    served_model_name: str | None = None
    model_path: str | None = None
    context_length: Count | None = None
    max_req_input_len: Count | None = None
    disable_radix_cache: bool | None = None
    radix_eviction_policy: str | None = None
    chunked_prefill_size: int | None = None
    disable_overlap_schedule: bool | None = None
    dp_size: Count | None = None
    speculative_algorithm: str | None = None


def completion(prompt: Prompt, model: str | None, max_tokens: int) -> HttpRequest:
    """A POST to /generate. It takes no model name; a `cache_salt` isolates from 0.5.18 on."""
    body: dict[str, Any] = {
        "input_ids": prompt.tokens,
        "sampling_params": {"max_new_tokens": max_tokens, "temperature": 0},
    }
    if prompt.salt is not None:
        body["cache_salt"] = prompt.salt
    return HttpRequest("POST", "/generate", body)


def read_completion(reply: Reply) -> Completion:
    """The counts are in `meta_info`, which comes with every response."""
    generated = reply.read(_Generated, TITLE)
    meta = generated.meta_info
    if meta is None:
        raise RequestRefusedError(f"an answer without a completion: {reply.says}")
    return Completion(
        prompt_tokens=meta.prompt_tokens,
        cached_tokens=meta.cached_tokens,
        output=generated.output_ids or None,
        finish=meta.finish_reason.type if meta.finish_reason else None,
        finish_says=(meta.finish_reason.message or "") if meta.finish_reason else "",
    )


def completions(prompts: Sequence[Prompt], model: str | None) -> HttpRequest:
    """A POST to /generate with a list of lists of token ids."""
    sampling = {"max_new_tokens": 1, "temperature": 0}
    return HttpRequest(
        "POST", "/generate", {"input_ids": [prompt.tokens for prompt in prompts], "sampling_params": sampling}
    )


def read_completions(reply: Reply) -> Completion:
    """The reply has a document for each prompt, with its own counts, which are added up."""
    metas = [generated.meta_info for generated in reply.read(tuple[_Generated, ...], TITLE)]
    if not any(metas):
        raise RequestRefusedError(f"an answer without a completion: {reply.says}")
    finishes = [meta.finish_reason for meta in metas if meta and meta.finish_reason]
    finish = first_broken(finish.type for finish in finishes)
    return Completion(
        prompt_tokens=_sum(meta.prompt_tokens if meta else None for meta in metas),
        cached_tokens=_sum(meta.cached_tokens if meta else None for meta in metas),
        finish=finish,
        finish_says=next((each.message or "" for each in finishes if finish and each.type == finish), ""),
    )


def reset() -> HttpRequest:
    """A POST to /flush_cache. The server waits up to 5 s until it is idle; 0.5.5 ignores the timeout."""
    return HttpRequest("POST", "/flush_cache?timeout=5")


def read_reset(reply: Reply) -> ResetOutcome:
    """Only the status says whether it was done: a refusal of 0.5.5 says "Cache flushed." in its body."""
    if reply.status == 200:
        return ResetOutcome(True, "the server answered 200")
    return ResetOutcome(False, f"the server answered {reply.status}: {reply.says}", retry=reply.status == 400)


def read_facts(replies: Mapping[str, Reply], page: Page | None) -> ServerFacts:
    """Facts from /server_info, whose page size is the effective one; the pool of one rank from the metrics."""
    said = [replies[path].read(_Info, TITLE) for path in FACT_PATHS[0] if path in replies]
    info = said[0] if said else _Info()
    block_tokens = info.page_size or _gauge(page, _PAGE_SIZE)
    capacity_tokens = _gauge(page, _POOL_SIZE) or info.max_total_num_tokens
    chunk = info.chunked_prefill_size
    off = info.disable_radix_cache
    policy = info.radix_eviction_policy or "lru"
    return ServerFacts(
        version=info.version,
        model=info.served_model_name,
        model_path=info.model_path,
        max_model_tokens=info.context_length or info.max_req_input_len,
        block_tokens=block_tokens,
        capacity_blocks=capacity_tokens // block_tokens if capacity_tokens and block_tokens else None,
        capacity_tokens=capacity_tokens,
        caching=None if off is None else not off,
        ranks=info.dp_size or 1,
        chunked_prefill_tokens=chunk if chunk and chunk > 0 else None,  # -1 is off
        overlap_schedule=not info.disable_overlap_schedule,
        emulated="emulated" in str(info.version),
        notes=tuple(
            note
            for note, holds in (
                (f"radix eviction policy {policy}: the model knows lru only", policy != "lru"),
                ("speculative decoding makes every hit one token shorter", info.speculative_algorithm),
            )
            if holds
        ),
    )


def read_counters(page: Page, model: str | None, version: str | None = None) -> Counters:
    """Counters of each model and role, summed over data-parallel ranks; of ranks that repeat each other, one.

    An empty page is a server before its first token. Hit modes, and cached_tokens, appear with their first token.
    """
    if not page.empty and not page.has(METRIC_PREFIX):
        raise MetricsError("no sglang: metric on the page", todo=NO_METRICS)
    owners = by_owner(page, _COUNTED)
    parts = [_part(page, owner, series, version) for owner, series in owners.items()]
    parts = [part for part in parts if part.pairs or part.halves]
    gauge = page.told([_HIT_GAUGE])
    busy = any(sample.value > 0 for name in (_HIT_GAUGE, _RUNNING_GAUGE) for sample in page.look(name))
    if not parts and busy:
        there = f"a gauge {gauge}" if gauge else ", ".join(page.examples(METRIC_PREFIX))
        raise MetricsError(
            f"this page has no token counters ({there})",
            todo="is the page filtered on its way? name SGLang's own /metrics with `metrics_urls`",
        )
    only, note = chosen_model((part.model for part in parts), model)
    return Counters(
        parts=tuple(part for part in parts if only in (None, part.model)),
        preemptions=tokens(of_model(page.named(_RETRACTED), only)) or 0,
        evicted_tokens=tokens(of_model(page.named(_EVICTED), only)),
        raw=readings(page, (*_COUNTED, _EVICTED, _RETRACTED), only),
        notes=(note,) if note else (),
    )


def _part(page: Page, owner: Owner, series: Mapping[str, list[Sample]], version: str | None) -> Part:
    """What one model in one role counts."""
    pairs: dict[str, Tally] = {}
    tiers: dict[str, Tiers] = {}
    effective = series.get(_EFFECTIVE, [])
    computed = tokens(effective, mode="input")
    found = {mode: tokens(effective, mode=mode) or 0 for mode in ("device_hit", "host_hit", "storage_hit")}
    if computed is not None:
        hit = sum(found.values())
        pairs[_BY_EFFECTIVE] = Tally(computed + hit, hit)
        tiers[_BY_EFFECTIVE] = Tiers(local=found["device_hit"], host=found["host_hit"], storage=found["storage_hit"])
    elif any(found.values()):
        raise MetricsError(f'{_EFFECTIVE} has hits but no mode="input"')
    prompted = tokens(series.get(_PROMPT, ()))
    cached = _by_source(series.get(_CACHED, ()))
    lacks = "" if cached or prompted is None else _no_cached(page, series[_PROMPT], version)
    if prompted is not None and not lacks:
        pairs[_BY_CACHED] = Tally(prompted, sum(cached.values()))
        tiers[_BY_CACHED] = _tiers(cached)
    computed = tokens(series.get(_REALTIME, ()), mode="prefill_compute")
    if computed is not None:
        hit = tokens(series.get(_REALTIME, ()), mode="prefill_cache") or 0
        pairs[_BY_REALTIME] = Tally(computed + hit, hit)
    return Part(
        pairs=pairs,
        tiers=tiers,
        external=Tally(0, found["host_hit"] + found["storage_hit"]),
        model=owner.model,
        role=owner.role,
        place=in_words(owner),
        halves={_BY_CACHED: prompted} if lacks and prompted is not None else {},
        lacks="" if pairs else lacks,
        never=lacks != _NONE_YET,
    )


def _by_source(samples: Iterable[Sample]) -> dict[str, int]:
    """Cached tokens by their label cache_source; a total is not added to what it is the total of."""
    known = list(samples)
    sources = {sample.labels.get("cache_source", "") for sample in known}
    if len(sources) > 1:
        sources -= {"total"}
    counts = {
        source: tokens(sample for sample in known if sample.labels.get("cache_source", "") == source)
        for source in sorted(sources)
    }
    return {source: count for source, count in counts.items() if count is not None}


def _tiers(cached: Mapping[str, int]) -> Tiers:
    """The tiers that older counters tell apart; a source that no tier is known by leaves all of them unknown."""
    storage = [source for source in cached if source.startswith("storage")]
    if {*cached} - {"device", "host", *storage}:
        return Tiers()
    return Tiers(cached.get("device", 0), None, cached.get("host", 0), sum(cached[source] for source in storage))


def _no_cached(page: Page, prompted: Iterable[Sample], version: str | None) -> str:
    """Why cached tokens without a sample are not 0, in a sentence; "" where the page or the version says they are.

    Versions before 0.4.4 have no such counter, the others show it with its first token. Those of today have labels on
    prompt tokens that the old ones lacked. A gauge above 0 says that there were hits, so that they are missing.
    """
    gauge = page.told([_HIT_GAUGE])
    newer = _release(version) >= _CACHED_SINCE or any(
        label in sample.labels for sample in prompted for label in ("engine_type", "is_streaming")
    )
    had_hits = any(sample.value > 0 for sample in page.look(_HIT_GAUGE))
    if not had_hits and (newer or page.starts_at_zero(_CACHED)):
        return ""
    if not had_hits and not version:
        return _NONE_YET
    if newer:
        what = f"cached tokens are not on the page, though {version or 'this version'} counts them"
    else:
        what = f"cached tokens are not counted by this version ({version or 'not said'})"
    return f"{what}; only the gauge {gauge}" if gauge else what


_CACHED_SINCE = (0, 4, 4)
_NONE_YET = "cached tokens are not on the page: none was found yet, or this version does not count them"


def _release(version: str | None) -> tuple[int, ...]:
    """The numbers that a version begins with; () where there are none.

    >>> _release("0.5.5+emulated"), _release("0.4.3.post2"), _release(None)
    ((0, 5, 5), (0, 4, 3), ())
    """
    found = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", version or "")
    return tuple(int(number or 0) for number in found.groups()) if found else ()


# "[2026-11-29 21:14:36 DP0 TP0] Prefill batch, #new-seq: 18, #new-token: 4096, #cached-token: 17000, ..."; a full
# stop after "batch" in 0.4, an iteration in brackets there in some versions, other fields after these.
_LOGGED_AT = re.compile(r"\[(\d{4})-(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)[^\] ]*((?: [A-Z]+\d+)*)\]")
_PREFILL = re.compile(r"\bPrefill batch[^#]*#new-seq: \d+, #new-token: (\d+), #cached-token: (\d+)")
_RETRACT = re.compile(r"#retracted_reqs: (\d+)")


def read_log_line(line: str) -> LogEntry | None:
    """A line of a prefill batch, with tokens computed and found (together those looked up), or of a retraction.

    A prompt's later chunks are batches of new tokens alone. Tensor and pipeline ranks repeat each other.
    """
    prefill, retract = _PREFILL.search(line), _RETRACT.search(line)
    if not (prefill or retract):
        return None
    at = _LOGGED_AT.search(line)
    ranks = at[7].split() if at else []
    new, cached = map(int, prefill.groups()) if prefill else (0, 0)
    return LogEntry(
        moment=tuple(map(int, at.groups()[:6])) if at else None,
        rank=next((int(rank[2:]) for rank in ranks if rank.startswith("DP")), None),
        replica=" ".join(rank for rank in ranks if not rank.startswith("DP")),
        tally=Tally(new + cached, cached),
        preemptions=int(retract[1]) if retract else 0,
    )


def cache_model(facts: ServerFacts) -> CacheModel:
    """A RadixCache for each data-parallel rank."""
    assert facts.block_tokens is not None and facts.capacity_tokens is not None
    return Ranks(
        RadixCache(
            facts.capacity_tokens,
            facts.block_tokens,
            facts.chunked_prefill_tokens,
            facts.overlap_schedule,
        )
        for _ in range(facts.ranks)
    )


def recording_sizes(facts: ServerFacts) -> Mapping[str, Any]:
    """The sizes of the cache, and what else decides which leaf is evicted when."""
    return {
        "page_size": facts.block_tokens,
        "capacity_tokens": facts.capacity_tokens,
        "chunked_prefill_size": facts.chunked_prefill_tokens,
        "overlap_schedule": facts.overlap_schedule,
    }


def recorded_facts(sizes: Mapping[str, Any]) -> ServerFacts:
    """The server that a recording with these sizes was made on."""
    page_tokens, capacity_tokens = sizes["page_size"], sizes["capacity_tokens"]
    return ServerFacts(
        block_tokens=page_tokens,
        capacity_blocks=capacity_tokens // page_tokens,
        capacity_tokens=capacity_tokens,
        chunked_prefill_tokens=sizes.get("chunked_prefill_size"),
        overlap_schedule=sizes.get("overlap_schedule", True),
    )


def _gauge(page: Page | None, name: str) -> int | None:
    samples = page.look(name) if page else []
    if not samples:
        return None
    if not math.isfinite(samples[0].value) or samples[0].value < 0:
        raise MetricsError(f"the gauge {samples[0].series} is {samples[0].value}")
    return int(samples[0].value)


def _sum(counts: Iterable[int | None]) -> int | None:
    """The sum; None when one of the counts is None."""
    known = list(counts)
    return None if None in known else sum(filter(None, known))
