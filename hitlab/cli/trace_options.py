"""Options of the commands that read a trace, said once."""

from pathlib import Path
from typing import Annotated

import typer

TraceFile = Annotated[
    Path,
    typer.Argument(help="A trace: JSON Lines, plain, .gz or .zst; an agent's session, or a folder of them."),
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
        show_default="told from the first line",
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
