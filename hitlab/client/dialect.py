"""What a file of engines/ offers, and the requests and replies in which it speaks.

Such a file builds requests and reads replies; hitlab.client.http sends them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Protocol, TypeVar, cast

import msgspec

from hitlab import families
from hitlab.cache.model import CacheModel
from hitlab.cache.sizes import CacheSizes
from hitlab.client.counters import Counters
from hitlab.client.metrics_page import Page
from hitlab.errors import ServerError
from hitlab.tokens import Prompt, Tally

T = TypeVar("T")
Count = Annotated[int, msgspec.Meta(ge=0)]  # in a Struct of a reply
Size = Annotated[int, msgspec.Meta(ge=1)]


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One request, relative to the server's root."""

    method: str
    path: str
    json: Any = None


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a request."""

    status: int
    body: bytes

    def read(self, kind: type[T], engine: str) -> T:
        """The body decoded as the Struct `kind`; fields that it does not have are ignored.

        `engine` is named in the ServerError that is raised for a body that does not fit.

        >>> Reply(200, b'[1, 2]').read(list[int], "vLLM")
        [1, 2]
        """
        try:
            return msgspec.json.decode(self.body, type=kind)
        except msgspec.ValidationError as error:
            reason = str(error)
        except (msgspec.DecodeError, RecursionError):
            reason = self.says
        raise ServerError(f"an answer that no {engine} gives: {reason}")

    @property
    def says(self) -> str:
        """The engine's own words in an error body, on one line."""
        try:
            document = msgspec.json.decode(self.body)
        except (msgspec.DecodeError, RecursionError):
            document = None
        while isinstance(document, dict):
            document = next((document[key] for key in ("error", "message", "detail", "msg") if key in document), None)
        text = document if isinstance(document, str) else self.body.decode(errors="replace")
        return " ".join(text.split())[:200] or "an empty body"


@dataclass(frozen=True, slots=True)
class Completion:
    """What a response says of its own request; None is unknown, never 0."""

    prompt_tokens: int | None
    cached_tokens: int | None
    output: tuple[int, ...] | None = None
    finish: str | None = None  # why it ended, in the engine's word; None where it does not say
    finish_says: str = ""  # the engine's sentence about that

    @property
    def stopped(self) -> bool:
        """Whether the model ended by itself, and not at the length it was asked for."""
        return self.finish == "stop"

    @property
    def broken_off(self) -> bool:
        """Whether the request was given up on the server, though the reply has the status 200."""
        return self.finish in _BROKEN_OFF


# Finish reasons of requests that the server gave up; all others ("stop", "length", a gateway's own) are answers.
_BROKEN_OFF = frozenset({"abort", "aborted", "error", "cancelled", "canceled", "timeout"})


def first_broken(finishes: Iterable[str | None]) -> str | None:
    """The first finish reason of a request that the server gave up; None where there is none."""
    return next((finish for finish in finishes if finish in _BROKEN_OFF), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts(CacheSizes):
    """What the server says of itself, the sizes of its cache among it; None is what it does not say."""

    version: str | None = None
    model: str | None = None
    model_path: str | None = None  # where the server loaded it from
    max_model_tokens: int | None = None
    ranks: int = 1
    caching: bool | None = None
    chunked_prefill_tokens: int | None = None
    overlap_schedule: bool = True
    emulated: bool = False
    notes: tuple[str, ...] = ()  # what makes a prediction unsure, in words


@dataclass(frozen=True, slots=True)
class ResetOutcome:
    """What a reply to a reset means."""

    done: bool | None  # None: the server does not say
    detail: str
    retry: bool = False  # refused because something runs just now


@dataclass(frozen=True, slots=True)
class LogEntry:
    """What one line of an engine's log says of its prefix cache. None and "" mean that the line does not say.

    `moment` is the time as printed, from the largest unit said (year, month or hour) to seconds. A hit rate of a
    sliding window can't be added up, because the line does not say of how many tokens it is. `source` and `process`
    are not for the engine's reader to say: they are what stood around its line.
    """

    moment: tuple[int, ...] | None
    rank: int | None = None  # data-parallel
    replica: str = ""  # of several that repeat each other's tokens, as tensor ranks do
    tally: Tally | None = None
    window_hit_rate: float | None = None  # 0 to 1
    preemptions: int = 0
    source: tuple[tuple[str, str], ...] = ()  # which server wrote it: ("pod", "vllm-a"), ...
    process: str = ""  # which process of it, where the logger says


class EngineApi(Protocol):
    """What a file of engines/ offers."""

    NAME: str  # its file's
    TITLE: str  # as people write it
    DEFAULT_BASE_URL: str
    DEFAULT_BLOCK_TOKENS: int
    FACT_PATHS: tuple[tuple[str, ...], ...]  # each a list of alternatives, the newest first
    METRIC_PREFIX: str  # of its own metrics, as "vllm:"
    METRICS: tuple[str, ...]  # the names of all that it reads off a metrics page, as "vllm:x"
    NO_METRICS: str  # what to do when there are no counters
    NO_RESET: str  # what to do when the reset is not there
    LOG_LACKS: str  # why its log can't stand in for counters; empty where it can

    def completion(self, prompt: Prompt, model: str | None, max_tokens: int) -> HttpRequest:
        """A request to generate `max_tokens` after a prompt; above 1, the generated ids must be in the answer."""
        ...

    def read_completion(self, reply: Reply) -> Completion:
        """Read a reply of status 200. Raises ServerError for one that is no completion."""
        ...

    def completions(self, prompts: Sequence[Prompt], model: str | None) -> HttpRequest:
        """One request that generates a single token after each of several unsalted prompts."""
        ...

    def read_completions(self, reply: Reply) -> Completion:
        """Read a reply of status 200 to several prompts, their tokens added up. Raises ServerError as above."""
        ...

    def reset(self) -> HttpRequest:
        """A request that empties the prefix cache and every tier behind it."""
        ...

    def read_reset(self, reply: Reply) -> ResetOutcome:
        """What the reply to a reset means. Raises ServerError for one that the engine does not give."""
        ...

    def read_facts(self, replies: Mapping[str, Reply], page: Page | None) -> ServerFacts:
        """What the server says of itself: replies by path, and its metrics page.

        Raises ServerError for a reply that the engine does not give.
        """
        ...

    def read_counters(self, page: Page, model: str | None, version: str | None = None) -> Counters:
        """The token counters of a page of METRICS, of one model where the page has several and this is one of them.

        `version` is that of the server behind the page, where it is known. Raises MetricsError where there are none.
        """
        ...

    def read_log_line(self, line: str) -> LogEntry | None:
        """What a line of its log, without colours, says; None where it says nothing of the cache.

        Its time is the last one before the message.
        """
        ...

    def cache_model(self, facts: ServerFacts) -> CacheModel:
        """The model of this server's cache; without a known pool, of one that never evicts."""
        ...

    def recording_sizes(self, facts: ServerFacts) -> Mapping[str, Any]:
        """The sizes that a recording of this server keeps, under the engine's own names (Recording.sizes)."""
        ...

    def recorded_facts(self, sizes: Mapping[str, Any]) -> ServerFacts:
        """The other way round: what such sizes say of the server. Raises KeyError, naming a size that is missing."""
        ...


def load_engine(name: str) -> EngineApi:
    """What a client needs to know of the engine of this name, in any case. Raises UsageError for an unknown one."""
    return cast(EngineApi, families.load("engines", name))
