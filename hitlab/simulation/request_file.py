"""Writes the hit tokens of each request of a replay to a file: JSON Lines or Parquet, by the file's ending."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from hitlab.errors import UsageError
from hitlab.files import Output, beginning, ending, replacing
from hitlab.simulation.replay import Replay

_COLUMNS = ("hit_tokens", "prompt_tokens")
_SWEPT = ("policy", "capacity_blocks")  # the columns before them in the file of a sweep
_MARK = {b"hitlab": b"requests"}  # in the metadata of a Parquet file
_LINE_BYTES = 4096  # more than a row takes
_WHOLE_BYTES = 64 * 1024**2  # a second's reading
_LINE = re.compile(
    rb'\{(?:"policy":"(?:[^"\\\x00-\x1f]|\\.)+","capacity_blocks":[1-9]\d*,)?"hit_tokens":\d+,"prompt_tokens":\d+\}\n'
)

Write = Callable[[Replay, dict[str, Any]], None]


def output(path: Path) -> Output:
    """The file as an output that is still to be claimed.

    Raises UsageError for an ending that means no format, or one that needs what is not installed.
    """
    if path.suffix not in _WRITERS:
        raise UsageError(f"{path} ends in neither", todo=f"name a file that ends in {' or '.join(_WRITERS)}")
    if path.suffix == ".parquet":
        try:
            import pyarrow  # noqa: F401
        except ImportError:
            raise UsageError(
                "Parquet needs pyarrow", todo="pip install 'hitlab[parquet]', or name a .jsonl file"
            ) from None
    return Output("--requests-out", path, "a file of requests", wrote)


@contextmanager
def opened(path: Path) -> Iterator[Write]:
    """Yield a function of a replay and extra columns, which appends a row a request that begins with those columns.

    The file is there, whole, when the block ends without an error; until then an older one stays as it was.
    Raises InputError when the file cannot be written.
    """
    with replacing(path) as file, _WRITERS[path.suffix](file) as write:
        yield write


def wrote(path: Path) -> bool:
    """Whether this file holds replayed requests as `opened` writes them. Raises OSError, MsgspecError, ArrowInvalid.

    Of JSON Lines each line must be a row; of a file that is too large to be read at once the first and the last line
    tell. Of Parquet it is the mark in the file's metadata.
    """
    if path.suffix == ".parquet":
        from pyarrow import parquet

        return _MARK.items() <= (parquet.read_schema(path).metadata or {}).items()
    if path.stat().st_size <= _WHOLE_BYTES:
        with path.open("rb") as file:
            return all(map(_LINE.fullmatch, file))
    first, end, _ = beginning(path, _LINE_BYTES).partition(b"\n")
    *_, last, rest = [b"", *ending(path, _LINE_BYTES).split(b"\n")]
    return not rest and bool(_LINE.fullmatch(first + end) and _LINE.fullmatch(last + b"\n"))


def _columns(replay: Replay) -> dict[str, Any]:
    return dict(zip(_COLUMNS, (replay.hit_tokens, replay.prompt_tokens), strict=True))


@contextmanager
def _lines(file: BinaryIO) -> Iterator[Write]:
    import msgspec

    encode = msgspec.json.Encoder().encode

    def write(replay: Replay, same: dict[str, Any]) -> None:
        columns = _columns(replay)
        for row in zip(*(column.tolist() for column in columns.values()), strict=True):
            file.write(encode(same | dict(zip(columns, row, strict=True))) + b"\n")

    yield write


@contextmanager
def _parquet(file: BinaryIO) -> Iterator[Write]:
    import pyarrow
    from pyarrow import parquet

    writers: list[Any] = []

    def write(replay: Replay, same: dict[str, Any]) -> None:
        requests = replay.hit_tokens.size
        table = pyarrow.table({name: np.repeat(value, requests) for name, value in same.items()} | _columns(replay))
        if not writers:
            writers.append(parquet.ParquetWriter(file, table.schema.with_metadata(_MARK)))
        writers[0].write_table(table.replace_schema_metadata(_MARK))

    try:
        yield write
    finally:
        for writer in writers:
            writer.close()


_WRITERS = {".jsonl": _lines, ".parquet": _parquet}
