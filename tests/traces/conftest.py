"""What the tests of traces may ask for."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hitlab.traces.reader import read_trace
from hitlab.traces.trace import Trace


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., Trace]:
    def write_and_read(content: bytes, block_tokens: int = 512, **options: Any) -> Trace:
        path = tmp_path / "trace"
        path.write_bytes(content)
        return read_trace(path, block_tokens, **options)

    return write_and_read
