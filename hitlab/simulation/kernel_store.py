"""Compiled kernels on disk, so that a rule is compiled once and loaded in later runs."""

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from hitlab.files import writable_cache_folder


def kept(compiled: Any, folder: Path | None) -> Any:
    """The same numba function, which from now on is loaded from the folder or saved there; None keeps nothing."""
    from numba.core import config

    settings: Any = config
    debugging = settings.DISABLE_JIT or settings.BOUNDSCHECK  # numba would keep that kernel under the same key
    if folder is not None and not debugging:
        # Numba would put it beside the source, which may be read-only, and takes notice only of that one
        # file's changes, although the code of several is in the kernel: hence a folder for each state of them.
        users_own = settings.CACHE_DIR
        settings.CACHE_DIR = str(folder)
        try:
            compiled.enable_caching()
        finally:
            settings.CACHE_DIR = users_own
    return compiled


def folder_of(name: str, *sources: str) -> Path | None:
    """The folder for a kernel made of the code in these files as they are now; None if nothing can be kept.

    It is below $NUMBA_CACHE_DIR if that is set, otherwise below the user's cache directory.
    """
    import numba

    digest = hashlib.sha256(numba.__version__.encode())
    for source in sources:
        digest.update(Path(source).read_bytes())
    return writable_cache_folder(f"kernels/{name}-{digest.hexdigest()[:16]}", "NUMBA_CACHE_DIR")


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


@contextmanager
def undisturbed(hold: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """Enter `hold()` whenever numba compiles or loads a kernel in the main thread inside the `with` block.

    For a caller whose signal handlers raise: numba and LLVM call Python functions from C, where an exception is lost,
    and try things of which any exception means "no". `hold` puts such an exception off to its end.
    """
    from numba.core import event

    class Listener(event.Listener):
        def __init__(self) -> None:
            self.held: list[AbstractContextManager[None]] = []

        def on_start(self, event: object) -> None:
            if threading.current_thread() is threading.main_thread():
                self.held.append(hold())
                self.held[-1].__enter__()

        def on_end(self, event: object) -> None:
            if self.held and threading.current_thread() is threading.main_thread():
                self.held.pop().__exit__(None, None, None)

    # Numba takes this lock to compile and to load; only a kernel that is called again needs neither.
    with event.install_listener("numba:compiler_lock", Listener()):
        yield
