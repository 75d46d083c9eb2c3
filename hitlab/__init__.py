"""Predict, measure and explain the prefix-cache hit rate of LLM serving engines.

For notebooks and scripts `import hitlab` offers what `__all__` lists (docs/python.md); each name is imported when it
is first used. Everything else is private by its place.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hitlab.api import hit_curve, measure, measure_async, predict, read_result, read_trace, replay, sweep
    from hitlab.errors import HitlabError

__all__ = [
    "HitlabError",
    "__version__",
    "hit_curve",
    "measure",
    "measure_async",
    "predict",
    "read_result",
    "read_trace",
    "replay",
    "sweep",
]

__version__ = "0.1.0"

_FAMILIES = {f"{__name__}.{family}" for family in ("engines", "workloads", "policies", "labs")}
_CHECKOUT = Path(__file__).resolve().parent.parent


class _BesideThePackage:
    """Finds the families (engines, workloads, policies, labs) of a checkout, where they stand beside this package.

    In a wheel they are inside it. Either way they import as hitlab.engines etc., and nothing else of the checkout
    does.
    """

    @staticmethod
    def find_spec(fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        return PathFinder.find_spec(fullname, [str(_CHECKOUT)], target) if fullname in _FAMILIES else None


if (_CHECKOUT / "engines" / "__init__.py").is_file():
    sys.meta_path.append(_BesideThePackage)


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("hitlab.errors" if name == "HitlabError" else "hitlab.api"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
