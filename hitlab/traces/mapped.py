"""A trace on disk as it is in memory, so that any number of processes share one copy."""

from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from hitlab.traces.trace import Trace

_COLUMNS = ("blocks", "starts", "prompt_tokens")


def save(trace: Trace, folder: Path) -> None:
    """Write what replays need into an existing folder."""
    for name in _COLUMNS:
        np.save(folder / f"{name}.npy", getattr(trace, name))
    (folder / "sizes").write_text(f"{trace.block_tokens} {trace.distinct_blocks}")


@lru_cache(maxsize=1)
def load(folder: str) -> Trace:
    """The trace, memory-mapped; once a process."""
    # asarray: a memory map is an array type of its own, for which kernels would be compiled anew
    blocks, starts, prompt_tokens = (
        np.asarray(np.load(Path(folder) / f"{name}.npy", mmap_mode="r")) for name in _COLUMNS
    )
    block_tokens, distinct_blocks = map(int, (Path(folder) / "sizes").read_text().split())
    return Trace(block_tokens, blocks, starts, prompt_tokens, distinct_blocks)


def digest(trace: Trace) -> str:
    """What tells this trace from any other one."""
    hashed = blake2b(str(trace.block_tokens).encode(), digest_size=16)
    for name in _COLUMNS:
        column: Any = getattr(trace, name)
        hashed.update(column.view(np.uint8))
    return hashed.hexdigest()
