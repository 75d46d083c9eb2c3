"""The server that a command talks to, and starts first where it is asked to."""

import math
import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from hitlab.cli import _signals
from hitlab.cli._progress import StartProgress
from hitlab.client.dialect import load_engine
from hitlab.client.http import WHY_NO_KEY, EngineClient, Keys, is_key, metrics_url
from hitlab.errors import UsageError
from hitlab.flags import in_flags
from hitlab.measurement.asked import Asked
from hitlab.results.run_result import ServerAsked
from hitlab.servers import start


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The server of one command, and what is known of it."""

    engine: str
    base_url: str | None = None
    metrics_urls: tuple[str, ...] = ()
    emulate: bool = False
    cpu: bool = False
    asked: Asked
    api_key_env: str | None = None
    admin_key_env: str | None = None
    timeout_s: float = 120.0
    faults: tuple[str, ...] = ()
    engine_args: tuple[str, ...] = ()
    port: int = 0  # of a server started here; 0 is any free one

    def __post_init__(self) -> None:
        """Raises UsageError for what makes no sense together, before anything is started or sent."""
        if self.emulate and self.cpu:
            raise UsageError("--emulate and --cpu are two servers", todo="choose one")
        # An empty one is a shell variable that was not set: to take it for the default would empty another's cache.
        if self.base_url is not None and not self.base_url.strip():
            raise UsageError("--base-url is empty", todo="give an address like http://127.0.0.1:8000, or leave it out")
        if (self.emulate or self.cpu) and self.base_url is not None:
            raise UsageError("--base-url names a server, --emulate and --cpu start one", todo="choose one")
        if (self.engine_args and not self.cpu) or (self.faults and not self.emulate):
            raise UsageError("--engine-arg is for --cpu, --fault for --emulate", todo="leave it out")
        if not (math.isfinite(self.timeout_s) and self.timeout_s > 0):
            raise UsageError(f"--timeout is {self.timeout_s:g}", todo="give a number of seconds above 0")

    @contextmanager
    def running(self) -> Iterator[str]:
        """The base URL, of a server that stops with the block where it is one of ours."""
        if not (self.emulate or self.cpu):
            default: str = load_engine(self.engine).DEFAULT_BASE_URL
            yield default if self.base_url is None else self.base_url
            return
        with self.started() as server:
            yield server.base_url
            if reason := server.death(wait_seconds=0.5):
                print(f"hitlab: {in_flags(reason)}", file=sys.stderr)

    def started(self) -> AbstractContextManager[start.RunningServer]:
        """A server of our own, emulated or real."""
        if self.emulate:
            return start.emulated(self.engine, self.asked, self.faults, self.port)
        return start.on_cpu(self.engine, self.asked, StartProgress(), self.engine_args, self.port)

    @contextmanager
    def connected(self, connections: int = 1) -> Iterator[tuple[_signals.Loop, EngineClient]]:
        """A client for the server, and the event loop to run it in; both end with the block."""
        with self.running() as base_url, _signals.Loop() as loop:
            client = self.client(base_url, connections)
            try:
                yield loop, client
            finally:
                loop.run(client.aclose())

    def as_asked(self, log: Path | None = None) -> ServerAsked:
        """The server as a result keeps it; addresses without passwords, and never a key."""
        return ServerAsked(
            start="emulate" if self.emulate else "cpu" if self.cpu else "",
            block_tokens=self.asked.block_tokens,
            capacity_blocks=self.asked.capacity_blocks,
            ranks=self.asked.ranks,
            metrics_urls=tuple(map(metrics_url, self.metrics_urls)),
            log=None if log is None else str(log),
            faults=self.faults,
            engine_args=self.engine_args,
            api_key_env=self.api_key_env,
            admin_key_env=self.admin_key_env,
            timeout_s=self.timeout_s,
        )

    def client(self, base_url: str, connections: int = 1) -> EngineClient:
        """A client for the running server."""
        return EngineClient(
            load_engine(self.engine),
            base_url,
            self.metrics_urls,
            Keys(_key(self.api_key_env, "--api-key-env"), _key(self.admin_key_env, "--admin-key-env")),
            self.timeout_s,
            connections,
        )


def _key(variable: str | None, option: str) -> str | None:
    """The variable's value. Raises UsageError, which never says it."""
    if variable is None:
        return None
    if not (variable.isascii() and variable.isidentifier()):  # nor is it said here: it may be the key itself
        raise UsageError(f"{option} takes the name of an environment variable", todo="as API_KEY, with the key in it")
    key = os.environ.get(variable)
    if not key:
        raise UsageError(f"{option} names {variable}, which is not set", todo=f"export {variable}=...")
    if not is_key(key):
        raise UsageError(f"the key in {variable}, named by {option}, has characters that no key has", todo=WHY_NO_KEY)
    return key
