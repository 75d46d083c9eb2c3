"""`hitlab serve`: an engine to measure, emulated or real on this machine's CPU."""

from typing import Annotated

import typer

from hitlab.cli import _options as opt
from hitlab.cli import _server_options as given
from hitlab.cli import _target
from hitlab.client.dialect import load_engine
from hitlab.client.http import root_url
from hitlab.errors import LaunchError, UsageError
from hitlab.measurement.asked import Asked


def command(
    engine: given.EngineName,
    emulate: Annotated[bool, typer.Option("--emulate", help="A model of the engine, at once.")] = False,
    cpu: Annotated[
        bool, typer.Option("--cpu", help="The real engine; the first start installs it, in a few minutes and GB.")
    ] = False,
    block_size: Annotated[
        int | None,
        typer.Option("--block-size", "--page-size", "-B", help="Tokens a block or page (default: the engine's)."),
    ] = None,
    capacity_blocks: Annotated[
        int | None, typer.Option("--capacity-blocks", min=1, help="Blocks or pages in each rank's pool.")
    ] = None,
    dp: opt.DataParallel = 1,
    port: Annotated[
        int | None, typer.Option("--port", min=0, max=65_535, help="Port on 127.0.0.1 (default: the engine's own).")
    ] = None,
    engine_arg: given.EngineArg = None,
    fault: given.Fault = None,
) -> None:
    """Start an engine to measure and keep it until Ctrl-C; prints the command that measures it.

    Example: hitlab serve --engine vllm --emulate --capacity-blocks 2048
    """
    if emulate == cpu:
        raise UsageError("serve starts an emulated or a real engine", todo="choose --emulate or --cpu")
    default_port = int(root_url(load_engine(engine).DEFAULT_BASE_URL).rpartition(":")[2])
    where = _target.Target(
        engine=engine,
        emulate=emulate,
        cpu=cpu,
        asked=Asked(block_tokens=block_size, capacity_blocks=capacity_blocks, ranks=dp),
        faults=tuple(fault or ()),
        engine_args=tuple(engine_arg or ()),
        port=default_port if port is None else port,
    )
    with where.started() as server:
        kind = "EMULATED " if emulate else ""
        try:
            print(f"{kind}{engine} serves at {server.base_url}; stop it with Ctrl-C")
            print(f"measure it: hitlab measure --engine {engine} --base-url {server.base_url}", flush=True)
            raise LaunchError(server.wait())
        except KeyboardInterrupt:
            print("stopped")
