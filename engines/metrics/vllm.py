"""vLLM's prefix-cache counters, by version.

Measured on 0.32.0 (docs/engine-notes.md); names of older versions from public reports.
"""

from collections.abc import Iterable, Mapping, Sequence

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
from hitlab.tokens import NOTHING, Tally

PREFIX = "vllm:"
NO_METRICS = "start vLLM without --disable-log-stats, or name its own address with `metrics_urls`"

# The pair of today, and its name before it lost the gpu_. Around 0.10 a page has both, counting the same tokens.
_PAIRS = ("vllm:prefix_cache", "vllm:gpu_prefix_cache")
_HALVES = {pair: (f"{pair}_queries_total", f"{pair}_hits_total") for pair in _PAIRS}
QUERIES = tuple(queries for queries, _ in _HALVES.values())
_EXTERNAL = ("vllm:external_prefix_cache_queries_total", "vllm:external_prefix_cache_hits_total")
_APART = ("vllm:mm_cache_queries_total", "vllm:mm_cache_hits_total")
_CREATED = tuple(f"{pair}_queries_created" for pair in _PAIRS)
_PREEMPTIONS = "vllm:num_preemptions_total"
INFO, DRAFTS = "vllm:cache_config_info", "vllm:spec_decode_num_drafts_total"
_GAUGES = ("vllm:gpu_prefix_cache_hit_rate", "vllm:cpu_prefix_cache_hit_rate")  # of engine V0, which counted no tokens
METRICS: tuple[str, ...] = (
    *(name for names in _HALVES.values() for name in names),
    *(*_EXTERNAL, *_APART, *_CREATED, _PREEMPTIONS, INFO, DRAFTS, *_GAUGES),
)


def read_counters(page: Page, model: str | None, version: str | None = None) -> Counters:
    """Counters of each model and server on the page, summed over the label `engine` (ranks)."""
    owners = by_owner(page, (name for names in _HALVES.values() for name in names))
    parts = {owner: _part(page, owner, series, _external(page, owner, owners)) for owner, series in owners.items()}
    if not parts and not page.has("ray_vllm:"):  # Ray shows a counter with its first token
        raise _no_counters(page, version)
    if parts and not any(part.pairs for part in parts.values()):
        raise MetricsError(next(part.lacks for part in parts.values()), todo="is the page filtered on its way?")
    only, note = chosen_model((owner.model for owner in parts), model)
    kept = [part for part in parts.values() if only in (None, part.model)]
    read = [name for part in kept for pair in (*part.pairs, *part.halves) for name in _HALVES[pair]]
    return Counters(
        parts=tuple(kept),
        preemptions=tokens(of_model(page.named(_PREEMPTIONS), only)) or 0,
        raw=readings(page, (*read, *_EXTERNAL, *_APART, _PREEMPTIONS), only),
        births=readings(page, _CREATED, only),
        notes=(note,) if note else (),
    )


def _external(page: Page, owner: Owner, owners: Iterable[Owner]) -> Tally:
    """What the tier behind an owner's cache counts; its labels need not be the cache's where they are clear anyway."""
    alone = [other.model for other in owners].count(owner.model) == 1
    queried, hit = (
        tokens(
            sample
            for sample in page.named(name)
            if Owner.of(sample) == owner or (alone and Owner.of(sample).model == owner.model)
        )
        for name in _EXTERNAL
    )
    return Tally(queried or 0, hit or 0)


def _part(page: Page, owner: Owner, series: Mapping[str, list[Sample]], external: Tally) -> Part:
    """What one model or server on the page counts; without a pair where half of it is missing and not known to be 0."""
    pairs, halves, lacks = {}, {}, ""
    for pair, names in _HALVES.items():
        counts = [tokens(series.get(name, ())) for name in names]
        if None not in counts or (any(count is not None for count in counts) and _is_zero(page, names, counts)):
            pairs = {pair: Tally(counts[0] or 0, counts[1] or 0)}
        elif counts != [None, None]:
            there, missing = names if counts[1] is None else reversed(names)
            lacks = f"only one of a pair is on the page: {there}, and no {missing}"
            halves = {pair: counts[0] or 0}
        if pairs or halves:
            break
    return Part(
        pairs=pairs,
        halves=halves,
        lacks=lacks,
        tiers={pair: Tiers(local=tally.hit_tokens, external=external.hit_tokens) for pair, tally in pairs.items()},
        external=external if pairs else NOTHING,
        model=owner.model,
        role=owner.role,
        place=in_words(owner),
    )


def _is_zero(page: Page, names: Sequence[str], counts: Sequence[int | None]) -> bool:
    return all(page.starts_at_zero(name) for name, count in zip(names, counts, strict=True) if count is None)


def _no_counters(page: Page, version: str | None) -> MetricsError:
    """Why there is no pair, by what the page has instead."""
    if said := page.told(_GAUGES):
        who = version or "this version"
        return MetricsError(f"{who} has a gauge ({said}) and no counters", todo="upgrade vLLM, or read the gauge")
    what = f"no {_HALVES[_PAIRS[0]][0]} on the page"
    if names := page.examples(PREFIX):
        what += f", which has {', '.join(names)}"
        return MetricsError(what, todo="is the page filtered on its way? name vLLM's own /metrics with `metrics_urls`")
    return MetricsError(f"an empty page: {what}" if page.empty else what, todo=NO_METRICS)
