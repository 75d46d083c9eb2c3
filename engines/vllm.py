"""vLLM: its requests and replies (/v1/completions), its prefix-cache counters, its paged cache.

The functions are those of hitlab.client.dialect.EngineApi; their docstrings say what is special to vLLM.

Measured on 0.32.0 (docs/engine-notes.md); names of older versions from public reports.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from hitlab.cache.model import CacheModel, Ranks
from hitlab.cache.paged import PagedCache
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
from hitlab.client.metrics_page import Page, by_owner
from hitlab.errors import RequestRefusedError
from hitlab.tokens import Prompt

from .metrics import vllm as metrics

NAME = "vllm"
TITLE = "vLLM"
DEFAULT_BASE_URL = "http://127.0.0.1:8000"
DEFAULT_BLOCK_TOKENS = 16
FACT_PATHS: tuple[tuple[str, ...], ...] = (("/version",), ("/v1/models",))
METRIC_PREFIX, METRICS, NO_METRICS = metrics.PREFIX, metrics.METRICS, metrics.NO_METRICS
NO_RESET = "start vLLM with VLLM_SERVER_DEV_MODE=1, or measure with `cold_by` fresh-prefix"
LOG_LACKS = "vLLM's log gives only the hit rate of its last 1,000 requests, and no tokens"

read_counters = metrics.read_counters


class _Details(msgspec.Struct):
    cached_tokens: Count | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: Count
    prompt_tokens_details: _Details | None = None


class _Choice(msgspec.Struct):
    token_ids: tuple[int, ...] | None = None
    finish_reason: str | None = None


class _Completed(msgspec.Struct):
    usage: _Usage | None = None
    choices: tuple[_Choice, ...] | None = None


class _Reset(msgspec.Struct):
    success: bool | None = None


class _Version(msgspec.Struct):
    version: str | None = None


class _Model(msgspec.Struct):
    id: str | None = None
    root: str | None = None
    max_model_len: Size | None = None


class _Models(msgspec.Struct):
    data: tuple[_Model, ...] | None = None
    models: tuple[_Model | str, ...] | None = None  # as a gateway may list them

    def listed(self) -> list[_Model]:
        return [_Model(id=each) if isinstance(each, str) else each for each in self.data or self.models or ()]


def completion(prompt: Prompt, model: str | None, max_tokens: int) -> HttpRequest:
    """A POST to /v1/completions, never with logprobs, echo or n > 1, which skip the lookup or count twice."""
    body = {"model": model, "prompt": prompt.tokens, "max_tokens": max_tokens, "temperature": 0}
    if prompt.salt is not None:
        body["cache_salt"] = prompt.salt
    if max_tokens > 1:
        body["return_token_ids"] = True
    return HttpRequest("POST", "/v1/completions", body)


def read_completion(reply: Reply) -> Completion:
    """Read ids and `usage`; the text may be empty, `prompt_tokens_details` missing or null."""
    completed = reply.read(_Completed, TITLE)
    if completed.usage is None or not completed.choices:
        raise RequestRefusedError(f"an answer without a completion: {reply.says}")
    details, choice = completed.usage.prompt_tokens_details, completed.choices[0]
    return Completion(
        prompt_tokens=completed.usage.prompt_tokens,
        cached_tokens=details.cached_tokens if details else None,
        output=choice.token_ids or None,
        finish=choice.finish_reason,
    )


def completions(prompts: Sequence[Prompt], model: str | None) -> HttpRequest:
    """A POST to /v1/completions with a list of lists of token ids."""
    body = {"model": model, "prompt": [prompt.tokens for prompt in prompts], "max_tokens": 1, "temperature": 0}
    return HttpRequest("POST", "/v1/completions", body)


def read_completions(reply: Reply) -> Completion:
    """Read `usage`, whose `cached_tokens` are those of the last prompt alone, so that their sum is unknown."""
    completed = reply.read(_Completed, TITLE)
    if completed.usage is None:
        raise RequestRefusedError(f"an answer without a completion: {reply.says}")
    finish = first_broken(choice.finish_reason for choice in completed.choices or ())
    return Completion(prompt_tokens=completed.usage.prompt_tokens, cached_tokens=None, finish=finish)


def reset() -> HttpRequest:
    """A POST to /reset_prefix_cache. Older servers, and those without an offload tier, ignore the parameter."""
    return HttpRequest("POST", "/reset_prefix_cache?reset_external=true")


def read_reset(reply: Reply) -> ResetOutcome:
    """vLLM answers 200; the body says whether it was done, except before 0.26, where the body is empty."""
    if reply.status != 200:
        return ResetOutcome(False, f"the server answered {reply.status}: {reply.says}")
    success = reply.read(_Reset, TITLE).success if reply.body.strip() else None
    if success is False:
        return ResetOutcome(False, "the server answered success: false, blocks are in use", retry=True)
    if success is True:
        return ResetOutcome(True, "the server answered success: true")
    return ResetOutcome(None, "the server answered 200 without saying whether it did")


def read_facts(replies: Mapping[str, Reply], page: Page | None) -> ServerFacts:
    """Facts: block size, pool and caching from the labels of cache_config_info, which are the effective values."""
    version = replies["/version"].read(_Version, TITLE).version if "/version" in replies else None
    models = replies["/v1/models"].read(_Models, TITLE).listed() if "/v1/models" in replies else []
    model = _served(models, page)
    infos = page.look(metrics.INFO) if page else []
    labels = infos[0].labels if infos else {}
    ranks = max(1, len({info.labels.get("engine") for info in infos}))
    block_tokens = _number(labels, "prefix_match_unit", "hash_block_size", "block_size")
    blocks = _number(labels, "num_gpu_blocks")
    # With data parallelism num_gpu_blocks is the ranks' sum, kv_cache_size_tokens one rank's pool.
    pool_tokens = _number(labels, "kv_cache_size_tokens")
    if block_tokens and pool_tokens:
        blocks = pool_tokens // block_tokens
    elif blocks:
        blocks //= ranks
    notes = []
    if labels.get("mamba_cache_mode", "none") != "none" or labels.get("sliding_window", "None") != "None":
        notes.append("hybrid or sliding-window model: the prefix formula is an upper bound")
    if page and page.look(metrics.DRAFTS):
        notes.append("speculative decoding: some drafters make every hit one block shorter")
    return ServerFacts(
        version=version,
        model=model.id,
        model_path=model.root,
        max_model_tokens=model.max_model_len,
        block_tokens=block_tokens,
        capacity_blocks=blocks,
        capacity_tokens=_held_tokens(blocks, block_tokens) if blocks and block_tokens else None,
        caching={"True": True, "False": False}.get(labels.get("enable_prefix_caching", "")),
        ranks=ranks,
        emulated="emulated" in str(version),
        notes=tuple(notes),
    )


def _served(models: Sequence[_Model], page: Page | None) -> _Model:
    """The model to ask: the first that is listed and counted on the page, else the first, else the page's only one."""
    owners = by_owner(page, metrics.QUERIES, strict=False) if page else {}
    counted = {owner.model for owner in owners} - {""}
    if models:
        return next((model for model in models if model.id in counted), models[0])
    return _Model(id=min(counted)) if len(counted) == 1 else _Model()


# "INFO 11-29 21:14:36 [loggers.py:335] Engine 000: ... Prefix cache hit rate: 82.7%, External prefix cache ...";
# before the engine of today "GPU: 82.70%, CPU: 0.00%" after the colon, of which the pool in use is the larger.
_LOGGED_RANK = re.compile(r"\bEngine (\d+):")
_LOGGED_RATE = re.compile(r"\bPrefix cache hit rate: (?:GPU: ([\d.]+)%, CPU: ([\d.]+)%|([\d.]+)%)")


def read_log_line(line: str) -> LogEntry | None:
    """The line of every 10 s with a hit rate, which restarts with a reset and is not printed with caching off."""
    rate = _LOGGED_RATE.search(line)
    if not rate:
        return None
    rank = _LOGGED_RANK.search(line)
    return LogEntry(
        moment=moment_in(line[: rate.start()]) or dated_moment_in(line[rate.end() :]),
        rank=int(rank[1]) if rank else None,
        window_hit_rate=round(max(float(percent) for percent in rate.groups() if percent) / 100, 4),
    )


def cache_model(facts: ServerFacts) -> CacheModel:
    """A PagedCache for each data-parallel rank, with a null block beside its `capacity_tokens`."""
    assert facts.block_tokens is not None and facts.capacity_tokens is not None
    num_blocks = facts.capacity_tokens // facts.block_tokens + 1
    return Ranks(PagedCache(num_blocks, facts.block_tokens) for _ in range(facts.ranks))


def recording_sizes(facts: ServerFacts) -> Mapping[str, Any]:
    """The block size, and num_gpu_blocks, which counts the null block too."""
    return {"block_size": facts.block_tokens, "num_gpu_blocks": facts.capacity_blocks}


def recorded_facts(sizes: Mapping[str, Any]) -> ServerFacts:
    """The server that a recording with these sizes was made on."""
    block_tokens, blocks = sizes["block_size"], sizes["num_gpu_blocks"]
    return ServerFacts(
        block_tokens=block_tokens, capacity_blocks=blocks, capacity_tokens=_held_tokens(blocks, block_tokens)
    )


def _held_tokens(blocks: int, block_tokens: int) -> int:
    """Tokens in a pool of so many blocks, of which the null block holds none."""
    return (blocks - 1) * block_tokens


def _number(labels: Mapping[str, str], *names: str) -> int | None:
    """The first of these labels that is an integer above 0; None where none is."""
    numbers = (re.fullmatch(r"0*([1-9][0-9]{0,14})", labels.get(name, "")) for name in names)
    return next((int(number[1]) for number in numbers if number), None)
