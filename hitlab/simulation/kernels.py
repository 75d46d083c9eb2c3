"""Each policy's compiled kernel, kept on disk between runs."""

from functools import cache
from pathlib import Path
from typing import cast

from hitlab.simulation import kernel_store, replay, structures
from hitlab.simulation.policy import Kernel, Policy


@cache
def kernel(policy: Policy) -> Kernel:
    """The policy's kernel, from disk if it was compiled before; the first call of it loads or compiles."""
    return cast(Kernel, kernel_store.kept(replay.compiled(policy), folder(policy)))


@cache
def folder(policy: Policy) -> Path | None:
    """Where this policy's kernel is kept; None if nothing can be kept."""
    return kernel_store.folder_of(policy.NAME.lower(), *sources(policy))


def sources(policy: Policy) -> tuple[str, ...]:
    """The files whose code is in the policy's kernel."""
    assert policy.__file__ is not None, f"{policy.NAME} was not loaded from a file"
    return policy.__file__, str(replay.__file__), str(structures.__file__)
