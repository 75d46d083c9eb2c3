"""Options shared by the commands that talk to a server or start one."""

from typing import Annotated

import typer

from hitlab import families
from hitlab.cli._options import one_of

EngineName = Annotated[str, typer.Option("--engine", "-e", help=f"{one_of(families.names('engines'))}.")]
BaseUrl = Annotated[
    str | None, typer.Option("--base-url", help="The server (default: port 8000 for vLLM, 30000 for SGLang, here).")
]
MetricsUrl = Annotated[
    list[str] | None, typer.Option("--metrics-url", help="Where /metrics is, if elsewhere; repeat it for replicas.")
]
Emulate = Annotated[bool, typer.Option("--emulate", help="Start an emulated engine on a free port and talk to that.")]
Cpu = Annotated[bool, typer.Option("--cpu", help="Start the real engine on this machine's CPU and talk to that.")]
BlockSize = Annotated[
    int | None,
    typer.Option(
        "--block-size", "--page-size", "-B", help="What you believe it is; of a server started here, what it gets."
    ),
]
CapacityBlocks = Annotated[
    int | None,
    typer.Option("--capacity-blocks", min=1, help="Pool in blocks: believed, or given to a server started here."),
]
Ranks = Annotated[
    int | None,
    typer.Option(
        "--dp", "--data-parallel-size", min=1, help="Data-parallel ranks: believed, or of a server started here."
    ),
]
ApiKeyEnv = Annotated[str | None, typer.Option("--api-key-env", help="Environment variable that holds the API key.")]
AdminKeyEnv = Annotated[
    str | None, typer.Option("--admin-key-env", help="Environment variable with the key for resets, if another.")
]
Fault = Annotated[
    list[str] | None,
    typer.Option("--fault", help="Break the emulated engine: NAME or NAME=VALUE, as reset=lies or fail-post=20."),
]
EngineArg = Annotated[
    list[str] | None, typer.Option("--engine-arg", help="With --cpu: passed on to the engine; repeat it for more.")
]
Timeout = Annotated[float, typer.Option("--timeout", help="Seconds to wait for one response.")]
