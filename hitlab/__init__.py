"""Predict, measure and explain the prefix-cache hit rate of LLM serving engines."""

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

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
