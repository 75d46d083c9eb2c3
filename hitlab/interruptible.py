"""Runs a coroutine from plain code, so that Ctrl-C ends it."""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Event
from typing import Any, TypeVar

T = TypeVar("T")


def in_a_thread(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run it in a thread, which has no event loop yet; what interrupts the wait for it cancels it and lets it unwind.

    Ctrl-C is a KeyboardInterrupt in the main thread and nothing in any other, so that the run would go on without it.
    """
    interrupted = Event()
    cancels: list[Callable[[], object]] = []

    async def stoppable() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        cancels.append(lambda: loop.call_soon_threadsafe(task.cancel))
        if interrupted.is_set():  # before there was anything to cancel
            raise asyncio.CancelledError
        return await main()

    with ThreadPoolExecutor(max_workers=1) as thread:
        try:
            return thread.submit(lambda: asyncio.run(stoppable())).result()
        except BaseException:
            interrupted.set()
            for cancel in cancels:
                with suppress(RuntimeError):  # it has ended, and its loop is closed
                    cancel()
            raise
