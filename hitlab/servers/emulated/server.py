"""Servers of emulated engines: the dialects of engines/emulated/ and a scheduler, behind Starlette and uvicorn.

with emulate.start("vllm", emulate.settings("vllm", CacheSizes(block_tokens=32))) as server:
    httpx.get(f"{server.base_url}/metrics")
"""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from socket import AF_INET, IPPROTO_TCP, SO_REUSEADDR, SOCK_STREAM, SOL_SOCKET, socket
from types import FrameType, TracebackType

import uvicorn
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response as HttpResponse
from starlette.routing import Route

from hitlab import families
from hitlab.cache.sizes import UNKNOWN, CacheSizes
from hitlab.errors import LaunchError, UsageError
from hitlab.servers.emulated.config import EMULATED_HEADER, EmulatedConfig, EngineDiedError, Faults, PostFailedError
from hitlab.servers.emulated.dialect import Call, EmulatedApi, Handler, Response, json_response
from hitlab.servers.emulated.scheduler import Generation, Scheduler

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
    """One emulated engine on a socket."""

    def __init__(self, name: str, config: EmulatedConfig | None, faults: Faults | None, host: str, port: int) -> None:
        dialect = _dialect(name)
        self.engine = EngineHost(dialect, config or dialect.DEFAULTS, faults or Faults())
        self._socket = listen(host, port)
        self.base_url = f"http://{host}:{self._socket.getsockname()[1]}"
        self._server = _Server(self.engine)
        self._thread = threading.Thread(target=self.run, name=f"emulated {name}", daemon=True)

    @property
    def hanging(self) -> threading.Event:
        """Set while the POST that Faults.hang_post names is being held."""
        return self.engine.hanging

    def release(self) -> None:
        """Let the POST that is being held go on."""
        self._server.soon(self.engine.release)

    def run(self) -> None:
        """Serve here until stopped."""
        try:
            self._server.run([self._socket])
        finally:
            self._socket.close()
            self._server.ready.set()

    def start(self) -> None:
        """Serve in a thread, and return when calls are taken."""
        self._thread.start()
        self._server.ready.wait()

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
            self._server.soon(self._server.stop)
            self._thread.join()

    def __enter__(self) -> "EmulatedServer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class EngineHost:
    """The Host of a dialect's handlers: the scheduler, stepped between the turns of an event loop."""

    def __init__(self, dialect: EmulatedApi, config: EmulatedConfig, faults: Faults) -> None:
        self.dialect = dialect
        self.config = config
        self.faults = faults
        self.scheduler = Scheduler(config, faults, dialect.build_cache, dialect.batch_tokens(config), dialect.warm_up)
        self.started_at = time.time()
        self.received: Counter[tuple[str, str]] = Counter()
        self.sent: Counter[tuple[str, str, int]] = Counter()
        self.hanging = threading.Event()
        self._held: list[Generation] = []
        self._pending: set[asyncio.Future[None]] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._stepping = False

    async def generate(self, generations: Sequence[Generation], *, internal: bool = False) -> None:
        """Serve one POST's generations to their end; a caller that goes away aborts them."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        left = len(generations)

        def finished(generation: Generation) -> None:
            nonlocal left
            left -= 1
            if not left and not done.done():
                done.set_result(None)

        for generation in generations:
            generation.on_finish = finished
        self.scheduler.submit(generations, internal=internal)
        self._wake()
        if generations[0].held:
            self._held = list(generations)
            self.hanging.set()
        self._pending.add(done)
        try:
            await done
        finally:
            self._pending.discard(done)
            if left:
                for generation in generations:
                    self.scheduler.abort(generation)
                self._wake()
        if any(generation.finish_reason == "error" for generation in generations):
            raise PostFailedError("the emulated pool cannot hold this request")

    async def reset(self, wait_s: float = 0.0) -> bool:
        """Empty the cache, or do what the fault says."""
        if self.faults.reset == "busy":
            return False
        if wait_s and not self.scheduler.idle:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), wait_s)
        return self.faults.reset == "lies" or self.scheduler.reset()

    def release(self) -> None:
        """Let held generations go on."""
        for generation in self._held:
            generation.held = False
        self._held = []
        self.hanging.clear()
        self._wake()

    def _wake(self) -> None:
        self._idle.clear()
        if not self._stepping:
            self._stepping = True
            asyncio.get_running_loop().call_soon(self._step)

    def _step(self) -> None:
        # Once a turn of the loop, so that what arrives meanwhile joins the next step.
        try:
            self._stepping = self.scheduler.step()
        except Exception as error:  # a mistake in here: nobody should wait for it
            self._stepping = False
            for future in self._pending:
                future.set_exception(error)
            raise
        if self._stepping:
            asyncio.get_running_loop().call_soon(self._step)
        elif self.scheduler.idle:
            self._idle.set()


class _Front:
    """HTTP in front of an engine: calls in, responses out, keys, and clients that go away."""

    def __init__(self, engine: EngineHost, server: "_Server") -> None:
        self._engine = engine
        self._server = server

    def app(self) -> Starlette:
        """The application uvicorn runs."""
        by_path = self._engine.dialect.routes(self._engine.config)
        routes = [
            Route(path, self._endpoint(by_method), methods=list(by_method)) for path, by_method in by_path.items()
        ]
        return Starlette(routes=routes, exception_handlers={HTTPException: self._refuse})

    def _endpoint(self, by_method: Mapping[str, Handler]) -> Callable[[Request], Awaitable[HttpResponse]]:
        async def endpoint(request: Request) -> HttpResponse:
            handler = by_method.get(request.method) or by_method["GET"]
            self._engine.received[request.method, request.url.path] += 1
            response = self._unauthorized(request) or await self._handle(handler, request)
            self._engine.sent[request.method, request.url.path, response.status] += 1
            return self._send(response)

        return endpoint

    async def _refuse(self, request: Request, error: Exception) -> HttpResponse:
        """Paths and methods that are not there, in FastAPI's words, which both engines use."""
        assert isinstance(error, HTTPException)
        response = self._unauthorized(request) or replace(
            json_response({"detail": error.detail}, error.status_code), headers=error.headers or {}
        )
        self._engine.sent[request.method, "none", response.status] += 1
        return self._send(response)

    def _unauthorized(self, request: Request) -> Response | None:
        key = self._engine.dialect.key_for(request.method, request.url.path, self._engine.config)
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if key is None or (scheme.lower() == "bearer" and token == key):
            return None
        return json_response({"error": "Unauthorized"}, 401)

    async def _handle(self, handler: Handler, request: Request) -> Response:
        call = Call(
            request.method,
            request.url.path,
            request.query_params,
            request.headers,
            await request.body(),
            time.time(),
        )
        work = asyncio.ensure_future(handler(self._engine, call))
        gone = asyncio.ensure_future(request.receive())  # nothing more comes but the news that the client left
        try:
            await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                work.cancel()
            return await work
        except asyncio.CancelledError:
            return Response(499)
        except PostFailedError as error:
            return self._engine.dialect.error(500, str(error))
        except EngineDiedError:
            self._server.die()
            return Response(503)  # which nobody gets
        finally:
            work.cancel()
            gone.cancel()

    def _send(self, response: Response) -> HttpResponse:
        sent = HttpResponse(response.body, response.status, dict(response.headers), response.content_type)
        if response.last:
            self._server.deafen()
            sent.headers["connection"] = "close"
            sent.background = BackgroundTask(self._server.die)
        return sent


class _Server(uvicorn.Server):
    """uvicorn without its polling: it starts, stops and dies at once."""

    def __init__(self, engine: EngineHost) -> None:
        self.ready = threading.Event()
        self._stopping = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        config = uvicorn.Config(
            _Front(engine, self).app(),
            loop="asyncio",
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",
            access_log=False,
            server_header=False,
            headers=[("server", "hitlab-emulated"), (EMULATED_HEADER, "1")],
            timeout_keep_alive=75,
        )
        super().__init__(config)

    def soon(self, action: Callable[[], None]) -> None:
        """Do it in the server's thread; nothing, when the server is gone already."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(action)

    def stop(self) -> None:
        """Leave `main_loop`."""
        self._stopping.set()

    def deafen(self) -> None:
        """Take no new connections."""
        for server in self.servers:
            server.close()

    def die(self) -> None:
        """Close everything now, as the end of a process does."""
        self.deafen()
        for connection in list(self.server_state.connections):
            if connection.transport is not None:
                connection.transport.close()
        self.stop()

    async def startup(self, sockets: list[socket] | None = None) -> None:
        """Start, and say so."""
        await super().startup(sockets)
        self._loop = asyncio.get_running_loop()
        self.ready.set()

    async def main_loop(self) -> None:
        """Wait for the end."""
        await self.on_tick(0)  # sets the headers of all responses
        await self._stopping.wait()

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        """Cut off what is in flight, and wait until its handlers have noticed."""
        self.die()
        if self.server_state.tasks:
            await asyncio.wait(set(self.server_state.tasks), timeout=5)
        await asyncio.sleep(0)  # closed transports let go of their sockets in the next turn

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Ctrl-C."""
        super().handle_exit(sig, frame)
        self.soon(self.stop)


def _dialect(name: str) -> EmulatedApi:
    return families.emulated_engine(name)


def listen(host: str, port: int) -> socket:
    """A bound socket. Raises LaunchError when the port cannot be had, UsageError when there is none of the number."""
    # Named, because asyncio turns Nagle's algorithm off only for sockets that say they are TCP.
    listener = socket(AF_INET, SOCK_STREAM, IPPROTO_TCP)
    listener.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OverflowError:
        listener.close()
        raise UsageError(
            f"there is no port {port}", todo="give --port a number from 0, any free one, to 65535"
        ) from None
    except OSError as error:
        listener.close()
        raise LaunchError(
            f"cannot listen ({error.strerror})", where=f"{host}:{port}", todo="choose another --port"
        ) from None
    return listener
