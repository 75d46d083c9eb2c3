"""The formats a trace comes in: how each is recognised, and what its rows do not state themselves.

mooncake            kvcache-ai/Mooncake, FAST 2025 traces: one request a line, 512-token blocks, milliseconds
bailian             alibaba-edu/qwen-bailian-usagetraces-anon: as mooncake, and a chat_id; 16-token blocks, seconds
llmtrafficlens      its exports: bailian's keys, chat_id is a string; milliseconds; blocks are cut from characters, so
                    their number need not fit the token count
kvcache-simulator   kvcache.ai's: every row states its block_size; milliseconds
agentic             callanjfox/kv-cache-tester: one coding-agent session a file, with nested sub-agents; seconds
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from hitlab.errors import TraceError, UsageError
from hitlab.traces.trace import BlockId

SESSIONS = "agentic"


@dataclass(frozen=True, slots=True)
class Format:
    """What the rows of a format mean."""

    name: str
    block_tokens: int | None  # None: the trace states it
    per_second: float  # timestamps count so many in a second
    loose: bool = False  # the number of blocks need not fit the number of tokens


FORMATS = {
    each.name: each
    for each in (
        Format("mooncake", 512, 1000),
        Format("bailian", 16, 1),
        Format("llmtrafficlens", 16, 1000, loose=True),
        Format("kvcache-simulator", None, 1000),
        Format(SESSIONS, None, 1, loose=True),
    )
}


def named(name: str) -> Format:
    """The format of that name. Raises UsageError."""
    if name not in FORMATS:
        raise UsageError(f"no trace format named {name!r}", todo=f"choose from {', '.join(FORMATS)}")
    return FORMATS[name]


def detect(beginning: bytes) -> Format:
    """The format of a file that begins with these bytes: its first line, or as much of it as there is.

    >>> detect(b'{"timestamp": 0, "input_length": 9, "hash_ids": [1]}').name
    'mooncake'
    >>> detect(b'{"chat_id": 1, "input_length": 9, "type": "text", "hash_ids": [1]}').name
    'bailian'
    >>> detect(b'{"id": "trace_1", "block_size": 64, "requests": [{"t": 0.0, "in": 9, "hash_ids": [1]').name
    'agentic'
    """
    line = beginning.partition(b"\n")[0]
    keys = set(re.findall(rb'"(\w+)"\s*:', line)) or set(re.findall(rb'"(\w+)"\s*:', beginning))
    if b"requests" in keys:
        return FORMATS[SESSIONS]
    if b"block_size" in keys:
        return FORMATS["kvcache-simulator"]
    if b"chat_id" in keys:
        return FORMATS["llmtrafficlens" if re.search(rb'"chat_id"\s*:\s*"', beginning) else "bailian"]
    return FORMATS["mooncake"]


def declared_block_tokens(beginning: bytes) -> int | None:
    """The block size that a trace states, or None.

    >>> declared_block_tokens(b'{"block_size":64,"hash_ids":[2001,2002],"input_length":128}')
    64
    """
    said = re.search(rb'"block_size"\s*:\s*(\d{1,10})\b', beginning)
    return int(said[1]) if said else None


class Row(msgspec.Struct, gc=False):
    """One line of a trace, one request."""

    input_length: int
    hash_ids: list[BlockId]
    timestamp: Any = None
    block_size: int | None = None
    block_tokens: list[int] | None = None

    def arrival_s(self, per_second: float) -> float:
        """When the request arrived, in seconds; NaN if the row has no time stamp or one that is not a number."""
        known = isinstance(self.timestamp, int | float) and not isinstance(self.timestamp, bool)
        try:
            return self.timestamp / per_second if known else float("nan")
        except OverflowError:  # an integer beyond every float
            return float("nan")

    def check(self, block_tokens: int) -> None:
        """Raise TraceError if the row declares blocks of other sizes than those the trace is read with."""
        if self.block_size is not None and self.block_size != block_tokens:
            raise TraceError(
                f"block_size is {self.block_size}, but the trace is read at {block_tokens}",
                todo=f"all rows need one block size; try `block_tokens` {self.block_size}",
            )
        if self.block_tokens is not None and any(size != block_tokens for size in self.block_tokens[:-1]):
            raise TraceError("block_tokens differ from one another", todo="only blocks of one size can be replayed")


class SessionRequest(msgspec.Struct, gc=False):
    """A request of an agent's session, or a sub-agent, which has requests of its own."""

    t: float = 0.0
    input_tokens: int | None = msgspec.field(default=None, name="in")
    hash_ids: list[int] | None = None
    requests: "list[SessionRequest] | None" = None


class Session(msgspec.Struct):
    """The requests of one agent. With the scope `local` equal block ids of two sessions are different blocks."""

    requests: list[SessionRequest]
    block_size: int
    hash_id_scope: str = "local"


def flat(requests: list[SessionRequest], start_s: float = 0.0) -> Iterator[tuple[float, int, list[int]]]:
    """(arrival in s, prompt tokens, block ids) of each request; a sub-agent's times are relative to its start."""
    for request in requests:
        arrival_s = start_s + request.t
        if request.requests is not None:
            yield from flat(request.requests, arrival_s)
        elif request.input_tokens is None or request.hash_ids is None:
            raise TraceError(f"the request at {request.t} s has no `in` or no `hash_ids`", todo="correct the session")
        else:
            yield arrival_s, request.input_tokens, request.hash_ids
