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
from hitlab.client.log_times import dated_moment_in, moment_in
from hitlab.client.metrics_page import Page
from hitlab.errors import MetricsError, RequestRefusedError
from hitlab.tokens import Prompt, Tally

from .metrics import sglang as metrics

NAME = "sglang"
TITLE = "SGLang"
DEFAULT_BASE_URL = "http://127.0.0.1:30000"
DEFAULT_BLOCK_TOKENS = 1
FACT_PATHS: tuple[tuple[str, ...], ...] = (("/server_info", "/get_server_info"), ("/model_info", "/get_model_info"))
METRIC_PREFIX, METRICS, NO_METRICS = metrics.PREFIX, metrics.METRICS, metrics.NO_METRICS
NO_RESET = "measure with `cold_by` fresh-prefix"
LOG_LACKS = ""

read_counters = metrics.read_counters


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
    block_tokens = info.page_size or _gauge(page, metrics.PAGE_SIZE)
    capacity_tokens = _gauge(page, metrics.POOL_SIZE) or info.max_total_num_tokens
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


# "[2026-11-29 21:14:36 DP0 TP0] Prefill batch, #new-seq: 18, #new-token: 4096, #cached-token: 17000, ..."; a full
# stop after "batch" in 0.4, an iteration in brackets there in some versions, other fields after these. The tags of all
# versions: DP, PP, ATTN_CP, MOE_DP, TP, EP.
_PREFILL = re.compile(r"\bPrefill batch[^#]*#new-seq: \d+, #new-token: (\d+), #cached-token: (\d+)")
_RETRACT = re.compile(r"#retracted_reqs: (\d+)")
_RANK_TAG = re.compile(r"(?<![\w.:/=-])((?:[A-Z]+_)*[A-Z]{1,2}P)[-_=:]?(\d+)(?![\w.:/-])", re.IGNORECASE)
_AFTER_TIME = re.compile(r"\[[^\]]*\d:\d\d\S*((?:[ ,]+[A-Z_]+\d+)+)\]")
_OTHER_TAG = re.compile(r"([A-Z_]+?)_?(\d+)(?=[ ,]|$)")
_JOINED = re.compile(r"(?<=\d)[_/|+](?=[A-Z])")  # DP0_TP3


def read_log_line(line: str) -> LogEntry | None:
    """A line of a prefill batch, with tokens computed and found (together those looked up), or of a retraction.

    A prompt's later chunks are batches of new tokens alone. Only data-parallel ranks have a cache of their own.
    """
    prefill, retract = _PREFILL.search(line), _RETRACT.search(line)
    said = prefill or retract
    if not said:
        return None
    head = line[: said.start()]
    tagged = _JOINED.sub(" ", head)
    after_time = _AFTER_TIME.search(tagged)
    found = _OTHER_TAG.findall(after_time[1]) if after_time else _RANK_TAG.findall(tagged)
    tags = [(kind.upper(), int(number)) for kind, number in found]
    # Attention may be data-parallel as well, with a cache for each rank; experts have none.
    caches = sorted((kind != "DP", number) for kind, number in tags if _own_cache(kind))
    new, cached = map(int, prefill.groups()) if prefill else (0, 0)
    return LogEntry(
        moment=moment_in(head) or dated_moment_in(line[said.end() :]),
        rank=caches[0][1] if caches else None,
        replica=" ".join(f"{kind}{number}" for kind, number in tags if not _own_cache(kind)),
        tally=Tally(new + cached, cached),
        preemptions=int(retract[1]) if retract else 0,
    )


def _own_cache(kind: str) -> bool:
    """Whether ranks of this kind are data-parallel; those of every other kind repeat each other's tokens."""
    *before, last = kind.split("_")
    return last == "DP" and not {"MOE", "EXPERT"} & set(before)


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
