"""Starts a server to measure: emulated in this process, or the real engine on this machine's CPU."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from hitlab.cache.sizes import CacheSizes
from hitlab.servers.cpu.recipe import load_cpu_recipe
from hitlab.servers.progress import Progress


class RunningServer(Protocol):
    """A server that is up, emulated or real."""

    @property
    def base_url(self) -> str:
        """Its address, as http://127.0.0.1:8000."""

    def wait(self) -> str:
        """Block until it ends by itself, and say why."""

    def death(self, wait_seconds: float = 0.0) -> str | None:
        """Why it has ended by itself; None while it runs. Waits at most so long for an end that is under way."""


def emulated(
    engine: str, sizes: CacheSizes, faults: Sequence[str] = (), port: int = 0
) -> AbstractContextManager[RunningServer]:
    """An emulated engine, which stops with the block; port 0 is any free one, `faults` are as on a command line.

    Raises UsageError for sizes or faults that no server has, LaunchError when the port cannot be had.
    """
    from hitlab.servers.emulated import server
    from hitlab.servers.emulated.config import Faults

    return server.start(engine, server.settings(engine, sizes), Faults.parse(faults), port=port)


def on_cpu(
    engine: str, sizes: CacheSizes, progress: Progress, engine_args: tuple[str, ...] = (), port: int = 0
) -> AbstractContextManager[RunningServer]:
    """The real engine, installed where it is missing, which stops with the block; port 0 is any free one.

    Entering the block takes minutes the first time. It raises UsageError for what the engine refuses, LaunchError
    when it cannot be installed or does not get ready.
    """
    from hitlab.servers.cpu import server
    from hitlab.servers.cpu.recipe import ServerOptions

    return server.running(load_cpu_recipe(engine), ServerOptions(sizes, port, engine_args), progress)
