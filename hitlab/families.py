"""Members of a family (engines, workloads, policies, labs) are the files of its folder.

A name is a file name with `-` for `_`; a leading digit is spelled out with a leading `_` in the file
(`_2q.py` is the policy `2q`). Listing names imports nothing, so `--help` stays fast.
"""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from hitlab.errors import UsageError


def names(family: str) -> list[str]:
    """Names of the members found in the family's folder ("engines", "workloads.breaks", ...), sorted."""
    spec = find_spec(f"hitlab.{family}")
    assert spec is not None and spec.submodule_search_locations, f"hitlab.{family} is not a folder"
    files = Path(next(iter(spec.submodule_search_locations))).glob("*.py")
    return sorted(_name(file.stem) for file in files if file.stem != "__init__")


def load(family: str, name: str) -> ModuleType:
    """The member's module, imported on first use. Raises UsageError for an unknown name."""
    known = names(family)
    if name not in known:
        singular = family.rpartition(".")[2].removesuffix("s").replace("policie", "policy")
        raise UsageError(f"no {singular} named {name!r}", todo=f"choose from {', '.join(known)}")
    stem = name.replace("-", "_")
    return import_module(f"hitlab.{family}.{'_' + stem if stem[0].isdigit() else stem}")


def _name(stem: str) -> str:
    return stem.removeprefix("_").replace("_", "-")
