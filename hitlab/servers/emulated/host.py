"""The running engine behind an emulated server's handlers: its scheduler, and the POSTs that wait for it."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress

from hitlab.servers.emulated.config import EmulatedConfig, Faults, PostFailedError
from hitlab.servers.emulated.dialect import EmulatedApi
from hitlab.servers.emulated.scheduler import Generation, Scheduler


class EngineHost:
    """Implements Host (dialect.py): the scheduler takes one step in each turn of the event loop."""

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
