"""Who is told how far the start of a server has come; what is shown of it is the caller's affair."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol


class Progress(Protocol):
    """Gets to know what takes long: installing an engine, and starting it."""

    def say(self, text: str) -> None:
        """Take one line for the user, to be shown as it is: it may hold paths to copy."""

    def step(self, what: str) -> AbstractContextManager[Callable[[str], None]]:
        """Take what is being done until the block ends, and give a function that takes details."""


class Silent:
    """Tells nobody."""

    def say(self, text: str) -> None:
        """Show nothing."""

    def step(self, what: str) -> AbstractContextManager[Callable[[str], None]]:
        """Show nothing."""
        return nullcontext(lambda detail: None)
