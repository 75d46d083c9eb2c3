"""The points of a sweep as a CSV file: one row a point, all rates, and the memory where a block's bytes are known."""

import csv
from collections.abc import Sequence
from io import StringIO
from pathlib import Path

import msgspec

from hitlab import families
from hitlab.files import replace
from hitlab.simulation.policy import Choice
from hitlab.simulation.sweep import RATES, Point

MEMORY = "memory_bytes"
LABEL = "policy"
_ROUNDING = 1e-9  # of a mean of rates that are all 1


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
        header = file.readline(4096).rstrip("\r\n").split(",")
        if header not in (_columns(), [*_columns(), MEMORY]):
            return False
        return all(_is_point(dict(zip(header, row, strict=True))) for row in csv.reader(file, strict=True))


def _is_point(row: dict[str, str]) -> bool:
    """Whether a row is one that `write` writes. Raises UsageError or ValueError for some that are not."""
    label = row.pop(LABEL)
    numbers = {name: float(cell) if name in RATES else int(cell) for name, cell in row.items() if cell}
    # A rate is empty where no tokens were asked for, and only there.
    wanted = {name for name in row if name not in RATES or numbers.get(f"{name.partition('_')[0]}_prompt_tokens")}
    choice = Choice.of(label)
    return (
        label == choice.label
        and choice.policy in families.names("policies")
        and numbers.keys() == wanted
        and all(str(number) == row[name] and number >= 0 for name, number in numbers.items())
        and all(numbers[name] < 1 + _ROUNDING for name in RATES if name in numbers)
        and numbers["capacity_blocks"] > 0
        and numbers.get(MEMORY, 0) % numbers["capacity_blocks"] == 0
    )


def _columns() -> list[str]:
    return list(Point.__struct_fields__)
