"""Options shared by the commands that read a trace, and the function with which they read it."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from hitlab.cli._progress import progress
from hitlab.errors import UsageError
from hitlab.traces import reader
from hitlab.traces.trace import Trace


def path(text: str) -> Path:
    """The path of a trace. Raises UsageError for an empty one, which pathlib would take for the current folder."""
    if not text:
        raise UsageError("TRACE is empty", todo="name a file, or a folder of sessions")
    return Path(text)


TraceFile = Annotated[
    Path,
    typer.Argument(
        parser=path, help="A trace: JSON Lines, plain, .gz or .zst; an agent's session, or a folder of them."
    ),
]
BlockSize = Annotated[
    int | None,
    typer.Option("--block-size", "-B", help="Tokens a block of the trace has.", show_default="as the format says"),
]
Format = Annotated[
    str | None,
    typer.Option(
        "--format",
        help="mooncake, bailian, llmtrafficlens, kvcache-simulator or agentic.",
        show_default="detected from the first line",
    ),
]
SkipMalformed = Annotated[
    bool, typer.Option("--skip-malformed", help="Leave out rows that are no requests, and count them.")
]
Warmup = Annotated[
    float, typer.Option("--warmup", help="Share of the requests that only warm the cache; the rest is steady.")
]
EngineCap = Annotated[
    bool, typer.Option("--engine-cap", help="Count at most floor((L-1)/B)*B tokens a request, as engines do.")
]


def read(trace: Path, block_size: int | None, form: str | None, skip_malformed: bool) -> Trace:
    """Read a trace, with a progress line if that takes long and a line on stderr if it has no requests."""
    with progress(f"reading {trace.name}") as on_progress:
        requests = reader.read_trace(
            trace, block_size, format_name=form, skip_malformed=skip_malformed, on_progress=on_progress
        )
    if not requests.requests:
        print(f"no requests in the trace {trace}", file=sys.stderr)
    return requests
