"""Members of a family (engines, workloads, breaks, policies, labs) are the files of its folder.

A name is a file name with `-` for `_`; a leading digit is spelled out with a leading `_` in the file
(`_2q.py` is the policy `2q`). Listing names imports nothing, so `--help` stays fast. A member is imported when it is
first asked for, and comes as the protocol or the object that its family promises.
"""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, cast

from hitlab.errors import UsageError

if TYPE_CHECKING:
    from hitlab.client.dialect import EngineApi
    from hitlab.experiment.lab import Lab
    from hitlab.experiment.steps import Break, WorkloadFile
    from hitlab.servers.cpu.recipe import CpuRecipe
    from hitlab.servers.emulated.dialect import EmulatedApi
    from hitlab.simulation.policy import Policy

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


def engine(name: str) -> "EngineApi":
    """What a client needs to know of this engine. Raises UsageError for an unknown name, as all of these do."""
    return cast("EngineApi", load("engines", name))


def emulated_engine(name: str) -> "EmulatedApi":
    """How this engine's emulated server answers."""
    return cast("EmulatedApi", load("engines.emulated", name))


def cpu_recipe(name: str) -> "CpuRecipe":
    """How this engine is installed and started on a machine without a GPU."""
    return cast("CpuRecipe", load("engines.cpu", name).CPU)


def workload(name: str) -> "WorkloadFile":
    """The builder of this workload's prompts, and the closed form of its phases."""
    return cast("WorkloadFile", load("workloads", name))


def break_mode(name: str) -> "Break":
    """This way to break a cache."""
    return cast("Break", load("workloads.breaks", name))


def policy(name: str) -> "Policy":
    """This eviction policy."""
    return cast("Policy", load("policies", name))


def lab(name: str) -> "Lab":
    """This lab."""
    return cast("Lab", load("labs", name).LAB)


def names(family: str) -> list[str]:
    """Names of the members found in the family's folder ("engines", "workloads.breaks", ...), sorted."""
    spec = find_spec(f"hitlab.{family}")
    assert spec is not None and spec.submodule_search_locations, f"hitlab.{family} is not a folder"
    files = Path(next(iter(spec.submodule_search_locations))).glob("*.py")
    return sorted(_name(file.stem) for file in files if file.stem != "__init__")


def load(family: str, name: str) -> ModuleType:
    """The member's module, imported on first use; the name may be in any case. Raises UsageError for an unknown one."""
    known, stem = names(family), name.lower().replace("-", "_")
    if name.lower() not in known:
        raise UsageError(f"no {FAMILIES[family]} named {name!r}", todo=f"choose from {', '.join(known)}")
    return import_module(f"hitlab.{family}.{'_' + stem if stem[0].isdigit() else stem}")


def _name(stem: str) -> str:
    return stem.removeprefix("_").replace("_", "-")
