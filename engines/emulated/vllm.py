"""An emulated vLLM: /v1/completions with token ids, /metrics, /reset_prefix_cache.

Bodies and statuses as vLLM 0.32.0 gave them when it was started with --skip-tokenizer-init, and what older
versions did differently from public reports. It invents no text and no log-probabilities. One trait is left out:
a request that may not use the cache here touches the blocks it would have found, and there stores them again.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from prometheus_client.core import Metric

from hitlab.cache.model import CacheModel
from hitlab.cache.paged import PagedCache
from hitlab.servers.emulated import exposition as expose
from hitlab.servers.emulated.config import EmulatedConfig
from hitlab.servers.emulated.dialect import Call, Handler, Host, Response, json_response
from hitlab.servers.emulated.requests import RefusedError, TokenIds, models_response, read_prompts
from hitlab.servers.emulated.scheduler import Generation, RankCounters
from hitlab.tokens import Prompt

DEFAULTS = EmulatedConfig(block_tokens=16, capacity_blocks=16_384, version="0.32.0")

_GUARDED = ("/v1", "/v2", "/inference", "/cohere")
_LENGTH_BOUNDS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000)


def build_cache(config: EmulatedConfig) -> CacheModel:
    """A PagedCache whose pool, with the null block, is that of one rank."""
    return PagedCache(config.capacity_blocks, config.block_tokens)


def batch_tokens(config: EmulatedConfig) -> int | None:
    """None: blocks have their hashes before they are computed, so requests of one batch find each other's."""
    return None


def warm_up(config: EmulatedConfig) -> list[Generation]:
    """None: vLLM's own warm-up is not counted."""
    return []


def key_for(method: str, path: str, config: EmulatedConfig) -> str | None:
    """The API key, for the API proper; resets and metrics need none."""
    return config.api_key if path.startswith(_GUARDED) else None


def routes(config: EmulatedConfig) -> Mapping[str, Mapping[str, Handler]]:
    """Handlers by path and method. A reset and /server_info need VLLM_SERVER_DEV_MODE=1."""
    always: dict[str, Mapping[str, Handler]] = {
        "/v1/completions": {"POST": _completions},
        "/v1/models": {"GET": _models},
        "/version": {"GET": _version},
        "/health": {"GET": _health},
        "/metrics": {"GET": _metrics},
        "/metrics/": {"GET": _metrics},
    }
    development: dict[str, Mapping[str, Handler]] = {
        "/reset_prefix_cache": {"POST": _reset_prefix_cache},
        "/server_info": {"GET": _server_info},
    }
    return always | development if config.dev_mode else always


def error(status: int, message: str, param: str | None = None, *, kind: str = "", last: bool = False) -> Response:
    """An error in OpenAI's form, with vLLM's names for its types."""
    kinds = {400: "BadRequestError", 404: "NotFoundError", 500: "InternalServerError"}
    body = {"message": message, "type": kind or kinds[status], "param": param, "code": status}
    return json_response({"error": body}, status, last=last)


class _Completions(msgspec.Struct):
    """The fields of a body that make a difference here; others are ignored, as they are by the engine."""

    prompt: msgspec.Raw = msgspec.Raw(b"null")
    model: str | None = None
    max_tokens: int | None = None
    n: int = 1
    temperature: float | None = None
    cache_salt: Any = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    echo: bool = False
    stop_token_ids: list[int] | None = None
    return_token_ids: bool | None = None
    stream: bool | None = None


_BODY = msgspec.json.Decoder(_Completions)


async def _completions(host: Host, call: Call) -> Response:
    try:
        body = _BODY.decode(call.body)
        prompts = _prompts(body)
        _check(body, host.config)
        lengths = [_output_limit(body, prompt, host.config) for prompt in prompts]
    except msgspec.DecodeError as refused:
        return error(400, f"1 validation error: {refused}", "body", kind="Bad Request")
    except RefusedError as refused:
        return refused.response
    generations = [
        Generation(
            Prompt(prompt, body.cache_salt),
            limit,
            frozenset(body.stop_token_ids or ()),
            choice,
            # The engine has to compute every prompt token of which it is to give the probability.
            looked_up=body.prompt_logprobs is None and not (body.echo and body.logprobs is not None),
        )
        for prompt, limit in zip(prompts, lengths, strict=True)
        for choice in range(body.n)
    ]
    if any(max(prompt) >= host.config.vocab_size for prompt in prompts):
        return error(500, "EngineCore encountered an issue: a token id out of the vocabulary", last=True)
    await host.generate(generations)
    return json_response(_completion(body, generations, host, call))


def _prompts(body: _Completions) -> tuple[TokenIds, ...]:
    """The prompts' token ids. Raises RefusedError."""
    first = bytes(body.prompt).lstrip()[:1]
    if first == b'"':
        raise RefusedError(error(400, "Tokenizer not available when `skip_tokenizer_init=True`"))
    if first != b"[":
        raise RefusedError(error(400, "Either prompt or prompt_embeds must be provided and non-empty.", "prompt"))
    prompts, is_batch = read_prompts(body.prompt)
    if not (is_batch or prompts[0]):
        raise RefusedError(error(400, "You must pass at least one prompt"))
    if not all(prompts):
        raise RefusedError(error(400, "The decoder prompt cannot be empty"))
    for prompt in prompts:
        if min(prompt) < 0:
            message = f"1 validation error: Input should be greater than or equal to 0, got {min(prompt)}"
            raise RefusedError(error(400, message, "body.prompt", kind="Bad Request"))
    return prompts


def _check(body: _Completions, config: EmulatedConfig) -> None:
    """Raise RefusedError for parameters that the engine refuses whatever the prompt is."""
    greedy = body.temperature == 0
    salt_is_bad = body.cache_salt is not None and not (isinstance(body.cache_salt, str) and body.cache_salt)
    complaints = (
        (salt_is_bad, "Parameter 'cache_salt' must be a non-empty string if provided.", "cache_salt"),
        (body.max_tokens is not None and body.max_tokens < 1, _too_few(body.max_tokens), "max_tokens"),
        (body.n < 1, f"n must be at least 1, got {body.n}.", None),
        (body.n > 1 and greedy, f"n must be 1 when using greedy sampling, got {body.n}.", None),
        ((body.temperature or 0) < 0, f"temperature must be non-negative, got {body.temperature}.", "temperature"),
        (bool(body.stream), "The emulated engine does not stream.", "stream"),
    )
    if body.model not in (None, config.model_name):
        message = f"The model `{body.model}` does not exist. Valid aliases: {config.model_name}."
        raise RefusedError(error(404, message, "model"))
    for applies, message, param in complaints:
        if applies:
            raise RefusedError(error(400, message, param))


def _output_limit(body: _Completions, prompt: TokenIds, config: EmulatedConfig) -> int:
    """Tokens to generate, cut to what the model's length leaves. Raises RefusedError when that is nothing."""
    longest = _model_tokens(config)
    if len(prompt) > longest:
        message = (
            f"This model's maximum context length is {longest} tokens. However, your prompt contains"
            f" {len(prompt)} input tokens. (parameter=input_tokens, value={len(prompt)})"
        )
        raise RefusedError(error(400, message, "input_tokens"))
    if len(prompt) == longest:
        raise RefusedError(error(400, _too_few(0), "max_tokens"))
    return min(body.max_tokens or 16, longest - len(prompt))


def _model_tokens(config: EmulatedConfig) -> int:
    """The longest request; the real engine does not start when the pool cannot hold it."""
    return min(config.max_model_tokens, (config.capacity_blocks - 1) * config.block_tokens)


def _too_few(max_tokens: int | None) -> str:
    return f"max_tokens must be at least 1, got {max_tokens}. (parameter=max_tokens, value={max_tokens})"


def _completion(body: _Completions, generations: list[Generation], host: Host, call: Call) -> dict[str, Any]:
    prompt_tokens = sum(generation.prompt_tokens for generation in generations if not generation.choice)
    output_tokens = sum(len(generation.output) for generation in generations)
    return {
        "id": f"cmpl-emulated-{host.received.total()}",
        "object": "text_completion",
        "created": int(call.at),
        "model": host.config.model_name,
        "choices": [_choice(body, index, generation) for index, generation in enumerate(generations)],
        "service_tier": None,
        "system_fingerprint": "hitlab-emulated",
        "usage": {
            "prompt_tokens": prompt_tokens,
            "total_tokens": prompt_tokens + output_tokens,
            "completion_tokens": output_tokens,
            "prompt_tokens_details": _details(host, generations[-1].cached_tokens),
            "completion_tokens_details": None,
        },
        "kv_transfer_params": None,
    }


def _choice(body: _Completions, index: int, generation: Generation) -> dict[str, Any]:
    return {
        "index": index,
        "text": "",
        "logprobs": None,
        "finish_reason": generation.finish_reason,
        "stop_reason": generation.output[-1] if generation.finish_reason == "stop" else None,
        "token_ids": generation.output if body.return_token_ids else None,
        "prompt_logprobs": None,
        "prompt_token_ids": generation.prompt.tokens if body.return_token_ids else None,
    }


def _details(host: Host, cached_tokens: int) -> dict[str, Any] | None:
    """usage.prompt_tokens_details; of a POST with several prompts they are the last prompt's."""
    if not host.config.prompt_tokens_details or host.faults.cached_tokens == "null":
        return None
    details: dict[str, Any] = {"cached_tokens": cached_tokens, "created_cache_tokens": None, "multimodal_tokens": None}
    if host.faults.cached_tokens == "missing":
        del details["cached_tokens"]
    return details


async def _models(host: Host, call: Call) -> Response:
    return models_response(host.config, call, _model_tokens(host.config))


async def _version(host: Host, call: Call) -> Response:
    return json_response({"version": host.config.shown_version})


async def _health(host: Host, call: Call) -> Response:
    return Response()


async def _reset_prefix_cache(host: Host, call: Call) -> Response:
    success = await host.reset()
    if host.faults.reset == "mute" or not host.config.at_least("0.26"):
        return Response()
    return json_response({"success": success})


async def _server_info(host: Host, call: Call) -> Response:
    config = {
        "model_config": {
            "model": host.config.model_name,
            "max_model_len": _model_tokens(host.config),
            "served_model_name": host.config.model_name,
        },
        "cache_config": _cache_config(host),
        "parallel_config": {"data_parallel_size": host.config.ranks},
    }
    as_json = call.query.get("config_format") == "json"
    return json_response({"vllm_config": config if as_json else str(config), "vllm_env": {}, "system_env": {}})


def _cache_config(host: Host) -> dict[str, Any]:
    """The cache's settings in effect; cache_config_info shows them as labels."""
    config = host.config
    block_tokens = host.faults.announced_block_tokens or config.block_tokens
    pool_tokens = config.capacity_blocks * block_tokens
    return {
        "_block_size_resolved": True,
        "block_size": block_tokens,
        "cache_dtype": "auto",
        "cache_hit_alignment_tokens": None,
        "effective_attention_block_size": block_tokens,
        "enable_mamba_shared_prefix_checkpoint": False,
        "enable_prefix_caching": config.caching_on,
        "gpu_memory_utilization": 0.92,
        "hash_block_size": None,
        "is_attention_free": False,
        "kv_cache_dtype_skip_layers": [],
        "kv_cache_layout": None,
        "kv_cache_max_concurrency": pool_tokens / _model_tokens(config),
        "kv_cache_memory_bytes": None,
        "kv_cache_size_tokens": pool_tokens,  # of one rank
        "kv_offloading_backend": "native",
        "kv_offloading_size": None,
        "kv_sharing_fast_prefill": False,
        "mamba_block_size": None,
        "mamba_cache_dtype": "auto",
        "mamba_cache_mode": "none",
        "mamba_page_size_padded": None,
        "mamba_ssm_cache_dtype": "float32",
        "num_cpu_blocks": None,
        "num_gpu_blocks": config.capacity_blocks * config.ranks,  # of all ranks together
        "num_gpu_blocks_override": config.capacity_blocks,
        "prefix_cache_retention_interval": 0,
        "prefix_caching_hash_algo": "sha256",
        "prefix_match_unit": None,
        "replayssm_buffer_len": 16,
        "skip_page_size_padded": None,
        "sliding_window": None,
        "swa_bounded_replay": True,
        "use_kda_recoverssm": False,
        "use_replayssm": False,
        "user_specified_block_size": True,
    }


async def _metrics(host: Host, call: Call) -> Response:
    # Several API processes, which data parallelism brings along, write no _created samples.
    created = host.started_at + host.scheduler.restarts if host.config.ranks == 1 else None
    families = [expose.counter("http_requests_total", "HTTP requests.", _http_requests(host), created)]
    if host.config.metrics_on:
        families = [*_engine_families(host, created), *families]
    return expose.metrics_response(families, call, host.faults, negotiate=False)


def _queries(counters: RankCounters) -> int:
    """Prompt tokens looked up; a preempted request counts twice, as it did before 0.10."""
    return counters.queried_tokens + counters.recounted_queried_tokens


def _hits(counters: RankCounters) -> int:
    return counters.hit_tokens + counters.recounted_hit_tokens


def _none(counters: RankCounters) -> int:
    """0: images, and ways to end a request, are not emulated."""
    return 0


# By name: what each rank counts.
_COUNTERS: dict[str, tuple[str, expose.Value]] = {
    "prefix_cache_queries_total": ("Prompt tokens looked up.", _queries),
    "prefix_cache_hits_total": ("Prompt tokens found.", _hits),
    "external_prefix_cache_queries_total": ("Looked up in an offload tier.", lambda rank: rank.external_queried_tokens),
    "external_prefix_cache_hits_total": ("Found in an offload tier.", lambda rank: rank.external_hit_tokens),
    "mm_cache_queries_total": ("Images looked up.", _none),
    "mm_cache_hits_total": ("Images found.", _none),
    "num_preemptions_total": ("Requests preempted.", lambda rank: rank.preempted_requests),
    "prompt_tokens_total": ("Prompt tokens prefilled.", lambda rank: rank.prefilled_tokens),
    "prompt_tokens_cached_total": ("Prompt tokens not computed.", lambda rank: rank.found_tokens),
    "generation_tokens_total": ("Tokens generated.", lambda rank: rank.generated_tokens),
}
_GAUGES: dict[str, tuple[str, expose.Value]] = {
    "num_requests_running": ("Requests that run.", lambda rank: rank.running_requests),
    "num_requests_waiting": ("Requests that wait.", lambda rank: rank.waiting_requests),
}
_SOURCES: dict[str, expose.Value] = {
    "local_compute": lambda rank: rank.computed_tokens,
    "local_cache_hit": lambda rank: rank.hit_tokens,
    "external_kv_transfer": lambda rank: rank.external_hit_tokens,
}
_ENDS: dict[str, expose.Value] = {
    "stop": lambda rank: rank.finish_reasons["stop"],
    "length": lambda rank: rank.finish_reasons["length"],
    "abort": lambda rank: rank.finish_reasons["abort"],
    "error": lambda rank: rank.finish_reasons["error"],
    "repetition": _none,
}


def _engine_families(host: Host, created: float | None) -> Iterator[Metric]:
    ranks: expose.RankSamples = [
        ({"engine": str(rank), "model_name": host.config.model_name}, counters)
        for rank, counters in enumerate(host.scheduler.scrape())
    ]
    for name, (about, value) in _GAUGES.items():
        yield expose.gauge(f"vllm:{name}", about, expose.of_ranks(ranks, value))
    for name in _counter_names(host.config):
        about, value = _COUNTERS[name.removeprefix("gpu_")]
        yield expose.counter(f"vllm:{name}", about, expose.of_ranks(ranks, value), created)
    for name, about, label, values in (
        ("prompt_tokens_by_source", "Prompt tokens by where they came from.", "source", _SOURCES),
        ("request_success", "Requests by how they ended.", "finished_reason", _ENDS),
    ):
        yield expose.counter(f"vllm:{name}_total", about, expose.split_of_ranks(ranks, label, values), created)
    lengths = [(labels, counters.prompt_lengths) for labels, counters in ranks]
    yield expose.histogram(
        "vllm:request_prompt_tokens", "Prompt tokens of a request.", lengths, _LENGTH_BOUNDS, created
    )
    settings = {name: str(value) for name, value in _cache_config(host).items()}
    infos = [(settings | {"engine": labels["engine"]}, 1.0) for labels, _ in ranks]
    yield expose.gauge("vllm:cache_config_info", "The cache's settings.", infos)


def _counter_names(config: EmulatedConfig) -> list[str]:
    """Names of the counters; before 0.11 the pair of queries and hits is there under its older name too."""
    old = [] if config.at_least("0.11") else ["gpu_prefix_cache_queries_total", "gpu_prefix_cache_hits_total"]
    return old + list(_COUNTERS)


def _http_requests(host: Host) -> expose.Samples:
    by_labels: Counter[tuple[str, str, str]] = Counter()
    for (method, path, status), count in host.sent.items():
        by_labels[path, method, f"{status // 100}xx"] += count
    return [
        ({"handler": handler, "method": method, "status": status}, count)
        for (handler, method, status), count in by_labels.items()
    ]
