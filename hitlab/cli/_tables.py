"""How results look on a terminal: tables that give up whole columns where it is narrow, and never part of a number."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from hitlab.cli import _options as opt
from hitlab.results.run_result import Result


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table; where there is no room those with the highest `spare` go first, those with 0 never.

    Words may be wrapped (`wraps`), numbers stay whole.
    """

    heading: str
    left: bool = False
    spare: int = 0
    wraps: bool = False


def fitted(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int, gap: int = 2) -> Table:
    """A table of the columns that fit into so many characters, `gap` of them apart.

    Where not even those fit that never go, they are folded rather than cut.
    """
    least = [_least_width(column, [row[index] for row in rows]) for index, column in enumerate(columns)]
    shown = list(range(len(columns)))
    by_need = sorted((index for index in shown if columns[index].spare), key=lambda index: columns[index].spare)
    while by_need and sum(least[index] + gap for index in shown) + 1 > width:
        shown.remove(by_need.pop())
    whole = sum(least[index] + gap for index in shown) + 1 <= width
    table = Table(box=SIMPLE_HEAD, padding=(0, gap - 1, 0, 0))
    for column in (columns[index] for index in shown):
        justify: Literal["left", "right"] = "left" if column.left else "right"
        table.add_column(Text(column.heading), justify=justify, overflow="fold", no_wrap=whole and not column.wraps)
    for row in rows:
        table.add_row(*(Text(row[index]) for index in shown))
    return table


def _least_width(column: Column, cells: Sequence[str]) -> int:
    """What the column needs: its longest word, or its longest line where it does not wrap."""
    texts = [column.heading, *cells]
    return max(
        cell_len(part) for text in texts for part in (text.split() if column.wraps else text.split("\n")) or [""]
    )


def print_result(result: Result) -> None:
    """Everything a person wants to see of a run, 80 columns wide."""
    console = opt.console()
    engine = result.engine
    emulated = "EMULATED " if engine.source == "emulated" else ""
    pool = f"{engine.capacity_blocks:,} blocks" if engine.capacity_blocks else "a pool of unknown size"
    console.print(
        f"{emulated}{engine.title} {engine.version or '(version unknown)'}: {pool} of {engine.block_tokens} tokens"
    )
    columns = (
        Column("phase\n", left=True),
        Column("reqs\n"),
        Column("prompt\ntokens", spare=1),
        Column("hit\ntokens"),
        Column("measured\nhit rate"),
        Column("closed\nform", spare=3),
        Column("model\n", spare=2),
        Column("error\ntokens"),
        Column("median\nms", spare=5),
        Column("computed\ntokens", spare=4),
    )
    rows = [
        (
            phase.name,
            f"{phase.requests:,}",
            f"{phase.prompt_tokens:,}",
            f"{phase.hit_tokens:,}",
            "-" if phase.hit_rate is None else f"{100 * phase.hit_rate:.3f} %",
            f"{phase.closed_form_hit_tokens:,}",
            f"{phase.model_hit_tokens:,}",
            f"{phase.error_tokens:+,}" if phase.error_tokens else "0",
            f"{1000 * phase.median_latency_s:.1f}",
            f"{phase.computed_tokens:,}",
        )
        for phase in result.phases
    ]
    console.print(fitted(columns, rows, console.width, gap=1))
    for check in result.checks:
        if not check.ok:
            console.print(f"check failed, {check.name}: {check.detail}")
    for note in result.notes:
        console.print(f"note: {note}")
    state = "" if result.valid else "INVALID RUN. "
    console.print(f"{emulated}{state}{result.verdict}: {result.explanation}")
