"""SGLang's token counters, by version.

Measured on 0.5.23 and 0.5.5 (docs/engine-notes.md).
"""

import re
from collections.abc import Iterable, Mapping

from hitlab.client.counters import Counters, Part, Tiers
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
from hitlab.errors import MetricsError
from hitlab.tokens import Tally

PREFIX = "sglang:"
NO_METRICS = "start SGLang with --enable-metrics, or give measure its log with `log` FILE"

_EFFECTIVE = "sglang:prefill_effective_tokens_total"  # 0.5.18 and newer; retracted requests not counted again
_PROMPT, _CACHED = "sglang:prompt_tokens_total", "sglang:cached_tokens_total"  # the second from 0.4.4 on
_REALTIME = "sglang:realtime_tokens_total"  # counts retracted requests again
_EVICTED, _RETRACTED = "sglang:evicted_tokens_total", "sglang:num_retracted_requests_total"
_COUNTED = (_EFFECTIVE, _PROMPT, _CACHED, _REALTIME)
PAGE_SIZE, POOL_SIZE = "sglang:page_size", "sglang:max_total_num_tokens"
_HIT_GAUGE, _RUNNING_GAUGE = "sglang:cache_hit_rate", "sglang:num_running_reqs"
METRICS: tuple[str, ...] = (*_COUNTED, _EVICTED, _RETRACTED, PAGE_SIZE, POOL_SIZE, _HIT_GAUGE, _RUNNING_GAUGE)

_BY_EFFECTIVE, _BY_CACHED = "sglang:prefill_effective_tokens", "sglang:prompt_tokens and cached_tokens"
_BY_REALTIME = "sglang:realtime_tokens"


def read_counters(page: Page, model: str | None, version: str | None = None) -> Counters:
    """Counters of each model and role, summed over data-parallel ranks; of ranks that repeat each other, one.

    An empty page is a server before its first token. Hit modes, and cached_tokens, appear with their first token.
    """
    if not page.empty and not page.has(PREFIX):
        raise MetricsError("no sglang: metric on the page", todo=NO_METRICS)
    owners = by_owner(page, _COUNTED)
    parts = [_part(page, owner, series, version) for owner, series in owners.items()]
    parts = [part for part in parts if part.pairs or part.halves]
    gauge = page.told([_HIT_GAUGE])
    busy = any(sample.value > 0 for name in (_HIT_GAUGE, _RUNNING_GAUGE) for sample in page.look(name))
    if not parts and busy:
        there = f"a gauge {gauge}" if gauge else ", ".join(page.examples(PREFIX))
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
