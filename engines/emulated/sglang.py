"""An emulated SGLang: /generate with input_ids, /metrics, /flush_cache.

Bodies and statuses as SGLang 0.5.23 gave them when it was started with --skip-tokenizer-init --enable-metrics,
and what older versions did differently (docs/engine-notes.md). Two of its traits are left out: the overlap
scheduler admits a second prefill batch before the first is stored, and it refuses a flush while another waits.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from prometheus_client.core import Metric

from hitlab.cache.model import CacheModel
from hitlab.cache.radix import RadixCache
from hitlab.servers.emulated import exposition as expose
from hitlab.servers.emulated.config import EmulatedConfig, EngineDiedError
from hitlab.servers.emulated.dialect import Call, Handler, Host, Response, json_response
from hitlab.servers.emulated.requests import RefusedError, TokenIds, models_response, read_prompts
from hitlab.servers.emulated.scheduler import Generation, RankCounters
from hitlab.tokens import Prompt

DEFAULTS = EmulatedConfig(block_tokens=1, capacity_blocks=262_144, version="0.5.23", chunked_prefill_tokens=4096)

_DEFAULT_OUTPUT_TOKENS = 128
_LENGTH_BOUNDS = (
    *(100, 300, 500, 700, 1000, 1500, *range(2000, 10_001, 1000), *range(12_500, 30_001, 2500), 35_000, 40_000),
    *(60_000, 80_000, 100_000, 200_000, 300_000, 400_000, 600_000, 800_000, 1_000_000, 1_100_000),
)


def build_cache(config: EmulatedConfig) -> CacheModel:
    """A RadixCache with the pool of one rank."""
    return RadixCache(_pool_tokens(config), config.block_tokens, config.chunked_prefill_tokens, config.overlap_schedule)


def batch_tokens(config: EmulatedConfig) -> int | None:
    """Tokens of a chunked prefill; a prompt is stored after its prefill, so requests of one batch do not find it."""
    return config.chunked_prefill_tokens


def warm_up(config: EmulatedConfig) -> list[Generation]:
    """One request of three tokens, which the counters show."""
    return [Generation(Prompt((10, 11, 12)), max_tokens=8)]


def key_for(method: str, path: str, config: EmulatedConfig) -> str | None:
    """The key for a call: health and metrics need none, a flush the admin key where there is one, else the API key."""
    if path.startswith(("/health", "/metrics")):
        return None
    return (config.admin_key or config.api_key) if path == "/flush_cache" else config.api_key


def routes(config: EmulatedConfig) -> Mapping[str, Mapping[str, Handler]]:
    """Handlers by path and method. /metrics needs --enable-metrics; old versions know only the old paths."""
    known: dict[str, Mapping[str, Handler]] = {
        "/generate": {"POST": _generate, "PUT": _generate},
        "/flush_cache": {"GET": _flush_cache, "POST": _flush_cache},
        "/get_server_info": {"GET": _server_info},
        "/get_model_info": {"GET": _model_info},
        "/v1/models": {"GET": _models},
        "/health": {"GET": _health},
        "/health_generate": {"GET": _health},
    }
    if config.at_least("0.5.6"):
        known |= {"/server_info": {"GET": _server_info}, "/model_info": {"GET": _model_info}}
    if config.metrics_on:
        known |= {"/metrics": {"GET": _metrics}, "/metrics/": {"GET": _metrics}}
    return known


def error(status: int, message: str) -> Response:
    """An error as /generate answers it."""
    return json_response({"error": {"message": message}}, status)


class _Generate(msgspec.Struct):
    """The fields of a body that make a difference here."""

    input_ids: msgspec.Raw = msgspec.Raw(b"null")
    text: Any = None
    sampling_params: Any = None
    cache_salt: str | list[str | None] | None = None
    extra_key: str | list[str | None] | None = None
    stream: bool = False


class _Sampling(msgspec.Struct):
    max_new_tokens: int | None = None
    temperature: float = 1.0
    n: int = 1
    stop_token_ids: list[int] | None = None


_BODY = msgspec.json.Decoder(_Generate)


def _refused(message: str) -> RefusedError:
    return RefusedError(error(400, message))


async def _generate(host: Host, call: Call) -> Response:
    try:
        body = _BODY.decode(call.body)
        prompts, is_batch = _prompts(body)
        samplings = _samplings(body, len(prompts))
        salts = _salts(body, len(prompts), host.config)
        limits = [
            _output_limit(prompt, sampling, host.config) for prompt, sampling in zip(prompts, samplings, strict=True)
        ]
    except msgspec.DecodeError as refused:
        return json_response(
            {"object": "error", "message": str(refused), "type": "Bad Request", "param": None, "code": 400}, 400
        )
    except RefusedError as refused:
        return refused.response
    if not all(prompts) or any(min(prompt) < 0 or max(prompt) >= host.config.vocab_size for prompt in prompts):
        raise EngineDiedError("an empty prompt in a list, or a token id out of the vocabulary")
    copies = samplings[0].n
    if copies > 1:  # the prompts go ahead once, so that the copies find them
        await host.generate([Generation(Prompt(*pair), 0) for pair in zip(prompts, salts, strict=True)])
    generations = [
        Generation(Prompt(prompt, salt), limit, frozenset(sampling.stop_token_ids or ()), choice)
        for prompt, salt, limit, sampling in zip(prompts, salts, limits, samplings, strict=True)
        for choice in range(copies)
    ]
    await host.generate(generations)
    documents = [_document(generation, index, host) for index, generation in enumerate(generations)]
    return json_response(documents if is_batch or copies > 1 else documents[0])


def _prompts(body: _Generate) -> tuple[tuple[TokenIds, ...], bool]:
    """The prompts' token ids, and whether they came as a list of lists. Raises RefusedError."""
    if bytes(body.input_ids) == b"null":
        if body.text is not None:
            raise _refused("The engine initialized with skip_tokenizer_init=True cannot accept text prompts.")
        raise _refused("Either text, input_ids or input_embeds should be provided.")
    prompts, is_batch = read_prompts(body.input_ids)
    if not (is_batch or prompts[0]):
        raise _refused("input_ids cannot be empty.")
    return prompts, is_batch


def _samplings(body: _Generate, prompts: int) -> list[_Sampling]:
    """The sampling parameters of each prompt. Raises RefusedError."""
    params = body.sampling_params
    if isinstance(params, list) and len(params) != prompts:
        raise _refused("The length of sampling_params should be equal to the batch size.")
    if body.stream:
        raise _refused("The emulated engine does not stream.")
    samplings = [
        msgspec.convert(each or {}, _Sampling) for each in (params if isinstance(params, list) else [params] * prompts)
    ]
    for sampling in samplings:
        if sampling.max_new_tokens is not None and sampling.max_new_tokens < 0:
            raise _refused(f"max_new_tokens must be at least 0, got {sampling.max_new_tokens}.")
        if sampling.temperature < 0:
            raise _refused(f"temperature must be a non-negative finite number, got {sampling.temperature:g}.")
    return samplings


def _salts(body: _Generate, prompts: int, config: EmulatedConfig) -> list[str | None]:
    """The namespace of each prompt, made of cache_salt and extra_key together; None where both are empty."""
    if not config.at_least("0.5.18"):
        return [None] * prompts
    columns = [key if isinstance(key, list) else [key] * prompts for key in (body.cache_salt, body.extra_key)]
    if any(len(column) != prompts for column in columns):
        raise _refused("The length of cache_salt and extra_key should be equal to the batch size.")
    return [f"{salt or ''}\0{extra or ''}" if salt or extra else None for salt, extra in zip(*columns, strict=True)]


def _output_limit(prompt: TokenIds, sampling: _Sampling, config: EmulatedConfig) -> int:
    """Tokens to generate, cut to what the pool leaves. Raises RefusedError for a request that is too long."""
    length, longest, context = len(prompt), _prompt_limit(config), config.max_model_tokens
    if length >= context:
        raise _refused(f"The input ({length} tokens) is longer than the model's context length ({context} tokens).")
    if length + (sampling.max_new_tokens or 0) > context:
        raise _refused(f"Requested token count exceeds the model's maximum context length of {context} tokens.")
    if length > longest:
        raise _refused(f"Input length ({length} tokens) exceeds the maximum allowed length ({longest} tokens).")
    asked = _DEFAULT_OUTPUT_TOKENS if sampling.max_new_tokens is None else sampling.max_new_tokens
    return min(asked, longest + 4 - length)


def _pool_tokens(config: EmulatedConfig) -> int:
    return config.capacity_blocks * config.block_tokens


def _prompt_limit(config: EmulatedConfig) -> int:
    """The longest prompt: six tokens below the pool, or a few pages, since a prefill asks for one too many."""
    pool_tokens = _pool_tokens(config) - 2 * (config.block_tokens - 1)
    return min(config.max_model_tokens, pool_tokens) - 6


def _document(generation: Generation, index: int, host: Host) -> dict[str, Any]:
    reason = generation.finish_reason
    detail = {"matched": generation.output[-1]} if reason == "stop" else {"length": len(generation.output)}
    tiers = {"device": generation.hit_tokens, "host": generation.external_hit_tokens}
    meta: dict[str, Any] = {
        "id": f"emulated-{host.received.total()}-{index}",
        "finish_reason": {"type": reason, **detail},
        "prompt_tokens": generation.prompt_tokens,
        "weight_version": "default",
        "num_retractions": generation.preemptions,
        "completion_tokens": len(generation.output),
        "cached_tokens": generation.cached_tokens,
        "cached_tokens_details": tiers if generation.cached_tokens else None,
        "dp_rank": generation.rank if host.config.ranks > 1 else None,
    }
    if host.faults.cached_tokens:
        del meta["cached_tokens_details"]
        meta["cached_tokens"] = None
    if host.faults.cached_tokens == "missing":
        del meta["cached_tokens"]
    return {"output_ids": generation.output, "meta_info": meta}


async def _flush_cache(host: Host, call: Call) -> Response:
    try:
        wait_s = float(call.query.get("timeout", "0")) if host.config.at_least("0.5.11") else 0.0
    except ValueError:
        wait_s = -1.0
    if not wait_s >= 0:
        body = {"object": "error", "message": "timeout: a number of seconds, 0 or more", "type": "Bad Request"}
        return json_response({**body, "param": None, "code": 400}, 400)
    flushed = await host.reset(wait_s)
    text = "Cache flushed.\n" if flushed or not host.config.at_least("0.5.6") else "Flush cache failed.\n"
    if not flushed and wait_s:
        text = "Timed out waiting for idle state."
    return Response(200 if flushed else 400, b"" if host.faults.reset == "mute" else text.encode())


async def _health(host: Host, call: Call) -> Response:
    """A health check, which generates one token: the scheduler's counters show it, the tokenizer's do not."""
    await host.generate([Generation(Prompt((0,)))], internal=True)
    return Response()


async def _models(host: Host, call: Call) -> Response:
    return models_response(host.config, call, host.config.max_model_tokens)


async def _model_info(host: Host, call: Call) -> Response:
    return json_response(
        {
            "model_path": host.config.model_name,
            "served_model_name": host.config.model_name,
            "tokenizer_path": host.config.model_name,
            "is_generation": True,
            "weight_version": "default",
            "load_format": "emulated",
        }
    )


async def _server_info(host: Host, call: Call) -> Response:
    config = host.config
    return json_response(
        {
            "version": config.shown_version,
            "page_size": host.faults.announced_block_tokens or config.block_tokens,
            "max_total_num_tokens": _pool_tokens(config),
            "max_total_tokens": _pool_tokens(config),
            "max_req_input_len": _prompt_limit(config),
            "disable_radix_cache": not config.caching_on,
            "schedule_policy": "fcfs",
            "chunked_prefill_size": config.chunked_prefill_tokens or -1,
            "disable_overlap_schedule": not config.overlap_schedule,
            "dp_size": config.ranks,
            "enable_metrics": config.metrics_on,
            "context_length": None,
            "served_model_name": config.model_name,
            "device": "emulated",
            "attention_backend": "emulated",
            "radix_eviction_policy": "lru",
            "status": "ready",
        }
    )


# The scheduler's gauges, of each rank.
_GAUGES: dict[str, tuple[str, expose.Value]] = {
    "num_running_reqs": ("Requests that run.", lambda rank: rank.running_requests),
    "num_queue_reqs": ("Requests that wait.", lambda rank: rank.waiting_requests),
    "max_total_num_tokens": ("Tokens of the pool.", lambda rank: rank.capacity_tokens),
    "kv_evictable_tokens": ("Tokens in the tree.", lambda rank: rank.resident_tokens),
    "kv_available_tokens": (
        "Tokens of the pool outside the tree.",
        lambda rank: rank.capacity_tokens - rank.resident_tokens,
    ),
    "cache_hit_rate": (
        "Hits of the last prefill batch alone, 0 to 1.",
        lambda rank: rank.last_batch_hit_tokens / (rank.last_batch_queried_tokens or 1),
    ),
}

# Token counters by mode, of each rank: those that leave a retracted request's second prefill out, and the others.
_EFFECTIVE: dict[str, expose.Value] = {
    "input": lambda rank: rank.computed_tokens,
    "device_hit": lambda rank: rank.hit_tokens,
    "host_hit": lambda rank: rank.external_hit_tokens,
    "storage_hit": lambda rank: 0,
}
_REALTIME: dict[str, expose.Value] = {
    "prefill_compute": lambda rank: rank.computed_tokens + rank.recounted_queried_tokens - rank.recounted_hit_tokens,
    "decode": lambda rank: rank.decoded_tokens,
    "prefill_cache": lambda rank: rank.found_tokens + rank.recounted_hit_tokens,
}


async def _metrics(host: Host, call: Call) -> Response:
    ranks = host.scheduler.scrape()
    families = [*_scheduler_families(host, ranks), *_tokenizer_families(host, ranks)]
    return expose.metrics_response(families, call, host.faults, negotiate=True)


def _scheduler_families(host: Host, counters: list[RankCounters]) -> Iterator[Metric]:
    """Metrics that the scheduler of each rank counts."""
    config = host.config
    base = {"engine_type": "unified", "model_name": config.model_name}
    base |= {"moe_ep_rank": "0", "pp_rank": "0", "tp_rank": "0"}
    ranks: expose.RankSamples = [
        (base | {"dp_rank": str(rank)} if config.ranks > 1 else base, counters)
        for rank, counters in enumerate(counters)
    ]

    def everywhere(value: float) -> expose.Samples:
        return expose.of_ranks(ranks, lambda rank: value)

    for name, (about, value) in _GAUGES.items():
        yield expose.gauge(f"sglang:{name}", about, expose.of_ranks(ranks, value))
    if config.at_least("0.5.11"):
        page_tokens = host.faults.announced_block_tokens or config.block_tokens
        yield expose.gauge("sglang:page_size", "Tokens of a page.", everywhere(page_tokens))
        yield expose.gauge("sglang:num_pages", "Pages of the pool.", everywhere(config.capacity_blocks))
    yield expose.gauge("sglang:context_len", "The model's longest request.", everywhere(config.max_model_tokens))
    by_mode = {"sglang:realtime_tokens_total": ("Tokens, retracted requests twice.", _REALTIME)}
    if config.at_least("0.5.18"):
        by_mode["sglang:prefill_effective_tokens_total"] = ("Prefill tokens, each once.", _EFFECTIVE)
    for name, (about, values) in by_mode.items():
        samples = expose.split_of_ranks(ranks, "mode", values)
        yield expose.counter(
            name, about, [sample for sample in samples if sample[1] or name != "sglang:realtime_tokens_total"]
        )
    yield expose.gauge("sglang:num_retracted_reqs", "A gauge.", [({**labels, "pid": "1"}, 0.0) for labels, _ in ranks])
    retracted = [(labels, counted.preempted_requests) for labels, counted in ranks if counted.preempted_requests]
    if retracted:
        yield expose.counter("sglang:num_retracted_requests_total", "Requests retracted.", retracted)
    # The cache has labels of its own, among them a dp_rank whether or not there are several.
    cache = {"cache_type": "UnifiedRadixCache", "pp_rank": "0", "tp_rank": "0"}
    evicted = [
        (cache | {"dp_rank": str(rank)}, counted.evicted_tokens)
        for rank, (_, counted) in enumerate(ranks)
        if counted.evicted_tokens and config.caching_on
    ]
    if evicted:
        yield expose.counter("sglang:evicted_tokens_total", "Tokens evicted.", evicted)


def _tokenizer_families(host: Host, ranks: list[RankCounters]) -> Iterator[Metric]:
    """Metrics that the one process in front of all ranks counts."""
    config = host.config
    base = {"engine_type": "unified", "model_name": config.model_name}
    streaming = base | ({"is_streaming": "false"} if config.at_least("0.5.17") else {})
    sums: dict[str, tuple[str, expose.Value]] = {
        "prompt_tokens_total": ("Prompt tokens.", lambda counted: counted.answered_prompt_tokens),
        "generation_tokens_total": ("Tokens generated.", lambda counted: counted.answered_output_tokens),
        "num_requests_total": ("Requests.", lambda counted: counted.answered_requests),
    }
    for name, (about, value) in sums.items():
        yield expose.counter(f"sglang:{name}", about, [(streaming, sum(map(value, ranks)))])
    hits = {
        "device": sum(counted.answered_hit_tokens for counted in ranks),
        "host": sum(counted.answered_external_hit_tokens for counted in ranks),
    }
    cached = [(base | {"cache_source": source}, tokens) for source, tokens in hits.items() if tokens]
    if cached:
        yield expose.counter("sglang:cached_tokens_total", "Prompt tokens found.", cached)
    lengths: Counter[int] = sum((counted.prompt_lengths for counted in ranks), Counter())
    yield expose.histogram(
        "sglang:prompt_tokens_histogram", "Prompt tokens of a request.", [(base, lengths)], _LENGTH_BOUNDS
    )
    requests = [({"endpoint": path, "method": method}, count) for (method, path), count in host.received.items()]
    yield expose.counter("sglang:http_requests_total", "HTTP requests.", requests)
    responses = [
        ({"endpoint": path, "method": method, "status_code": str(status)}, count)
        for (method, path, status), count in host.sent.items()
    ]
    yield expose.counter("sglang:http_responses_total", "HTTP responses.", responses)
