"""What a file of policies/ offers."""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Option = int | float
Cache = Any  # a policy's own named tuple of arrays
Kernel = Callable[[Cache, NDArray[np.uint32], NDArray[np.int64], NDArray[np.int64]], None]


class Policy(Protocol):
    """What every file in policies/ holds; its folder's docstring says what each part is for."""

    NAME: str
    VARIANT: str
    __file__: str
    new: Callable[..., Cache]
    size_blocks: Callable[[Cache], int]
    faults: Callable[[Cache], list[str]]

    def __hash__(self) -> int: ...


class BlockPolicy(Policy, Protocol):
    """A policy that sees one block after another."""

    resident: Callable[[Cache, int], bool]
    access: Callable[[Cache, int], None]


class RequestPolicy(Policy, Protocol):
    """A policy that sees one request after another, as an engine's cache does."""

    serve: Callable[[Cache, int, int, int], int]
