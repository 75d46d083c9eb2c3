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

# Seconds after which whatever a test waits for is held to hang. No test takes nearly so long on a busy machine.
HANGS_S = 600.0
