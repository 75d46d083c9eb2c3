"""The points of a sweep as a CSV file: one row a point, all rates, and the memory where a block's bytes are known."""

import csv
from collections.abc import Sequence
from io import StringIO
from pathlib import Path

import msgspec

from hitlab.files import replace
from hitlab.simulation.sweep import Point

MEMORY = "memory_bytes"


def write(points: Sequence[Point], path: Path, block_bytes: int | None) -> None:
    """Write the points. Raises InputError, with the old file as it was."""
    text = StringIO(newline="")
    rows = csv.writer(text)
    rows.writerow([*_columns(), *([MEMORY] if block_bytes else [])])
    for each in points:
        memory = [each.capacity_blocks * block_bytes] if block_bytes else []
        rows.writerow([*msgspec.structs.astuple(each), *memory])
    replace(path, text.getvalue().encode())


def wrote(path: Path) -> bool:
    """Whether this file holds points, as `write` leaves them, and no more. Raises OSError, ValueError, csv.Error."""
    with path.open(newline="", encoding="utf-8") as file:
        # A file of anything else may be one line of gigabytes.
        if file.readline(4096).rstrip("\r\n").split(",") not in (_columns(), [*_columns(), MEMORY]):
            return False
        file.seek(0)
        first, *points = csv.reader(file, strict=True)
        return all(len(row) == len(first) and all(map(_is_number, row[1:])) for row in points)


def _columns() -> list[str]:
    return list(Point.__struct_fields__)


def _is_number(cell: str) -> bool:
    """Whether a cell is a number, or empty as a rate of nothing is."""
    try:
        return not cell or float(cell) >= 0
    except ValueError:
        return False
