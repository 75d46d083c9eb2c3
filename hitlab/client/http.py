"""The one place that talks HTTP to an engine: requests out, replies in, failures named."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from operator import add
from types import TracebackType
from typing import TypeVar
from urllib.parse import unquote, urlsplit, urlunsplit

import httpx
import msgspec

from hitlab import families
from hitlab.client.counters import Counters
from hitlab.client.dialect import Completion, EngineApi, HttpRequest, Reply, ResetOutcome, ServerFacts, load_engine
from hitlab.client.metrics_page import Page, read_page
from hitlab.errors import (
    KeyRefusedError,
    MetricsError,
    RequestAbortedError,
    RequestRefusedError,
    ResetRefusedError,
    ServerError,
    UnreachableError,
    UsageError,
)
from hitlab.tokens import Prompt

# Counters keep their colons in the classic format; OpenMetrics negotiation may turn them into underscores.
_METRICS_ACCEPT = "text/plain;version=0.0.4"
_RESET_TRIES, _RESET_PAUSE_S = 8, 0.25
_MOST_REDIRECTS = 5

T = TypeVar("T")


WHY_NO_KEY = "is there a line break or a space at its end?"


def is_key(key: object) -> bool:
    """Whether a header can carry it as it is: printable ASCII, not empty, without spaces at its ends.

    >>> is_key("sk-12"), is_key(" sk-12"), is_key("sk-12\\n"), is_key("")
    (True, False, False, False)
    """
    return isinstance(key, str) and key.isascii() and key.isprintable() and key == key.strip() != ""


@dataclass(frozen=True, slots=True)
class Keys:
    """API keys, kept out of every repr and every file."""

    api: str | None = None
    admin: str | None = None

    def __post_init__(self) -> None:
        """Raises UsageError for what is no key, without saying it: a library that meets it later might print it."""
        for name, key in (("api_key", self.api), ("admin_key", self.admin)):
            if key is not None and not is_key(key):
                if key == "":
                    raise UsageError(f"`{name}` is empty", todo="give a key, or leave it out")
                what = "has characters that no key has" if isinstance(key, str) else "is no text"
                raise UsageError(f"`{name}` {what}", todo=WHY_NO_KEY)

    def __repr__(self) -> str:
        return "Keys(...)"


@dataclass(frozen=True, slots=True)
class Answer:
    """A completion and how long it took, from send to last byte."""

    completion: Completion
    latency_s: float


def root_url(url: str) -> str:
    """The server's root of any address a user may paste: with or without scheme, user, /v1, /metrics, slashes.

    >>> root_url("127.0.0.1:8000"), root_url("http://h:8000/v1/"), root_url("https://me:secret@h/x/metrics")
    ('http://127.0.0.1:8000', 'http://h:8000', 'https://h/x')

    Raises UsageError for what is no address.
    """
    root, path, _, _ = _address(url)
    return root + _without_routes(path)


def metrics_url(url: str) -> str:
    """Where the metrics are that an address means: one with a path of its own is taken as it is.

    >>> metrics_url("h:8000"), metrics_url("http://h:8000/v1"), metrics_url("https://me:secret@h/engine_metrics")
    ('http://h:8000/metrics', 'http://h:8000/metrics', 'https://h/engine_metrics')

    Raises UsageError for what is no address.
    """
    root, path, query, _ = _address(url)
    if not _without_routes(path) and not query:
        return f"{root}/metrics"
    return f"{root}{path}{query}"


def _without_routes(path: str) -> str:
    """The path without the engine's own routes at its end, and without slashes there."""
    path = path.rstrip("/")
    for tail in ("/metrics", "/v1/completions", "/generate", "/v1"):
        path = path.removesuffix(tail)
    return path.rstrip("/")


def _address(url: str) -> tuple[str, str, str, httpx.BasicAuth | None]:
    """Scheme and host, path, query with its "?", and apart from them the user and password, which are never shown."""
    shown = url.rpartition("@")[2]
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        user, at, host = parts.netloc.rpartition("@")
        root = urlunsplit((parts.scheme, host.lower(), "", "", ""))
        # What neither httpx nor the look-up of names would take: a snowman, a control character, two dots.
        httpx.URL(root + parts.path).raw_host.decode("ascii").encode("idna")
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and not set(host) & set(" \t")
    except (ValueError, httpx.InvalidURL):
        usable = False
    if not usable:
        raise UsageError(f"{shown!r} is not an address", todo="give one like http://127.0.0.1:8000")
    name, _, password = user.partition(":")
    login = httpx.BasicAuth(unquote(name), unquote(password)) if at else None
    return root, parts.path, f"?{parts.query}" if parts.query else "", login


class EngineClient:
    """An engine's server, spoken to in its own dialect; use as an async context manager."""

    def __init__(
        self,
        engine: EngineApi,
        base_url: str,
        metrics_urls: Sequence[str] = (),
        keys: Keys | None = None,
        timeout_s: float = 120.0,
        connections: int = 8,
    ) -> None:
        """`base_url` and `metrics_urls` may hold a user and password; the attributes of these names never do."""
        self.engine = engine
        self.base_url, self._login = root_url(base_url), _address(base_url)[3]
        self._keys = keys or Keys()
        if self._login and self._keys.api:
            raise UsageError(
                "a password in the address and a key, and a request has room for one", todo="leave one of them out"
            )
        # Named twice, a server would be counted twice.
        metrics = metrics_urls or [f"{root_url(base_url)}/metrics"]
        logins = [_address(url)[3] for url in metrics_urls or [base_url]]
        self._metrics_logins = dict(zip(map(metrics_url, metrics), logins, strict=True))
        self.metrics_urls = list(self._metrics_logins)
        self.model: str | None = None
        self._version: str | None = None
        self._http = httpx.AsyncClient(
            timeout=httpx.Timeout(timeout_s, connect=5.0),
            limits=httpx.Limits(max_connections=connections + 2, max_keepalive_connections=connections + 2),
            trust_env=False,  # a proxy between a lab and its server would be one more cache to explain
        )

    async def __aenter__(self) -> "EngineClient":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def facts(self) -> ServerFacts:
        """What the server says of itself. Raises UnreachableError, KeyRefusedError, ServerError."""
        return (await self.facts_and_pages())[0]

    async def facts_and_pages(self) -> tuple[ServerFacts, Mapping[str, Page] | MetricsError]:
        """The same, and the metrics pages that some of it stands on, or why they can't be read."""
        replies: dict[str, Reply] = {}
        for alternatives in self.engine.FACT_PATHS:
            for path in alternatives:
                reply = await self.call(HttpRequest("GET", path))
                if reply.status == 200:
                    replies[path] = reply
                    break
        pages: Mapping[str, Page] | MetricsError
        try:
            pages = await self._pages()
        except MetricsError as error:
            pages = error
        if not replies and isinstance(pages, MetricsError):
            asked = ", ".join(path for alternatives in self.engine.FACT_PATHS for path in alternatives)
            raise ServerError(
                f"nothing there answers as {self.engine.TITLE} does, at none of {asked}; "
                f"{pages.where} says {pages.what}",
                where=self.base_url,
                todo="check `engine` and `base_url`",
            )
        page = None if isinstance(pages, MetricsError) else next(iter(pages.values()))
        try:
            facts = self.engine.read_facts(replies, page)
        except ServerError as error:
            raise type(error)(error.what, where=self.base_url, todo=error.todo) from None
        self.model, self._version = facts.model, facts.version
        return facts, pages

    async def scrape(self) -> Counters:
        """The token counters now, over all metrics addresses. Raises MetricsError."""
        return self.read_counters(await self._pages())

    def read_counters(self, pages: Mapping[str, Page]) -> Counters:
        """The token counters of pages that were read before, by their addresses. Raises MetricsError."""
        return reduce(add, (self._counters(url, page, len(pages) == 1) for url, page in pages.items()))

    def _counters(self, url: str, page: Page, alone: bool) -> Counters:
        # Replicas may be of several versions, of which the server that was asked has said only its own.
        same_server = alone or url.startswith(f"{self.base_url}/")
        try:
            found = self.engine.read_counters(page, self.model, self._version if same_server else None)
        except MetricsError as error:
            what, todo = _whose(page, self.engine) or (error.what, error.todo)
            raise MetricsError(what, where=url, todo=todo) from None
        # Replicas have the same labels, and one of them that restarts must not hide behind another.
        return found if alone else found.at(url)

    async def complete(self, prompt: Prompt, max_tokens: int = 1) -> Answer:
        """Send one prompt. Raises RequestRefusedError with the engine's own words."""
        request = self.engine.completion(prompt, self.model, max_tokens)
        return await self._answer(request, self.engine.read_completion, f"a prompt of {len(prompt.tokens):,} tokens")

    async def complete_together(self, prompts: Sequence[Prompt]) -> Answer:
        """Send several unsalted prompts in one POST. Raises RequestRefusedError with the engine's own words."""
        if any(prompt.salt is not None for prompt in prompts):
            raise UsageError("a POST has one salt for all its prompts", todo="send salted prompts one by one")
        request = self.engine.completions(prompts, self.model)
        return await self._answer(request, self.engine.read_completions, f"a POST of {len(prompts):,} prompts")

    async def _answer(self, request: HttpRequest, read: Callable[[Reply], Completion], what: str) -> Answer:
        started = time.perf_counter()
        reply = await self.call(request)
        latency_s = time.perf_counter() - started
        where = f"{self.base_url}{request.path}"
        if reply.status != 200:
            raise RequestRefusedError(f"{what} got {reply.status}: {reply.says}", where=where)
        try:
            completion = read(reply)
        except ServerError as error:
            raise RequestRefusedError(f"{what} got {error.what}", where=where) from None
        if completion.broken_off:
            raise RequestAbortedError(completion.finish or "", completion.finish_says, where=where)
        return Answer(completion, latency_s)

    async def reset(self) -> ResetOutcome:
        """Empty the cache, waiting while the server is busy. Raises ResetRefusedError."""
        request = self.engine.reset()
        where = f"{self.base_url}{request.path.partition('?')[0]}"
        for attempt in range(_RESET_TRIES):
            if attempt:
                await asyncio.sleep(_RESET_PAUSE_S * attempt)
            reply = await self.call(request, key=self._keys.admin or self._keys.api, key_option="`admin_key_env`")
            if reply.status == 404:
                raise ResetRefusedError("404, there is no reset here", where=where, todo=self.engine.NO_RESET)
            if reply.status in (405, 500, 501, 502, 503):
                raise ResetRefusedError(
                    f"{reply.status}: {reply.says}",
                    where=where,
                    todo="behind a router, name the engine's own address, or use `cold_by` fresh-prefix",
                )
            try:
                outcome = self.engine.read_reset(reply)
            except ServerError as error:
                raise ResetRefusedError(
                    error.what, where=where, todo="name the engine's own address, or use `cold_by` fresh-prefix"
                ) from None
            if not outcome.retry:
                break
        if outcome.done is False:
            raise ResetRefusedError(
                outcome.detail, where=where, todo="stop other traffic, or measure with `cold_by` fresh-prefix"
            )
        return outcome

    async def _pages(self) -> dict[str, Page]:
        """The pages by address, sorted, so that the order in which the addresses were given changes nothing."""
        return {url: await self._page(url) for url in sorted(self.metrics_urls)}

    async def _page(self, url: str) -> Page:
        reply = await self._send("GET", url, {"Accept": _METRICS_ACCEPT}, self._metrics_logins[url])
        if reply.status != 200:
            raise MetricsError(f"{reply.status}: {reply.says}", where=url, todo=_todo_at(reply.status, self.engine))
        try:
            return read_page(reply.body, self.engine.METRICS)
        except MetricsError as error:
            raise MetricsError(
                error.what, where=url, todo="is this a login, a proxy or another route? check `metrics_urls`"
            ) from None

    async def call(self, request: HttpRequest, key: str | None = None, key_option: str = "`api_key_env`") -> Reply:
        """Send any request and return the reply, whatever its status. Raises UnreachableError, KeyRefusedError."""
        content = None if request.json is None else msgspec.json.encode(request.json)
        headers = {"Content-Type": "application/json"} if content else {}
        return await self._send(
            request.method,
            f"{self.base_url}{request.path}",
            headers,
            self._login,
            content=content,
            key=key,
            key_option=key_option,
        )

    async def _send(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        login: httpx.BasicAuth | None,
        content: bytes | None = None,
        key: str | None = None,
        key_option: str = "`api_key_env`",
    ) -> Reply:
        key = key or self._keys.api
        if key:
            headers, login = {**headers, "Authorization": f"Bearer {key}"}, None
        try:
            request = self._http.build_request(method, _parsed(url), headers=headers, content=content)
            try:
                answered = await self._http.send(request, auth=login)
            except (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError):
                # A server ends a connection that was idle just when the next request comes. Only a GET may be asked
                # again: a POST may have been counted.
                if method != "GET":
                    raise
                answered = await self._http.send(request, auth=login)
            response = await self._followed(answered)
        except httpx.TimeoutException:
            raise UnreachableError("no answer in time", where=url, todo="is the server up, and idle?") from None
        except httpx.LocalProtocolError:
            # Its text may hold the header with the key.
            raise UnreachableError(
                "the request can't be put into HTTP", where=url, todo="is there a line break in a key?"
            ) from None
        except httpx.HTTPError as error:
            reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
            todo = "is the server up? check `base_url`"
            if isinstance(error, httpx.ConnectError):
                todo += f", or have an emulated one: hitlab serve --engine {self.engine.NAME} --emulate"
            raise UnreachableError(reason, where=url, todo=todo) from None
        if response.status_code in (401, 403):
            has = "refuses the key of" if key else "wants a key, name its variable with"
            what = "the server refuses the password of the address" if login else f"the server {has} {key_option}"
            raise KeyRefusedError(f"{response.status_code}: {what}", where=url)
        return Reply(response.status_code, response.content)

    async def _followed(self, response: httpx.Response) -> httpx.Response:
        """Follow redirects, except those that would turn a POST into a GET, which would reset nothing."""
        for _ in range(_MOST_REDIRECTS):
            following = response.next_request
            if following is None or following.method != response.request.method:
                break
            response = await self._http.send(following, auth=None)
        return response


@lru_cache(maxsize=64)
def _parsed(url: str) -> httpx.URL:
    """The URL, parsed once: httpx would parse the string again for every request, a tenth of its cost."""
    return httpx.URL(url)


def _todo_at(status: int, engine: EngineApi) -> str:
    """What to do about a metrics page that comes with this status."""
    if status in (502, 503, 504):
        return "what stands in front can't reach it: see its log, or name the server's own /metrics with `metrics_urls`"
    if status >= 500:
        return "the server's own /metrics fails: see its log"
    if status in (404, 410):
        return engine.NO_METRICS
    return "name the server's own /metrics with `metrics_urls`"


def _whose(page: Page, engine: EngineApi) -> tuple[str, str] | None:
    """Which other engine's metrics page this is, and what to do; None if it is this engine's or no known one's."""
    if page.has(engine.METRIC_PREFIX):
        return None
    for name in families.names("engines"):
        prefix = load_engine(name).METRIC_PREFIX
        if page.has(prefix):
            return f"the page has {prefix} metrics", f"did you mean `engine` {name}?"
    return None
