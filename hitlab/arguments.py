"""Checks what a Python caller hands over, before anything is computed or sent.

Each function takes the name of the field and its value and returns the value in the one type that the rest of hitlab
works with: numpy's numbers become Python's, which never overflow. Anything else is a UsageError of one line that names
the field. A value is shown only where it is a number, a short text or None: anything else may hold a secret.
"""

from collections.abc import Callable, Mapping
from math import isfinite
from numbers import Integral, Real
from operator import index
from pathlib import Path
from typing import Any, TypeVar

from hitlab.errors import UsageError

_MOST_BITS = 4096  # of a whole number: Python refuses to print one of more than 4,300 digits
_MOST_SHOWN = 40  # characters of a text

T = TypeVar("T")


def whole(name: str, value: Any, least: int | None = None) -> int:
    """A whole number of any integer type. No float is one, not even 64.0, and no bool.

    >>> whole("requests", 64, least=1)
    64

    Raises UsageError for anything else and for a number below `least`.
    """
    todo = "give a whole number" if least is None else f"give a whole number, {least} or more"
    if isinstance(value, bool):
        raise UsageError(f"`{name}` is {value}", todo=todo)
    try:
        number = index(value)
    except TypeError:
        raise UsageError(f"`{name}` is {_shown(value)}", todo=todo) from None
    if number.bit_length() > _MOST_BITS:
        raise UsageError(f"`{name}` is a number of {number.bit_length():,} bits", todo="give a smaller one")
    if least is not None and number < least:
        raise UsageError(f"`{name}` is {number}", todo=f"give {least} or more")
    return number


def whole_or_none(name: str, value: Any, least: int | None = None) -> int | None:
    """A whole number as `whole` takes it, or None for one that is left open."""
    return None if value is None else whole(name, value, least)


def number(name: str, value: Any, fits: Callable[[float], bool] = isfinite, todo: str = "give a number") -> float:
    """A finite number of any real type that `fits`; `todo` says in words which do. Raises UsageError for any other.

    >>> number("warmup", 0.5)
    0.5
    """
    try:
        found = float(value) if isinstance(value, Real) and not isinstance(value, bool) else None
    except OverflowError:
        found = None
    if found is None or not (isfinite(found) and fits(found)):
        raise UsageError(f"`{name}` is {_shown(value)}", todo=todo)
    return found


def text(name: str, value: Any, todo: str = "give a text") -> str:
    """A text, also an empty one. Raises UsageError for anything else."""
    if not isinstance(value, str):
        raise UsageError(f"`{name}` is {_shown(value)}", todo=todo)
    return value


def text_or_none(name: str, value: Any) -> str | None:
    """A text, or None for one that is left out."""
    return None if value is None else text(name, value)


def address(name: str, value: Any) -> str:
    """An address of a server. Raises UsageError for one that is empty, as an environment variable that was not set is.

    To take such a one for the default would empty the cache of somebody else's server.
    """
    todo = "give an address like http://127.0.0.1:8000, or leave it out"
    if not text(name, value, todo).strip():
        raise UsageError(f"`{name}` is empty", todo=todo)
    return str(value)


def flag(name: str, value: Any) -> bool:
    """True or False; a text like "no" is neither. Raises UsageError for anything else."""
    if not isinstance(value, bool):
        raise UsageError(f"`{name}` is {_shown(value)}", todo="give True or False")
    return value


def path(name: str, value: Any) -> Path:
    """A path in the file system. Raises UsageError for what is none or is empty."""
    todo = "give a path"
    try:
        found = Path(value)
    except TypeError:
        raise UsageError(f"`{name}` is {_shown(value)}", todo=todo) from None
    if not str(value).strip() or "\0" in str(found):
        raise UsageError(f"`{name}` is {_shown(str(value))}", todo=todo)
    return found


def several(name: str, value: Any, one: Callable[[str, Any], T], todo: str) -> list[T]:
    """The members of a list or anything else that holds some, each as `one` takes it; a text holds none."""
    try:
        if isinstance(value, str | bytes | bytearray | Mapping):
            raise TypeError
        members = list(value)
    except TypeError:
        raise UsageError(f"`{name}` is {_shown(value)}", todo=todo) from None
    return [one(name, each) for each in members]


def span(name: str, value: Any) -> tuple[int, int]:
    """The first and the last of at least two ids, 0 or more. Raises UsageError for anything else.

    >>> span("vocab_range", [1000, 31_999])
    (1000, 31999)
    """
    todo = "give the first and the last id, as (1000, 31999)"
    found = several(name, value, whole, todo)
    if len(found) != 2 or not 0 <= found[0] < found[1]:
        raise UsageError(f"`{name}` is {':'.join(map(str, found[:3])) or 'empty'}", todo=todo)
    return found[0], found[1]


def instance(name: str, value: Any, kind: type[T], todo: str) -> T:
    """An object of this class. Raises UsageError for anything else."""
    if not isinstance(value, kind):
        raise UsageError(f"`{name}` is {_shown(value)}", todo=todo)
    return value


def _shown(value: Any) -> str:
    """The value as a message shows it, on one line; of most types only the type."""
    if value is None or isinstance(value, bool):
        return str(value)
    if isinstance(value, Integral):
        bits = int(value).bit_length()
        return str(int(value)) if bits <= _MOST_BITS else f"a number of {bits:,} bits"
    if isinstance(value, float):
        return repr(float(value))
    if isinstance(value, str):
        return repr(value if len(value) <= _MOST_SHOWN else value[: _MOST_SHOWN - 3] + "...")
    return f"of the type {type(value).__name__}"
