"""Which server a command talks to: options, and the server itself where the command starts one."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from hitlab import families
from hitlab.errors import UsageError

if TYPE_CHECKING:
    from hitlab.client import EngineClient
    from hitlab.session import Asked

EngineName = Annotated[str, typer.Option("--engine", "-e", help="vllm or sglang.")]
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
    typer.Option("--block-size", "--page-size", help="What you believe it is; of a server started here, what it gets."),
]
CapacityBlocks = Annotated[
    int | None,
    typer.Option("--capacity-blocks", help="Pool in blocks: believed, or given to a server started here."),
]
Ranks = Annotated[
    int | None,
    typer.Option("--dp", "--data-parallel-size", help="Data-parallel ranks: believed, or of a server started here."),
]
ApiKeyEnv = Annotated[str | None, typer.Option("--api-key-env", help="Environment variable that holds the API key.")]
AdminKeyEnv = Annotated[
    str | None, typer.Option("--admin-key-env", help="Environment variable with the key for resets, if another.")
]
Fault = Annotated[
    list[str] | None,
    typer.Option("--fault", help="Break the emulated engine: NAME or NAME=VALUE, as reset=lies or fail-post=20."),
]
Timeout = Annotated[float, typer.Option("--timeout", help="Seconds to wait for one response.")]


@dataclass(frozen=True, slots=True)
class Target:
    """The server of one command."""

    engine: str
    base_url: str | None
    metrics_urls: tuple[str, ...]
    emulate: bool
    cpu: bool
    asked: "Asked"
    api_key_env: str | None
    admin_key_env: str | None
    timeout_s: float
    faults: tuple[str, ...] = ()

    @contextmanager
    def running(self) -> Iterator[str]:
        """The base URL, of a server that stops with the block where it is one of ours."""
        if self.emulate and self.cpu:
            raise UsageError("--emulate and --cpu are two servers", todo="choose one")
        if (self.emulate or self.cpu) and self.base_url:
            raise UsageError("--base-url names a server, --emulate and --cpu start one", todo="choose one")
        if self.emulate:
            with self._emulated() as base_url:
                yield base_url
        elif self.cpu:
            with self._on_cpu() as base_url:
                yield base_url
        else:
            yield self.base_url or families.load("engines", self.engine).DEFAULT_BASE_URL

    @contextmanager
    def _emulated(self) -> Iterator[str]:
        from hitlab import emulate
        from hitlab.emulation import Faults

        config = emulate.settings(
            self.engine,
            block_tokens=self.asked.block_tokens,
            capacity_blocks=self.asked.capacity_blocks,
            ranks=self.asked.ranks,
        )
        with emulate.start(self.engine, config, Faults.parse(self.faults)) as server:
            yield server.base_url

    def client(self, base_url: str, connections: int = 1) -> "EngineClient":
        """A client for the running server."""
        from hitlab.client import EngineClient, Keys

        return EngineClient(
            families.load("engines", self.engine),
            base_url,
            self.metrics_urls,
            Keys(_key(self.api_key_env, "--api-key-env"), _key(self.admin_key_env, "--admin-key-env")),
            self.timeout_s,
            connections,
        )


def _key(variable: str | None, option: str) -> str | None:
    if variable is None:
        return None
    key = os.environ.get(variable)
    if not key:
        raise UsageError(f"{option} names {variable}, which is not set", todo=f"export {variable}=...")
    return key
