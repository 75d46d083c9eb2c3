"""Worker processes: tasks on several cores or on a cluster through joblib, ended by this process only."""

import os
import signal
import threading
import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hitlab.errors import UsageError

SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
_LOOK_AFTER_S = 0.5


@dataclass(frozen=True, slots=True)
class Workers:
    """Where replays run. `jobs` worker processes; None means one a core, or only this process for little work."""

    jobs: int | None = None
    backend: str = "loky"
    scheduler: str = ""  # address of a Dask scheduler or Ray cluster
    folder: Path | None = None  # where the trace is written for workers to map; all workers of a cluster must see it


def results(workers: Workers, tasks: Iterable[Any]) -> Generator[Any]:
    """What joblib's delayed `tasks` return, each as it is finished, in any order.

    When the caller stops early, for Ctrl-C or an error, the worker processes of this machine are ended. Raises
    UsageError if the backend is not installed or not running.
    """
    import joblib

    with ExitStack() as stack:
        started: Any = None
        try:
            with signals_blocked():
                stack.enter_context(_backend(workers))
                started = joblib.Parallel(return_as="generator_unordered", batch_size=1)(tasks)
            for each in started:  # noqa: UP028  # `yield from` would close it; joblib then warns of unused results
                yield each
        except (KeyboardInterrupt, GeneratorExit):
            if started is not None:  # joblib cancels its tasks, without that warning
                with suppress(KeyboardInterrupt, StopIteration):
                    started.throw(KeyboardInterrupt)
            if workers.backend == "loky":
                _stop_loky()
            raise


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Block what asks a command to end in this thread, and for good in what is started inside the `with` block.

    A terminal sends Ctrl-C, and a hang-up when it closes, to all its processes, `timeout` and systemd send SIGTERM to
    all. Worker processes started here never see them, from their first instruction on, as a signal mask is inherited;
    nor does loky's resource tracker, which prints tracebacks after it was killed and started again. This process sees
    them at the end of the block and ends them; if it is killed, they end by themselves (`_end_with`).
    """
    from multiprocessing import resource_tracker

    from joblib.externals.loky.backend import resource_tracker as loky_resource_tracker

    # These two start a process when workers are first started; they ignore the other two signals and may unblock them.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        resource_tracker.ensure_running()
        loky_resource_tracker.ensure_running()
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_with(parent: int) -> None:
    """In a worker: end it soon after the process that started it, however that ended; it would wait for work."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK_AFTER_S)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _stop_loky() -> None:
    """End loky's processes; its own threads would print that their work was taken away."""
    from joblib.externals.loky import get_reusable_executor

    usual, threading.excepthook = threading.excepthook, lambda _: None
    try:
        get_reusable_executor().shutdown(wait=True, kill_workers=True)
    finally:
        threading.excepthook = usual


@contextmanager
def _backend(workers: Workers) -> Iterator[None]:
    """Set joblib to the backend of that name. Raises UsageError if it is not installed or not running."""
    import joblib

    with ExitStack() as stack:
        try:
            if workers.backend == "dask":
                from dask.distributed import Client

                stack.enter_context(Client(workers.scheduler or None))  # type: ignore[no-untyped-call]
            elif workers.backend == "ray":
                import ray  # type: ignore[import-not-found, unused-ignore]
                from ray.util.joblib import register_ray  # type: ignore[import-not-found, unused-ignore]

                ray.init(address=workers.scheduler or None)
                stack.callback(ray.shutdown)
                register_ray()
            options: dict[str, Any] = {}
            if workers.backend == "loky":
                options = {"initializer": _end_with, "initargs": (os.getpid(),)}
            stack.enter_context(joblib.parallel_config(workers.backend, n_jobs=workers.jobs or -1, **options))
        except ImportError:
            raise UsageError(
                f"the {workers.backend} backend is not installed",
                todo=f"pip install 'hitlab[{workers.backend}]'",
            ) from None
        except (OSError, ValueError) as error:
            raise UsageError(f"no {workers.backend} backend: {error}", todo="is that scheduler running?") from None
        yield
