"""What tests import from one another's side."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Ran:
    """What a command left behind."""

    status: int
    out: str
    err: str


Hitlab = Callable[..., Ran]
