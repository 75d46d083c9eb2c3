"""A trace on disk in the form it has in memory, so that any number of processes can map one copy."""

from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from hitlab.traces.trace import Trace

_COLUMNS = ("blocks", "starts", "prompt_tokens")


def save(trace: Trace, folder: Path) -> None:
    """Write the arrays and sizes that replays need into an existing folder."""
    for name in _COLUMNS:
        np.save(folder / f"{name}.npy", getattr(trace, name))
    (folder / "sizes").write_text(f"{trace.block_tokens} {trace.distinct_blocks}")


@lru_cache(maxsize=1)
def load(folder: str) -> Trace:
    """The trace saved in this folder, memory-mapped; the last one loaded is kept."""
    # asarray: a memory map is an array type of its own, for which kernels would be compiled anew
    blocks, starts, prompt_tokens = (
        np.asarray(np.load(Path(folder) / f"{name}.npy", mmap_mode="r")) for name in _COLUMNS
    )
    block_tokens, distinct_blocks = map(int, (Path(folder) / "sizes").read_text().split())
    return Trace(block_tokens, blocks, starts, prompt_tokens, distinct_blocks)


def digest(trace: Trace) -> str:
    """A hash of the trace's block size, blocks and prompt tokens, in hexadecimal; equal for equal traces only."""
    hashed = blake2b(str(trace.block_tokens).encode(), digest_size=16)
    for name in _COLUMNS:
        column: Any = getattr(trace, name)
        hashed.update(column.view(np.uint8))
    return hashed.hexdigest()
