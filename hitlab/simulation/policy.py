"""What a file of policies/ offers, as types that mypy holds every such file against; finding and checking one.

The docstring of policies/ says what each name is for and how to write a policy.
"""

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from hitlab import families
from hitlab.errors import HitlabError, InputError, UsageError
from hitlab.simulation.curve import Curve
from hitlab.traces.trace import Trace

MAX_CAPACITY_BLOCKS = 2**53  # beyond it a ratio of the capacity is no longer exact

Option = int | float
Cache = Any  # a policy's own named tuple of arrays
Kernel = Callable[[Cache, NDArray[np.uint32], NDArray[np.int64], NDArray[np.int64]], None]


class CurveBuilder(Protocol):
    """Finds the hit tokens at every capacity in one pass over the trace, at the policy's default options."""

    def __call__(self, trace: Trace, /, *, engine_cap: bool) -> Curve:
        """The hit-ratio curve; `engine_cap` counts at most floor((L-1)/B)*B tokens of a request's L."""


class _AnyPolicy(Protocol):
    """What block policies and request policies have in common."""

    NAME: str
    VARIANT: str
    new: Callable[..., Cache]  # (trace, capacity_blocks, *, options with defaults)

    def size_blocks(self, cache: Cache, /) -> int:
        """Blocks resident now."""

    def invariant_violations(self, cache: Cache, /) -> list[str]:
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
_OFFERED = ("NAME", "VARIANT", "UNIT", "BOUNDED", "CURVE", "new", "size_blocks", "invariant_violations")
_HOW_TO = "docs/policies.md shows what a policy's file holds"


@dataclass(frozen=True, slots=True)
class Choice:
    """A policy with options, as the command line names it: `s3fifo`, `s3fifo:max_freq=1:small_ratio=0.2`."""

    label: str
    policy: str
    options: Mapping[str, Option]

    @classmethod
    def of(cls, text: str) -> "Choice":
        """Parse one; raises UsageError.

        >>> Choice.of("s3fifo:max_freq=1:small_ratio=0.2").options
        {'max_freq': 1, 'small_ratio': 0.2}
        """
        policy, *given = text.split(":")
        options: dict[str, Option] = {}
        for each in given:
            name, _, value = each.partition("=")
            try:
                options[name.replace("-", "_")] = float(value) if re.search(r"[.en]", value) else int(value)
            except ValueError:
                raise UsageError(f"{each!r} is no option of a policy", todo=f"write {policy}:NAME=NUMBER") from None
        return cls(text.lower(), policy.lower(), options)

    def load(self) -> Policy:
        """The policy itself. Raises UsageError for an unknown name."""
        return load_policy(self.policy)

    def check(self, capacity_blocks: int) -> dict[str, Option]:
        """All the policy's options, these over the defaults; raises UsageError as the function `check` does."""
        return check(self.load(), capacity_blocks, self.options)


def options_of(policy: Policy) -> dict[str, Option]:
    """The options a policy takes, with their defaults."""
    parameters = inspect.signature(policy.new).parameters.values()
    return {each.name: each.default for each in parameters if each.kind is each.KEYWORD_ONLY}


def check(policy: Policy, capacity_blocks: int, options: Mapping[str, Option] | None = None) -> dict[str, Option]:
    """All the policy's options, the given ones over the defaults, before any trace is read.

    Raises UsageError for a capacity or an option the policy cannot work with.
    """
    if not 1 <= capacity_blocks <= MAX_CAPACITY_BLOCKS:
        raise UsageError(f"a capacity of {capacity_blocks} blocks", todo=f"choose 1 to {MAX_CAPACITY_BLOCKS}")
    known = options_of(policy)
    for name, value in (options or {}).items():
        if name not in known:
            takes = f"takes {', '.join(known)}" if known else "takes none"
            raise UsageError(f"{policy.NAME} has no option {name}", todo=f"it {takes}")
        if isinstance(known[name], int) and not isinstance(value, int):
            raise UsageError(f"{policy.NAME}'s {name} is {value}", todo="give a whole number")
    effective = known | dict(options or {})
    try:
        policy.new(Trace.of([], 1), capacity_blocks, **effective)
    except HitlabError:
        raise
    except Exception as error:  # of the file's author
        what = f"`new` failed: {type(error).__name__}: {error}"
        raise InputError(what, where=str(policy.__file__), todo=_HOW_TO) from error
    return effective


def load_policy(name: str) -> Policy:
    """The policy of this name, in any case.

    Raises UsageError for an unknown one, InputError for a file that does not offer what a policy has to.
    """
    module = families.load("policies", name)
    rules = ("serve",) if getattr(module, "UNIT", "") == "request" else ("resident", "access")
    missing = [each for each in (*_OFFERED, *rules) if not hasattr(module, each)]
    if missing:
        raise InputError(f"offers no {' and no '.join(missing)}", where=str(module.__file__), todo=_HOW_TO)
    return cast(Policy, module)
