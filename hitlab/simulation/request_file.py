"""Writes the hit tokens of each request of a replay to a file: JSON Lines or Parquet, by the file's ending."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from hitlab.errors import InputError, UsageError
from hitlab.simulation.replay import Replay

Write = Callable[[Replay, dict[str, Any]], None]


def check(path: Path) -> None:
    """Raise UsageError if the path ends in neither .jsonl nor .parquet, or if Parquet's library is not installed."""
    if path.suffix not in _WRITERS:
        raise UsageError(f"{path} ends in neither", todo=f"name a file that ends in {' or '.join(_WRITERS)}")
    if path.suffix == ".parquet":
        try:
            import pyarrow  # noqa: F401
        except ImportError:
            raise UsageError(
                "Parquet needs pyarrow", todo="pip install 'hitlab[parquet]', or name a .jsonl file"
            ) from None


@contextmanager
def opened(path: Path) -> Iterator[Write]:
    """Yield a function of a replay and extra columns, which appends a row a request that begins with those columns.

    Raises InputError when the file cannot be written.
    """
    try:
        with _WRITERS[path.suffix](path) as write:
            yield write
    except OSError as error:
        raise InputError(f"requests can't be written: {error.strerror or error}", where=str(path)) from None


def _columns(replay: Replay) -> dict[str, Any]:
    return {"hit_tokens": replay.hit_tokens, "prompt_tokens": replay.prompt_tokens}


@contextmanager
def _lines(path: Path) -> Iterator[Write]:
    import msgspec

    encode = msgspec.json.Encoder().encode
    with path.open("wb") as file:

        def write(replay: Replay, same: dict[str, Any]) -> None:
            columns = _columns(replay)
            for row in zip(*(column.tolist() for column in columns.values()), strict=True):
                file.write(encode(same | dict(zip(columns, row, strict=True))) + b"\n")

        yield write


@contextmanager
def _parquet(path: Path) -> Iterator[Write]:
    import pyarrow
    from pyarrow import parquet

    writers: list[Any] = []

    def write(replay: Replay, same: dict[str, Any]) -> None:
        requests = replay.hit_tokens.size
        table = pyarrow.table({name: np.repeat(value, requests) for name, value in same.items()} | _columns(replay))
        if not writers:
            writers.append(parquet.ParquetWriter(path, table.schema))
        writers[0].write_table(table)

    try:
        yield write
    finally:
        for writer in writers:
            writer.close()


_WRITERS = {".jsonl": _lines, ".parquet": _parquet}
