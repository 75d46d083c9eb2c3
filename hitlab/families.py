"""Members of a family (engines, workloads, breaks, policies, labs) are the files of its folder.

A name is a file's name in lower case with `-` for `_`; a leading digit is spelled out with a leading `_` in the file
(`_2q.py` is the policy `2q`). A file that Python can't import by its name, as my-policy.py, is no member. Listing names
imports nothing, so `--help` stays fast; a member is imported when it is first asked for. Beside each family's protocol
stands the function that loads a member as that: load_engine, load_policy, ...
"""

import traceback
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from hitlab.errors import InputError, UsageError

# Each family's folder, and what one of its members is called.
FAMILIES = {
    "engines": "engine",
    "engines.emulated": "emulated engine",
    "engines.cpu": "engine for a CPU",
    "workloads": "workload",
    "workloads.breaks": "break",
    "policies": "policy",
    "labs": "lab",
}


def names(family: str) -> list[str]:
    """Names of the members found in the family's folder ("engines", "workloads.breaks", ...), sorted."""
    return sorted(_files(family))


def load(family: str, name: str) -> ModuleType:
    """The member's module, imported on first use; the name may be in any case.

    Raises UsageError for an unknown name, InputError for a file that can't be imported.
    """
    files = _files(family)
    file = files.get(name.lower())
    if file is None:
        raise UsageError(f"no {FAMILIES[family]} named {name!r}", todo=f"choose from {', '.join(sorted(files))}")
    try:
        return import_module(f"hitlab.{family}.{file.stem}")
    except Exception as error:
        raise InputError(f"can't be imported: {_reason(error)}", where=str(file), todo="correct the file") from error


def _files(family: str) -> dict[str, Path]:
    """The family's files by their members' names."""
    spec = find_spec(f"hitlab.{family}")
    assert spec is not None and spec.submodule_search_locations, f"hitlab.{family} is not a folder"
    files = (file for folder in spec.submodule_search_locations for file in Path(folder).glob("*.py"))
    return {_name(file.stem): file for file in files if file.stem.isidentifier() and file.stem != "__init__"}


def _name(stem: str) -> str:
    return (stem[1:] if stem[:1] == "_" and stem[1:2].isdigit() else stem).replace("_", "-").lower()


def _reason(error: Exception) -> str:
    """What went wrong in one line, with the line of the file if there is one."""
    if isinstance(error, SyntaxError):
        return f"{error.msg} (line {error.lineno})"
    line = traceback.extract_tb(error.__traceback__)[-1].lineno
    return f"{type(error).__name__}: {error} (line {line})"
