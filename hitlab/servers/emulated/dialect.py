"""What the emulated engines have in common: the nouns of a server's side of HTTP, and what each of them offers.

An emulated engine speaks a real engine's dialect around that engine's cache model. A file of engines/emulated/
reads calls and writes responses; server.py owns the sockets. Nothing here is a measurement, and everything an
emulated server sends says so: every response has the header `x-hitlab-emulated: 1`, and every version ends in
`+emulated`.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import msgspec

from hitlab import families
from hitlab.cache.model import CacheModel
from hitlab.servers.emulated.config import EmulatedConfig, Faults
from hitlab.servers.emulated.scheduler import Generation, Scheduler


@dataclass(frozen=True, slots=True)
class Call:
    """An HTTP request as it arrived; header names in lower case, `at` in seconds since 1970."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    at: float


@dataclass(frozen=True, slots=True)
class Response:
    """An HTTP response; a `last` one is the end of the server."""

    status: int = 200
    body: bytes = b""
    content_type: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    last: bool = False


def json_response(document: Any, status: int = 200, *, last: bool = False) -> Response:
    """A response whose body is the document as JSON."""
    return Response(status, msgspec.json.encode(document), "application/json", last=last)


class Host(Protocol):
    """The running server, as a dialect's handlers see it."""

    config: EmulatedConfig
    faults: Faults
    scheduler: Scheduler
    started_at: float
    #: Calls received so far, by (method, path).
    received: Counter[tuple[str, str]]
    #: Responses sent so far, by (method, path, status); the path of what is not there is "none".
    sent: Counter[tuple[str, str, int]]

    async def generate(self, generations: Sequence[Generation], *, internal: bool = False) -> None:
        """Serve one POST's generations to their end. `internal` ones are the server's own.

        Raises PostFailedError or EngineDiedError.
        """

    async def reset(self, wait_s: float = 0.0) -> bool:
        """Empty the cache, waiting at most so long for running requests; whether the server claims to have done it."""


Handler = Callable[[Host, Call], Awaitable[Response]]


class EmulatedApi(Protocol):
    """What a file of engines/emulated/ offers."""

    DEFAULTS: EmulatedConfig

    def build_cache(self, config: EmulatedConfig) -> CacheModel:
        """The cache of one rank."""

    def batch_tokens(self, config: EmulatedConfig) -> int | None:
        """Tokens of a prefill batch, where requests of one batch do not find each other's; None where they do."""

    def warm_up(self, config: EmulatedConfig) -> list[Generation]:
        """Requests that each rank serves at start-up."""

    def routes(self, config: EmulatedConfig) -> Mapping[str, Mapping[str, Handler]]:
        """Handlers by path and method, of a server started with this config."""

    def key_for(self, method: str, path: str, config: EmulatedConfig) -> str | None:
        """The bearer token that such a call needs; None where it needs none."""

    def error(self, status: int, message: str) -> Response:
        """An error in the engine's own form."""


def load_emulated_engine(name: str) -> EmulatedApi:
    """How the emulated server of this engine answers. Raises UsageError for an unknown name."""
    return cast(EmulatedApi, families.load("engines.emulated", name))
