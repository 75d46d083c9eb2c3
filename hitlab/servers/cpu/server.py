"""Real engines on a CPU: makes an engine's environment once, starts its server, waits for it, stops all of it.

    with running(recipe, ServerOptions(CacheSizes(block_tokens=32)), Silent()) as server:
        measure(server.base_url)

Everything lies under $XDG_CACHE_HOME/hitlab (~/.cache/hitlab): envs/, models/, logs/. pip takes its packages
from wherever it is configured to (pip.conf, PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, ...). On Linux the torch of
PyPI is the CUDA build, which works but is several GB larger; for the CPU build set PIP_EXTRA_INDEX_URL to
PyTorch's CPU index.
"""

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import httpx

from hitlab.errors import LaunchError, ServerError
from hitlab.files import cache_dir, os_errors_named, write_whole
from hitlab.servers.cpu.environments import environment, environment_dir, is_installed
from hitlab.servers.cpu.process_log import Log
from hitlab.servers.cpu.processes import POLL_SECONDS, Guarded, in_words
from hitlab.servers.cpu.recipe import TINY_MODEL, CpuRecipe, ServerOptions, ServerSpec
from hitlab.servers.progress import Progress

__all__ = ["Server", "environment", "environment_dir", "is_installed", "running"]

HOST = "127.0.0.1"
DYING_SECONDS = 2.0  # that a server under way to its end is given when a request to it has failed


@dataclass(frozen=True, slots=True)
class Server:
    """A running server that was started here."""

    base_url: str
    title: str
    log: Log
    _process: Guarded
    _ready_at: int  # bytes of the log by then: errors before it did not end the server

    def death(self, wait_seconds: float = 0.0) -> str | None:
        """Why the server has ended, in one line; None while it runs. Waits at most so long for an end under way."""
        status = self._process.wait(wait_seconds)
        if status is None:
            return None
        return f"{self.title} ended by itself ({in_words(status)}): {self.log.verdict(self._ready_at)}"

    def wait(self) -> str:
        """Block until the server ends by itself, and say why."""
        while True:
            if reason := self.death(wait_seconds=3600.0):
                return reason


@contextmanager
def running(recipe: CpuRecipe, options: ServerOptions, progress: Progress) -> Iterator[Server]:
    """A server that is ready and has counted nothing yet; all its processes end with the block, however it is left.

    Makes the environment first where it is missing; `progress` gets the warning about its size and the progress.
    Raises UsageError for options the engine refuses, LaunchError for everything that can go wrong before the
    server is ready, and LaunchError in place of a ServerError out of the body when the server has died.
    """
    cpus = tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else (0,)
    model_dir = cache_dir() / "models" / "tiny-llama"
    spec = recipe.spec(options, str(model_dir), cpus)
    _free_port(spec.port)  # better to hear it now than after a long installation
    with environment(recipe, progress) as home, ExitStack() as started:
        with os_errors_named():
            write_whole(model_dir / "config.json", json.dumps(TINY_MODEL, indent=1))
            log = Log(recipe.name)
            spec = replace(spec, port=_free_port(spec.port))
            # `python -m` looks for packages in the working directory first; there are none beside a model.
            process = started.enter_context(Guarded(*_command(recipe, spec, home), log, cwd=model_dir))
            base_url = f"http://{HOST}:{spec.port}"
            _wait_until_ready(process, base_url, log, recipe, progress)
            server = Server(base_url, recipe.full_title, log, process, log.size)
        try:
            yield server
        except ServerError as error:
            if reason := server.death(DYING_SECONDS):
                raise LaunchError(reason) from error
            raise


def _command(recipe: CpuRecipe, spec: ServerSpec, home: Path) -> tuple[list[str], dict[str, str]]:
    program, *arguments = recipe.argv(spec)
    path = f"{home / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"
    return [str(home / "bin" / program), *arguments], {"PATH": path, **recipe.environment(spec)}


def _wait_until_ready(process: Guarded, base_url: str, log: Log, recipe: CpuRecipe, progress: Progress) -> None:
    deadline = time.monotonic() + recipe.ready_seconds
    title = recipe.full_title
    # No proxy from the environment: the server is on this machine.
    with (
        progress.step(f"starting {title}") as detail,
        httpx.Client(trust_env=False, timeout=5.0) as client,
    ):
        while True:
            with suppress(httpx.TransportError):
                if client.get(base_url + recipe.ready_path).is_success and process.wait(0) is None:
                    return
            status = process.wait(POLL_SECONDS)
            if status is not None:
                raise LaunchError(f"{title} died at start ({in_words(status)}): {log.verdict()}")
            if time.monotonic() > deadline:
                raise LaunchError(f"{title} was not ready after {recipe.ready_seconds:.0f} s: {log.verdict()}")
            detail(log.last_line())


def _free_port(wanted: int) -> int:
    try:
        with socket.socket() as probe:
            # As the engines do, so that connections still closing after an earlier server are no obstacle.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((HOST, wanted))
            return int(probe.getsockname()[1])
    except (OSError, OverflowError) as error:
        raise LaunchError(
            f"port {wanted} cannot be used: {getattr(error, 'strerror', None) or error}",
            where=HOST,
            todo="choose another with `port`, or 0 for any free one",
        ) from None
