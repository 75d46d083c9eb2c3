"""What takes long, shown on stderr: a bar for a command's own work, one for a run's requests, a starting server."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Column

from hitlab.cli import _options as opt
from hitlab.cli._format import percent
from hitlab.flags import in_flags

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
    bar = open_bars.enter_context(_shown(Console(stderr=True), *Progress.get_default_columns()))
    task = bar.add_task(what, total=None)
    return lambda done, total: bar.update(task, completed=done, total=max(done, total) or None)


class RunProgress:
    """Shows a run (hitlab.measurement.run.Watch): the step, its requests, the tokens so far and their hit rate.

    The hit rate is the one that responses report; "-" where they report none.
    """

    def __init__(self, console: Console) -> None:
        self._bar = _shown(
            console,
            TextColumn("{task.description:<10}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[tokens]:>12,} tokens  hit rate {task.fields[rate]}"),
            TimeElapsedColumn(),
        )
        self._task = self._bar.add_task("connecting", total=None, tokens=0, rate="-")

    def __enter__(self) -> "RunProgress":
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def step(self, name: str, requests: int) -> None:
        """Begin a step of so many requests; 0 is a number that is not known."""
        self._tokens = 0
        self._cached: int | None = 0
        self._bar.reset(self._task, total=requests or None, description=name, tokens=0, rate="-")

    def answered(self, prompt_tokens: int, cached_tokens: int | None) -> None:
        """Count one response, and the cached tokens that it reports, if it does."""
        self._tokens += prompt_tokens
        self._cached = None if cached_tokens is None or self._cached is None else self._cached + cached_tokens
        rate = None if self._cached is None else self._cached / self._tokens
        self._bar.update(self._task, advance=1, tokens=self._tokens, rate=percent(rate, 2))


class StartProgress:
    """Shows how far the start of a server has come (hitlab.servers.progress.Progress)."""

    def say(self, text: str) -> None:
        """Print a line, unwrapped, so that paths in it can be copied."""
        opt.console(stderr=True).print(in_flags(text), soft_wrap=True)

    @contextmanager
    def step(self, what: str) -> Iterator[Callable[[str], None]]:
        """Show what is being done, for how long, and a detail; afterwards (or on a plain stream) one line."""
        began = time.monotonic()
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            TimeElapsedColumn(),
            TextColumn("{task.fields[detail]}", style="dim", markup=False, table_column=Column(no_wrap=True, ratio=1)),
        )
        with _shown(opt.console(stderr=True), *columns, expand=True) as bar:
            task = bar.add_task(what, total=None, detail="")
            yield lambda detail: bar.update(task, detail=detail)
        self.say(f"{what}: {time.monotonic() - began:.0f} s")


def _shown(console: Console, *columns: ProgressColumn, expand: bool = False) -> Progress:
    """A bar of these columns, which is gone when it ends, and nothing where stderr is no terminal."""
    return Progress(*columns, console=console, transient=True, expand=expand, disable=not console.is_terminal)
