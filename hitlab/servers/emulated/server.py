"""Servers of emulated engines: the dialects of engines/emulated/ and a scheduler, behind Starlette and uvicorn.

with emulate.start("vllm", emulate.settings("vllm", CacheSizes(block_tokens=32))) as server:
    httpx.get(f"{server.base_url}/metrics")
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from socket import AF_INET, IPPROTO_TCP, SO_REUSEADDR, SOCK_STREAM, SOL_SOCKET, socket
from types import TracebackType

import uvicorn

from hitlab.cache.sizes import UNKNOWN, CacheSizes
from hitlab.errors import LaunchError, UsageError
from hitlab.servers.emulated.config import EMULATED_HEADER, EmulatedConfig, Faults
from hitlab.servers.emulated.dialect import EmulatedApi, load_emulated_engine
from hitlab.servers.emulated.front import Front
from hitlab.servers.emulated.host import EngineHost

_ENDED = "the emulated server ended, as its fault asked"


def settings(name: str, sizes: CacheSizes = UNKNOWN) -> EmulatedConfig:
    """The engine's default settings with these sizes; of another block size, the default pool holds as many tokens.

    >>> settings("vllm", CacheSizes(block_tokens=64, ranks=2)).capacity_blocks
    4096

    Raises UsageError for sizes that no server has.
    """
    default = _dialect(name).DEFAULTS
    pool_tokens = default.capacity_blocks * default.block_tokens
    block_tokens, capacity_blocks, ranks = sizes.filled(default.block_tokens, pool_tokens)
    return default.but(block_tokens=block_tokens, capacity_blocks=capacity_blocks, ranks=ranks)


def start(
    name: str,
    config: EmulatedConfig | None = None,
    faults: Faults | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
) -> "EmulatedServer":
    """A running server in a thread of its own; stop it, or use it as a context manager.

    Raises LaunchError when the port cannot be had.
    """
    server = EmulatedServer(name, config, faults, host, port)
    server.start()
    return server


class EmulatedServer:
    """One emulated engine on a socket, in a thread and an event loop of its own."""

    def __init__(self, name: str, config: EmulatedConfig | None, faults: Faults | None, host: str, port: int) -> None:
        dialect = _dialect(name)
        self.engine = EngineHost(dialect, config or dialect.DEFAULTS, faults or Faults())
        self._socket = listen(host, port)
        self.base_url = f"http://{host}:{self._socket.getsockname()[1]}"
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._uvicorn = uvicorn.Server(
            uvicorn.Config(
                Front(self.engine, self).app(),
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="critical",
                access_log=False,
                server_header=False,
                headers=[("server", "hitlab-emulated"), (EMULATED_HEADER, "1")],
                timeout_keep_alive=75,
            )
        )
        self._thread = threading.Thread(target=self._run, name=f"emulated {name}", daemon=True)

    @property
    def hanging(self) -> threading.Event:
        """Set while the POST that Faults.hang_post names is being held."""
        return self.engine.hanging

    def release(self) -> None:
        """Let the POST that is being held go on."""
        self._soon(self.engine.release)

    def start(self) -> None:
        """Serve in the thread. Calls are taken at once: until uvicorn is up they wait in the listening socket."""
        self._thread.start()

    def wait(self) -> str:
        """Block until the server ends by itself, and say why."""
        self._thread.join()
        return _ENDED

    def death(self, wait_seconds: float = 0.0) -> str | None:
        """Why the server has ended by itself; None while it runs."""
        return None if self._thread.is_alive() else _ENDED

    def stop(self) -> None:
        """Stop serving; what is in flight is cut off."""
        if self._thread.is_alive():
            self._soon(self._stopping.set)
            self._thread.join()

    def deafen(self) -> None:
        """Take no new connections; in the server's own thread."""
        if self._uvicorn.started:
            for server in self._uvicorn.servers:
                server.close()

    def die(self) -> None:
        """Close everything now, as the end of a process does; in the server's own thread."""
        self.deafen()
        for connection in list(self._uvicorn.server_state.connections):
            if connection.transport is not None:
                connection.transport.close()
        self._stopping.set()

    def __enter__(self) -> "EmulatedServer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _soon(self, action: Callable[[], None]) -> None:
        """Do it in the server's thread; nothing, when the server is gone already."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(action)

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._serve())
        finally:
            self._socket.close()

    async def _serve(self) -> None:
        """Serve until told to stop.

        uvicorn's own `should_exit` is looked at ten times a second and then lets requests in flight end, so its
        task is cancelled instead, and what it would have closed is closed here.
        """
        serving = asyncio.ensure_future(self._uvicorn.serve(sockets=[self._socket]))
        stopping = asyncio.ensure_future(self._stopping.wait())
        await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
        serving.cancel()
        stopping.cancel()
        await asyncio.wait((serving, stopping))
        if not serving.cancelled():
            serving.result()  # raises what uvicorn ended with
        self.die()
        if self._uvicorn.server_state.tasks:  # handlers, which notice that their clients are gone
            await asyncio.wait(set(self._uvicorn.server_state.tasks), timeout=5)
        await asyncio.sleep(0)  # closed transports let go of their sockets in the next turn


def _dialect(name: str) -> EmulatedApi:
    return load_emulated_engine(name)


def listen(host: str, port: int) -> socket:
    """A listening socket. Raises LaunchError when the port cannot be had, UsageError for a number that is none."""
    # Named, because asyncio turns Nagle's algorithm off only for sockets that say they are TCP.
    listener = socket(AF_INET, SOCK_STREAM, IPPROTO_TCP)
    listener.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(2048)
    except OverflowError:
        listener.close()
        raise UsageError(
            f"there is no port {port}", todo="give `port` a number from 0, any free one, to 65535"
        ) from None
    except OSError as error:
        listener.close()
        raise LaunchError(
            f"cannot listen ({error.strerror})", where=f"{host}:{port}", todo="choose another `port`"
        ) from None
    return listener
