"""Clients of emulated engines over real sockets, in the words of each engine, and prompts to send them."""

import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from helpers import HANGS_S
from prometheus_client.parser import text_string_to_metric_families

from hitlab.cache.sizes import CacheSizes
from hitlab.servers.emulated import server as emulate
from hitlab.servers.emulated.config import Faults

Ids = list[int]
Sampling = Mapping[str, Any]


class Caller:
    """A client of one emulated server, in the words of its engine; what it asks for is one token."""

    def __init__(self, name: str, server: emulate.EmulatedServer) -> None:
        self.name = name
        self.server = server
        # Reading certificates, to verify with, takes its time.
        self.http = httpx.Client(base_url=server.base_url, verify=False, timeout=HANGS_S)
        self.path = {"vllm": "/v1/completions", "sglang": "/generate"}[name]

    def post(self, prompt: Any, max_tokens: int = 1, sampling: Sampling | None = None, **fields: Any) -> httpx.Response:
        """One POST; `sampling` are sampling parameters, `fields` other fields of the body."""
        return self.http.post(self.path, json=self.body(prompt, max_tokens, sampling, **fields))

    def body(self, prompt: Any, max_tokens: int = 1, sampling: Sampling | None = None, **fields: Any) -> dict[str, Any]:
        """What a POST carries."""
        if self.name == "vllm":
            return {"prompt": prompt, "max_tokens": max_tokens, "temperature": 1, **(sampling or {}), **fields}
        params = {"max_new_tokens": max_tokens, "temperature": 1, **(sampling or {})}
        return {"input_ids": prompt, "sampling_params": params, **fields}

    def cached(self, prompt: Any, max_tokens: int = 1, sampling: Sampling | None = None, **fields: Any) -> int:
        """The cached tokens a POST reports."""
        document = self.post(prompt, max_tokens, sampling, **fields).raise_for_status().json()
        if self.name == "vllm":
            return int(document["usage"]["prompt_tokens_details"]["cached_tokens"])
        replies = document if isinstance(document, list) else [document]
        return sum(reply["meta_info"]["cached_tokens"] for reply in replies)

    def output(self, prompt: Ids, max_tokens: int, **fields: Any) -> Ids:
        """The generated ids."""
        if self.name == "vllm":
            fields["return_token_ids"] = True
        reply = self.post(prompt, max_tokens, **fields)
        document = reply.raise_for_status().json()
        ids: Ids = document["choices"][0]["token_ids"] if self.name == "vllm" else document["output_ids"]
        return ids

    def samples(self) -> dict[str, list[tuple[dict[str, str], float]]]:
        """The metrics page by sample name."""
        page: dict[str, list[tuple[dict[str, str], float]]] = {}
        for family in text_string_to_metric_families(self.http.get("/metrics").raise_for_status().text):
            for sample in family.samples:
                page.setdefault(sample.name, []).append((sample.labels, sample.value))
        return page

    def total(self, name: str, **labels: str) -> float:
        """The sum of the samples of that name with these labels."""
        samples = self.samples().get(name, [])
        return sum(value for have, value in samples if labels.items() <= have.items())

    def counted(self) -> tuple[float, float]:
        """Queried and hit tokens, as the engine's own counters have them."""
        if self.name == "vllm":
            return self.total("vllm:prefix_cache_queries_total"), self.total("vllm:prefix_cache_hits_total")
        hit = self.total("sglang:prefill_effective_tokens_total", mode="device_hit")
        return self.total("sglang:prefill_effective_tokens_total", mode="input") + hit, hit

    def reset(self) -> httpx.Response:
        """Empty the cache."""
        return self.http.post("/reset_prefix_cache" if self.name == "vllm" else "/flush_cache")


@contextmanager
def running(
    name: str, faults: Faults | None = None, blocks: int | None = None, block_tokens: int | None = None, **changes: Any
) -> Iterator[Caller]:
    """A server and its client."""
    config = emulate.settings(name, CacheSizes(block_tokens=block_tokens, capacity_blocks=blocks)).but(**changes)
    with emulate.start(name, config, faults) as server:
        caller = Caller(name, server)
        with caller.http:
            yield caller


class Prompts:
    """Token ids, no two draws of which begin alike."""

    def __init__(self) -> None:
        self._random = random.Random(5)
        self._first = 1000

    def draw(self, length: int) -> Ids:
        self._first += 1
        return [self._first, *(self._random.randrange(1000, 32_000) for _ in range(length - 1))][:length]

    def requests(self, prefix: Ids, count: int = 64, suffix: int = 200) -> list[Ids]:
        return [prefix + self.draw(suffix) for _ in range(count)]


Shape = dict[str, tuple[str, frozenset[str]]]


def shape(text: str) -> Shape:
    """Of each sample name: its family's type and its labels."""
    return {
        sample.name: (family.type, frozenset(sample.labels))
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


both = pytest.mark.parametrize("name", ["vllm", "sglang"])


def eventually(holds: Callable[[], bool]) -> bool:
    """Whether it holds within the time after which it is held to hang; each try asks the server."""
    deadline = time.monotonic() + HANGS_S
    while not holds():
        if time.monotonic() > deadline:
            return False
    return True


def is_gone(client: httpx.Client) -> bool:
    try:
        client.get("/health")
    except httpx.TransportError:
        return True
    return False
