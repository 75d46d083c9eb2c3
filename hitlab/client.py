"""The one place that talks HTTP to an engine: requests out, replies in, failures named."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from types import TracebackType
from urllib.parse import urlsplit, urlunsplit

import httpx
import msgspec

from hitlab.dialect import Completion, Counters, Engine, HttpRequest, Reply, ResetOutcome, ServerFacts
from hitlab.errors import (
    KeyRefusedError,
    MetricsError,
    RequestRefusedError,
    ResetRefusedError,
    ServerError,
    UnreachableError,
    UsageError,
)
from hitlab.scrape import Page, read_page
from hitlab.types import Prompt

# Counters keep their colons in the classic format; OpenMetrics negotiation may turn them into underscores.
_METRICS_ACCEPT = "text/plain;version=0.0.4"
_RESET_TRIES, _RESET_PAUSE_S = 8, 0.25


@dataclass(frozen=True, slots=True)
class Keys:
    """API keys, kept out of every repr and every file."""

    api: str | None = None
    admin: str | None = None

    def __repr__(self) -> str:
        return "Keys(...)"


@dataclass(frozen=True, slots=True)
class Answer:
    """A completion and how long it took, from send to last byte."""

    completion: Completion
    latency_s: float


def root_url(url: str) -> str:
    """The server's root of any address a user may paste: with or without scheme, /v1, /metrics, slashes.

    >>> root_url("127.0.0.1:8000"), root_url("http://h:8000/v1/"), root_url("https://h/x/metrics")
    ('http://127.0.0.1:8000', 'http://h:8000', 'https://h/x')
    """
    parts = urlsplit(url if "://" in url else f"http://{url}")
    path = parts.path.rstrip("/")
    for tail in ("/metrics", "/v1/completions", "/generate", "/v1"):
        path = path.removesuffix(tail)
    try:
        usable = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port)
    except ValueError:
        usable = False
    if not usable:
        raise UsageError(f"{url!r} is not an address", todo="give one like http://127.0.0.1:8000")
    return urlunsplit((parts.scheme, parts.netloc, path.rstrip("/"), "", ""))


class EngineClient:
    """An engine's server, spoken to in its own dialect; use as an async context manager."""

    def __init__(
        self,
        engine: Engine,
        base_url: str,
        metrics_urls: Sequence[str] = (),
        keys: Keys | None = None,
        timeout_s: float = 120.0,
        connections: int = 8,
    ) -> None:
        self.engine = engine
        self.base_url = root_url(base_url)
        self.metrics_urls = [f"{root_url(url)}/metrics" for url in metrics_urls or [base_url]]
        self.model: str | None = None
        self._keys = keys or Keys()
        self._http = httpx.AsyncClient(
            timeout=httpx.Timeout(timeout_s, connect=5.0),
            limits=httpx.Limits(max_connections=connections + 2, max_keepalive_connections=connections + 2),
            follow_redirects=True,
            trust_env=False,  # a proxy between a lab and its server would be one more cache to explain
        )

    async def __aenter__(self) -> "EngineClient":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def facts(self) -> ServerFacts:
        """What the server says of itself. Raises UnreachableError, KeyRefusedError, ServerError."""
        replies: dict[str, Reply] = {}
        for alternatives in self.engine.FACT_PATHS:
            for path in alternatives:
                reply = await self.call(HttpRequest("GET", path))
                if reply.status == 200:
                    replies[path] = reply
                    break
        try:
            page: Page | None = (await self._pages())[0]
        except MetricsError:
            page = None
        if not replies and page is None:
            raise ServerError(
                f"nothing there answers as {self.engine.TITLE} does",
                where=self.base_url,
                todo="check --engine and --base-url",
            )
        facts = self.engine.read_facts(replies, page)
        self.model = facts.model
        return facts

    async def scrape(self) -> Counters:
        """The token counters now, over all metrics addresses. Raises MetricsError."""
        pages = await self._pages()
        readings = []
        for url, page in zip(self.metrics_urls, pages, strict=True):
            try:
                readings.append(self.engine.read_counters(page, self.model))
            except MetricsError as error:
                raise MetricsError(error.what, where=url, todo=error.todo) from None
        return reduce(add, readings)

    async def complete(self, prompt: Prompt, max_tokens: int = 1) -> Answer:
        """Send one prompt. Raises RequestRefusedError with the engine's own words."""
        request = self.engine.completion(prompt, self.model, max_tokens)
        reply, latency_s = await self._timed(request, f"a prompt of {len(prompt.tokens):,} tokens")
        return Answer(self.engine.read_completion(reply), latency_s)

    async def complete_together(self, prompts: Sequence[Prompt]) -> Answer:
        """Send several unsalted prompts in one POST. Raises RequestRefusedError with the engine's own words."""
        if any(prompt.salt is not None for prompt in prompts):
            raise UsageError("a POST has one salt for all its prompts", todo="send salted prompts one by one")
        request = self.engine.completions(prompts, self.model)
        reply, latency_s = await self._timed(request, f"a POST of {len(prompts):,} prompts")
        return Answer(self.engine.read_completions(reply), latency_s)

    async def _timed(self, request: HttpRequest, what: str) -> tuple[Reply, float]:
        started = time.perf_counter()
        reply = await self.call(request)
        latency_s = time.perf_counter() - started
        if reply.status != 200:
            raise RequestRefusedError(
                f"{what} got {reply.status}: {reply.says}", where=f"{self.base_url}{request.path}"
            )
        return reply, latency_s

    async def reset(self) -> ResetOutcome:
        """Empty the cache, waiting while the server is busy. Raises ResetRefusedError."""
        request = self.engine.reset()
        where = f"{self.base_url}{request.path.partition('?')[0]}"
        for attempt in range(_RESET_TRIES):
            if attempt:
                await asyncio.sleep(_RESET_PAUSE_S * attempt)
            reply = await self.call(request, key=self._keys.admin or self._keys.api, key_option="--admin-key-env")
            if reply.status == 404:
                raise ResetRefusedError("404, there is no reset here", where=where, todo=self.engine.NO_RESET)
            if reply.status in (405, 500, 501, 502, 503):
                raise ResetRefusedError(
                    f"{reply.status}: {reply.says}",
                    where=where,
                    todo="behind a router, name the engine's own address, or use --cold-by fresh-prefix",
                )
            outcome = self.engine.read_reset(reply)
            if not outcome.retry:
                break
        if outcome.done is False:
            raise ResetRefusedError(
                outcome.detail, where=where, todo="stop other traffic, or measure with --cold-by fresh-prefix"
            )
        return outcome

    async def _pages(self) -> list[Page]:
        return [await self._page(url) for url in self.metrics_urls]

    async def _page(self, url: str) -> Page:
        reply = await self._send("GET", url, headers={"Accept": _METRICS_ACCEPT})
        if reply.status != 200:
            raise MetricsError(f"{reply.status}: {reply.says}", where=url, todo=self.engine.NO_METRICS)
        try:
            return read_page(reply.body.decode(errors="replace"))
        except MetricsError as error:
            raise MetricsError(error.what, where=url, todo="check --metrics-url") from None

    async def call(self, request: HttpRequest, key: str | None = None, key_option: str = "--api-key-env") -> Reply:
        """Any request of the dialect. Raises UnreachableError, KeyRefusedError."""
        content = None if request.json is None else msgspec.json.encode(request.json)
        headers = {"Content-Type": "application/json"} if content else {}
        return await self._send(
            request.method,
            f"{self.base_url}{request.path}",
            headers=headers,
            content=content,
            key=key,
            key_option=key_option,
        )

    async def _send(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        content: bytes | None = None,
        key: str | None = None,
        key_option: str = "--api-key-env",
    ) -> Reply:
        key = key or self._keys.api
        if key:
            headers = {**headers, "Authorization": f"Bearer {key}"}
        try:
            response = await self._http.request(method, url, headers=headers, content=content)
        except httpx.TimeoutException:
            raise UnreachableError("no answer in time", where=url, todo="is the server up, and idle?") from None
        except httpx.HTTPError as error:
            reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
            raise UnreachableError(reason, where=url, todo="is the server up? check --base-url") from None
        if response.status_code in (401, 403):
            has = "refuses the key of" if key else "wants a key, name its variable with"
            raise KeyRefusedError(f"{response.status_code}: the server {has} {key_option}", where=url)
        return Reply(response.status_code, response.content)
