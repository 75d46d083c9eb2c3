"""HTTP in front of an emulated engine: calls in, responses out, keys, and clients that go away."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Protocol

from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response as HttpResponse
from starlette.routing import Route

from hitlab.servers.emulated.config import EngineDiedError, PostFailedError
from hitlab.servers.emulated.dialect import Call, Handler, Response, json_response
from hitlab.servers.emulated.host import EngineHost


class Connections(Protocol):
    """The sockets of a server, for an engine that dies."""

    def deafen(self) -> None:
        """Take no new connections."""

    def die(self) -> None:
        """Close everything now, as the end of a process does."""


class Front:
    """HTTP in front of an engine: calls in, responses out, keys, and clients that go away."""

    def __init__(self, engine: EngineHost, connections: Connections) -> None:
        self._engine = engine
        self._connections = connections

    def app(self) -> Starlette:
        """The application that uvicorn runs."""
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
            self._connections.die()
            return Response(503)  # which nobody gets
        finally:
            work.cancel()
            gone.cancel()

    def _send(self, response: Response) -> HttpResponse:
        sent = HttpResponse(response.body, response.status, dict(response.headers), response.content_type)
        if response.last:
            self._connections.deafen()
            sent.headers["connection"] = "close"
            sent.background = BackgroundTask(self._connections.die)
        return sent
