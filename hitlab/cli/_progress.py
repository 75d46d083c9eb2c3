"""What takes long, shown on stderr: a bar for a command's own work, a spinner for a server that starts."""

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


class StartProgress:
    """How far the start of a server has come (hitlab.servers.progress.Progress)."""

    def say(self, text: str) -> None:
        """Print a line, unwrapped, so that paths in it can be copied."""
        from hitlab.cli._options import console

        console(stderr=True).print(text, soft_wrap=True)

    @contextmanager
    def step(self, what: str) -> Iterator[Callable[[str], None]]:
        """Show what is being done, for how long, and a detail; afterwards (or on a plain stream) one line."""
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.table import Column

        from hitlab.cli._options import console

        began = time.monotonic()
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            TimeElapsedColumn(),
            TextColumn("{task.fields[detail]}", style="dim", markup=False, table_column=Column(no_wrap=True, ratio=1)),
        )
        shown_on = console(stderr=True)
        hidden = not shown_on.is_terminal
        with Progress(*columns, console=shown_on, transient=True, expand=True, disable=hidden) as bar:
            task = bar.add_task(what, total=None, detail="")
            yield lambda detail: bar.update(task, detail=detail)
        self.say(f"{what}: {time.monotonic() - began:.0f} s")
