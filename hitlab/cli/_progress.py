"""A progress bar on stderr for what turns out to take long; nothing for the rest."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

QUIET_SECONDS = 2.0


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Yield a function that takes (done, total); a bar appears if it is still called after two seconds."""
    began = time.monotonic()
    with ExitStack() as open_bars:
        advance: Callable[[int, int], None] | None = None

        def report(done: int, total: int) -> None:
            nonlocal advance
            if advance is None and time.monotonic() - began > QUIET_SECONDS:
                advance = _bar(what, open_bars)
            if advance is not None:
                advance(done, total)

        yield report


def _bar(what: str, open_bars: ExitStack) -> Callable[[int, int], None]:
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    bar = open_bars.enter_context(Progress(console=console, transient=True, disable=not console.is_terminal))
    task = bar.add_task(what, total=None)
    return lambda done, total: bar.update(task, completed=done, total=max(done, total) or None)
