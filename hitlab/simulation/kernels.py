"""Policies by name, and their compiled kernels, kept on disk between runs."""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, cast

from hitlab.files import writable_cache_folder
from hitlab.simulation import hit_curve, replay, structures
from hitlab.simulation.policy import Kernel, Policy


@cache
def kernel(policy: Policy) -> Kernel:
    """The policy's kernel, from disk if it was compiled before; the first call of it loads or compiles."""
    return cast(Kernel, _kept(replay.compiled(policy), folder(policy)))


@cache
def curve_kernel() -> hit_curve.Kernel:
    """The kernel of LRU's curve, kept in the same way."""
    return cast(
        hit_curve.Kernel,
        _kept(hit_curve.compiled(), _folder("curve", str(hit_curve.__file__), str(structures.__file__))),
    )


def _kept(compiled: Any, kept_in: Path | None) -> Any:
    from numba.core import config

    settings: Any = config
    debugging = settings.DISABLE_JIT or settings.BOUNDSCHECK  # numba would keep that kernel under the same key
    if kept_in is not None and not debugging:
        # Numba would put it beside the source, which may be read-only, and takes notice only of that one
        # file's changes, although the code of several is in the kernel: hence a folder for each state of them.
        users_own = settings.CACHE_DIR
        settings.CACHE_DIR = str(kept_in)
        try:
            compiled.enable_caching()
        finally:
            settings.CACHE_DIR = users_own
    return compiled


@contextmanager
def announced(announce: Callable[[], None]) -> Iterator[None]:
    """Call `announce` once, before the first compilation inside the `with` block, if there is one."""
    from numba.core import event

    class Listener(event.Listener):
        waiting = True

        def on_start(self, event: object) -> None:
            if self.waiting:
                self.waiting = False
                announce()

        def on_end(self, event: object) -> None:
            pass

    with event.install_listener("numba:compile", Listener()):
        yield


@cache
def folder(policy: Policy) -> Path | None:
    """Where this policy's kernel is kept; None if nothing can be kept."""
    return _folder(policy.NAME.lower(), *sources(policy))


def sources(policy: Policy) -> tuple[str, ...]:
    """The files whose code is in the policy's kernel."""
    return policy.__file__, str(replay.__file__), str(structures.__file__)


def _folder(name: str, *sources: str) -> Path | None:
    import numba

    digest = hashlib.sha256(numba.__version__.encode())
    for source in sources:
        digest.update(Path(source).read_bytes())
    return writable_cache_folder(f"kernels/{name}-{digest.hexdigest()[:16]}", "NUMBA_CACHE_DIR")
