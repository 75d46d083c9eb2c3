"""What a file of policies/ offers, as types that mypy holds every such file against.

The docstring of policies/ says what each name is for and how to write a policy.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from hitlab.traces.trace import Trace

if TYPE_CHECKING:  # it imports the compiler, which listing and checking policies does not need
    from hitlab.simulation.hit_curve import Curve

Option = int | float
Cache = Any  # a policy's own named tuple of arrays
Kernel = Callable[[Cache, NDArray[np.uint32], NDArray[np.int64], NDArray[np.int64]], None]


class CurveBuilder(Protocol):
    """Finds the hit tokens at every capacity in one pass over the trace, at the policy's default options."""

    def __call__(self, trace: Trace, /, *, engine_cap: bool) -> "Curve":
        """The hit-ratio curve; `engine_cap` counts at most floor((L-1)/B)*B tokens of a request's L."""


class _AnyPolicy(Protocol):
    """What block policies and request policies have in common."""

    NAME: str
    VARIANT: str
    new: Callable[..., Cache]  # (trace, capacity_blocks, *, options with defaults)

    def size_blocks(self, cache: Cache, /) -> int:
        """Blocks resident now."""

    def faults(self, cache: Cache, /) -> list[str]:
        """What is wrong with the arrays, in sentences; empty if all is well."""

    @property
    def __file__(self) -> str | None: ...

    @property
    def BOUNDED(self) -> bool:  # noqa: N802
        """Whether the capacity limits the cache; False for an upper bound that ignores it."""

    @property
    def CURVE(self) -> CurveBuilder | None:  # noqa: N802
        """The policy's own hit-ratio curve; None if each capacity takes a replay."""

    def __hash__(self) -> int: ...


class BlockPolicy(_AnyPolicy, Protocol):
    """A policy that is shown one block after another."""

    @property
    def UNIT(self) -> Literal["block"]:  # noqa: N802
        """Tells it from a request policy."""

    def resident(self, cache: Cache, block: int, /) -> bool:
        """Whether the block would be a hit now."""

    def access(self, cache: Cache, block: int, /) -> None:
        """Use the block: bring it in if it is not resident, evicting others as the policy says."""


class RequestPolicy(_AnyPolicy, Protocol):
    """A policy that is shown one request after another, as an engine's cache is."""

    @property
    def UNIT(self) -> Literal["request"]:  # noqa: N802
        """Tells it from a block policy."""

    def serve(self, cache: Cache, request: int, first: int, end: int, /) -> int:
        """Serve the request whose blocks are the references `first` to before `end`; its leading blocks hit."""


Policy = BlockPolicy | RequestPolicy
