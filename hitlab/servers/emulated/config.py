"""How an emulated server is started, and what it is told to do wrong."""

from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, get_args

from hitlab.errors import HitlabError, UsageError

#: On every response of an emulated server, and of no real one.
EMULATED_HEADER = "x-hitlab-emulated"
#: At the end of every version an emulated server gives.
EMULATED_SUFFIX = "+emulated"


@dataclass(frozen=True, slots=True)
class EmulatedConfig:
    """How an emulated server is started; each engine's file has its own DEFAULTS.

    `capacity_blocks` is the pool of one rank as the engine's own option counts it: vLLM's
    --num-gpu-blocks-override, of which one block is the null block and holds nothing, and for SGLang
    --max-total-tokens divided by the page size. Raises UsageError for sizes that no server has.
    """

    block_tokens: int
    capacity_blocks: int
    version: str
    ranks: int = 1
    model_name: str = "hitlab-emulated"
    max_model_tokens: int = 32_768
    vocab_size: int = 32_000
    caching_on: bool = True
    metrics_on: bool = True
    #: vLLM: VLLM_SERVER_DEV_MODE=1, without which there is no reset.
    dev_mode: bool = True
    #: vLLM: --enable-prompt-tokens-details, without which responses do not say what was cached.
    prompt_tokens_details: bool = True
    #: SGLang: --chunked-prefill-size, also the tokens of one prefill batch.
    chunked_prefill_tokens: int | None = None
    #: SGLang: False is --disable-overlap-schedule.
    overlap_schedule: bool = True
    api_key: str | None = field(default=None, repr=False)
    admin_key: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        smallest = {"block_tokens": 1, "capacity_blocks": 2, "ranks": 1, "max_model_tokens": 2, "vocab_size": 16}
        for name, least in smallest.items():
            if (value := getattr(self, name)) < least:
                raise UsageError(f"an emulated engine with {name} = {value}", todo=f"it takes at least {least}")

    @property
    def shown_version(self) -> str:
        """What the server says its version is.

        >>> EmulatedConfig(16, 100, "0.32.0").shown_version
        '0.32.0+emulated'
        """
        return self.version + EMULATED_SUFFIX

    def at_least(self, version: str) -> bool:
        """Whether it emulates this version or a newer one.

        >>> EmulatedConfig(1, 100, "0.5.5").at_least("0.5.18")
        False
        """
        return _numbers(self.version) >= _numbers(version)

    def but(self, **changes: Any) -> "EmulatedConfig":
        """The same with some settings changed; None changes nothing."""
        return replace(self, **{name: value for name, value in changes.items() if value is not None})


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("+", maxsplit=1)[0].split(".") if part.isdigit())


@dataclass(frozen=True, slots=True)
class Faults:
    """What an emulated server does wrong: one fault a field. POSTs that generate are counted from 1; 0 is never.

    Sources: the field reports behind docs/engine-notes.md.
    """

    #: A page of counters is as old as so many scrapes.
    lag_scrapes: int = 0
    #: A reset that says success and does nothing, always refuses, or answers 200 with an empty body.
    reset: Literal["", "lies", "busy", "mute"] = ""
    #: After every so many POSTs another client's prompt is served, of `foreign_tokens` tokens.
    foreign_every: int = 0
    foreign_tokens: int = 100
    #: After this POST the server starts over: empty cache, counters at 0.
    restart_after: int = 0
    #: Every so many requests one is preempted and looked up again, and counted twice.
    recount_every: int = 0
    #: This POST is answered with status 500.
    fail_post: int = 0
    #: This POST holds its blocks and is not answered until it is released.
    hang_post: int = 0
    #: At this POST the server dies without an answer.
    die_post: int = 0
    #: /metrics is a login page, has every series twice, or redirects to /metrics/.
    metrics: Literal["", "html", "twice", "redirect"] = ""
    #: Responses leave cached_tokens out, or say null.
    cached_tokens: Literal["", "missing", "null"] = ""
    #: The server puts a token of its own before every prompt.
    extra_bos: bool = False
    #: An offload tier keeps every prompt, also through resets.
    offload_tier: bool = False
    #: The block size the server announces, when it is not the one it uses.
    announced_block_tokens: int = 0

    @classmethod
    def parse(cls, words: Iterable[str]) -> "Faults":
        """Faults as a command line gives them: NAME, or NAME=VALUE; `_` may be `-`. Raises UsageError.

        >>> Faults.parse(["lag-scrapes=2", "extra-bos", "reset=lies"]) == Faults(2, "lies", extra_bos=True)
        True
        """
        types = {each.name: each.type for each in fields(cls)}
        values: dict[str, Any] = {}
        for word in words:
            name, _, value = word.replace("-", "_").partition("=")
            kind = types.get(name)
            choices = [choice for choice in get_args(kind) if choice]
            if kind is int and (value or "1").isdigit():
                values[name] = int(value or "1")
            elif kind is bool and value in ("", "true", "false"):
                values[name] = value != "false"
            elif value in choices:
                values[name] = value
            else:
                todo = f"choose from {', '.join(_spelled(each.name, each.type) for each in fields(cls))}"
                raise UsageError(f"no fault {word!r}", todo=todo)
        return cls(**values)


def _spelled(name: str, kind: Any) -> str:
    choices = "|".join(choice for choice in get_args(kind) if choice)
    return name.replace("_", "-") + ("=N" if kind is int else f"={choices}" if choices else "")


class EngineDiedError(HitlabError):
    """The emulated engine died, as a real one does when it is asked for a token it does not have."""


class PostFailedError(HitlabError):
    """A POST that is answered with status 500."""
