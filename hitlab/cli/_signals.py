"""Ctrl-C, SIGTERM and SIGHUP end every command in the same way: what was measured is kept, and one line says so.

The first signal is a KeyboardInterrupt in the main thread. Where an asyncio loop runs, it cancels the loop's main task,
so that it unwinds in order, and is a KeyboardInterrupt afterwards. A later signal ends the process at once.
Signals of one burst count as one: `timeout` sends each to the process and again to its group, a closing terminal sends
several. A signal that was ignored when hitlab started, as SIGHUP is under nohup, stays ignored.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, TypeVar

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_BURST_S = 1.0
_AGAIN_S = 0.01
_SHOW_CURSOR = b"\x1b[?25h"  # which a progress bar has hidden

T = TypeVar("T")


class Stops:
    """The signals of one command."""

    def __init__(self) -> None:
        self._number = 0  # of the first signal
        self._first_s = 0.0
        self._holds = 0
        self._cancel: Callable[[], None] | None = None  # of the loop that runs
        self._owed = False  # a KeyboardInterrupt that is still to be raised
        self._lost = False  # a KeyboardInterrupt that was raised where Python can't pass it on
        self._losing = False  # that is just being noticed
        self._sent_again = False
        self._sender: threading.Thread | None = None
        self._over = False
        self._terminals = [each for each in (1, 2) if os.isatty(each)]

    @property
    def status(self) -> int:
        """128 + the number of the signal that stopped the command, as shells count; Ctrl-C's 130 without one."""
        return 128 + (self._number or signal.SIGINT)

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal. Raises KeyboardInterrupt for the first, where it is not held back and no loop runs."""
        now_s = time.monotonic()
        if self._sent_again:
            self._sent_again = False
            if self._lost and not self._losing and not self._over:
                self._lost = False
                self._deliver()
            return
        if self._number:
            if now_s - self._first_s >= _BURST_S:
                self._end(number)
            return
        self._number, self._first_s = number, now_s
        if number == signal.SIGHUP:
            self._leave_lost_terminals()
        self._deliver()

    def on_unraisable(self, what: "sys.UnraisableHookArgs", usual: Callable[["sys.UnraisableHookArgs"], Any]) -> None:
        """Handle an exception that Python can only print: our KeyboardInterrupt is raised again, the rest is `usual`.

        Python drops what is raised in a function that C calls (numba loads kernels with such), in a `__del__` or in a
        weak reference's callback. The signal is sent again until it comes at a place that can raise.
        """
        if not (self._number and issubclass(what.exc_type, KeyboardInterrupt)):
            usual(what)
            return
        self._losing, self._lost = True, True  # no lock: the handler may run between any two instructions
        if self._sender is None:
            self._sender = threading.Thread(target=self._send_again, daemon=True)
            self._sender.start()
        self._losing = False

    def close(self) -> None:
        """End what sends a lost signal again; a command that has ended by itself was not stopped."""
        self._over = True
        if self._sender is not None:
            self._sender.join()

    def _send_again(self) -> None:
        main = threading.main_thread().ident
        assert main is not None
        while not self._over:
            time.sleep(_AGAIN_S)
            if self._lost:
                self._sent_again = True
                signal.pthread_kill(main, self._number)

    def _deliver(self) -> None:
        if self._cancel:
            self._cancel()
        if self._cancel or self._holds:
            self._owed = True
        else:
            raise KeyboardInterrupt

    def run(self, main: Coroutine[Any, Any, T], runner: Callable[[Coroutine[Any, Any, T]], T]) -> T:
        """Run `main` in an event loop, by `runner`; a first signal cancels it and is a KeyboardInterrupt afterwards."""
        import asyncio

        async def stoppable() -> T:
            loop, task = asyncio.get_running_loop(), asyncio.current_task()
            assert task is not None
            self._cancel = lambda: _cancel(loop, task)
            if self._owed:  # it came while the loop was being made
                main.close()
                raise asyncio.CancelledError
            return await main

        self._cancel = lambda: None
        try:
            return runner(stoppable())
        finally:
            self._cancel = None
            self._pay()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold a first signal back to the end of the block: for what takes no time and must not be lost, as saving."""
        self._holds += 1
        try:
            yield
        finally:
            self._holds -= 1
            self._pay()

    def _pay(self) -> None:
        if self._owed and not self._holds:
            self._owed = False
            raise KeyboardInterrupt from None

    def _leave_lost_terminals(self) -> None:
        """Let output go nowhere where its terminal is gone: writing to it would fail, and that would lose a result."""
        for each in self._terminals:
            if not os.isatty(each):
                os.dup2(os.open(os.devnull, os.O_WRONLY), each)

    def _end(self, number: int) -> None:
        for each in self._terminals:
            with suppress(OSError):
                os.write(each, _SHOW_CURSOR)
        os._exit(128 + number)


def _cancel(loop: Any, task: Any) -> None:
    with suppress(RuntimeError):  # the loop has just been closed
        loop.call_soon_threadsafe(task.cancel)


_current = Stops()  # of the command that runs; its handler is installed only inside `handled`


@contextmanager
def handled() -> Iterator[Stops]:
    """Handle the signals of one command inside the block, if this is the main thread, which alone can."""
    global _current  # noqa: PLW0603  # a signal is the process's, and so is what it stops
    before, stops = _current, Stops()
    handlers = {each: signal.getsignal(each) for each in SIGNALS}
    mine = [each for each, handler in handlers.items() if handler not in (signal.SIG_IGN, None)]
    if threading.current_thread() is not threading.main_thread():
        mine = []
    _current = stops
    usual = sys.unraisablehook
    try:
        sys.unraisablehook = lambda what: stops.on_unraisable(what, usual)
        for each in mine:
            signal.signal(each, stops.on_signal)
        yield stops
    finally:
        stops.close()
        sys.unraisablehook = usual
        for each in mine:
            signal.signal(each, handlers[each])
        _current = before


class Loop:
    """An event loop for the command that runs, as asyncio.Runner is one, which all signals end in order."""

    def __init__(self) -> None:
        import asyncio

        self._runner = asyncio.Runner()

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run it to its end. Raises KeyboardInterrupt after a signal, when `main` has been cancelled and unwound."""
        return _current.run(main, self._runner.run)

    def __enter__(self) -> "Loop":
        return self

    def __exit__(self, *error: object) -> None:
        self._runner.close()


@contextmanager
def held() -> Iterator[None]:
    """Hold back what stops the command that runs to the end of the block: nothing in it is lost or half done."""
    with _current.held():
        yield
