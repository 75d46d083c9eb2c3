"""Tables on a terminal: they give up whole columns where it is narrow, and never part of a number."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

Rows = Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table; where there is no room those with the highest `spare` go first, those with 0 never.

    Words may be wrapped (`wraps`), numbers stay whole.
    """

    heading: str
    left: bool = False
    spare: int = 0
    wraps: bool = False


def fitted(
    columns: Sequence[Column],
    rows: Rows,
    width: int,
    *,
    gap: int = 2,
    indent: int = 1,
    title: str = "",
    edge: bool = True,
) -> Table:
    """A table of the columns that fit into `width` characters, with `gap` spaces between them, `indent` before them.

    Columns with no `spare` that do not fit, either, are folded rather than cut. `edge` is an empty line above the
    table and below it. Needs 1 <= indent <= gap.
    """
    shown = list(range(len(columns)))
    by_need = sorted((index for index in shown if columns[index].spare), key=lambda index: columns[index].spare)

    def needed() -> int:
        return least_width([columns[index] for index in shown], [[row[index] for index in shown] for row in rows], gap)

    while by_need and needed() > width:
        shown.remove(by_need.pop())
    whole = needed() <= width
    table = Table(
        box=SIMPLE_HEAD,
        padding=(0, gap - indent, 0, indent - 1),
        show_edge=edge,
        title=title or None,
        title_justify="left",
    )
    for column in (columns[index] for index in shown):
        justify: Literal["left", "right"] = "left" if column.left else "right"
        table.add_column(Text(column.heading), justify=justify, overflow="fold", no_wrap=whole and not column.wraps)
    for row in rows:
        table.add_row(*(Text(row[index]) for index in shown))
    return table


def unfitted(columns: Sequence[Column], rows: Rows, *, gap: int = 3, indent: int = 2) -> Table:
    """A table at its own width, however narrow the terminal: to be printed with crop=False, so that lines wrap."""
    width = least_width(columns, rows, gap)
    table = fitted(columns, rows, width, gap=gap, indent=indent)
    table.width = width
    return table


def least_width(columns: Sequence[Column], rows: Rows, gap: int = 2) -> int:
    """Characters that a table of these columns takes at least."""
    return 1 + sum(_least_width(column, [row[index] for row in rows]) + gap for index, column in enumerate(columns))


def sheet(rows: Mapping[str, str]) -> Table:
    """Names and what there is to say of each, in two columns without headings; long texts are folded."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in rows.items():
        table.add_row(Text(name), Text(text))
    return table


def _least_width(column: Column, cells: Sequence[str]) -> int:
    """What the column needs: its longest word, or its longest line where it does not wrap."""
    texts = [column.heading, *cells]
    return max(
        cell_len(part) for text in texts for part in (text.split() if column.wraps else text.split("\n")) or [""]
    )
