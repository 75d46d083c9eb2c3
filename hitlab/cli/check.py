"""`hitlab check`: the lab page's numbers, computed again."""

import typer

from hitlab.cli import _options as opt
from hitlab.cli._tables import Column, fitted
from hitlab.experiment.lab_page import page_values


def command(as_json: opt.Json = False) -> None:
    """Recompute every number of the lab page and say whether it agrees; exit status 3 if one does not.

    Example: hitlab check
    """
    values = list(page_values())
    differ = sum(not value.agrees for value in values)
    if as_json:
        opt.print_json(
            {
                "values": [
                    {
                        "section": value.section,
                        "what": value.what,
                        "page": value.page,
                        "computed": value.computed,
                        "unit": value.unit,
                        "agrees": value.agrees,
                    }
                    for value in values
                ],
                "differ": differ,
            }
        )
    else:
        columns = (
            Column("section", left=True, wraps=True),
            Column("what", left=True, wraps=True),
            Column("page"),
            Column("computed"),
            Column("agrees", left=True),
        )
        rows = [
            (
                value.section,
                value.what,
                _number(value.page, value.decimals, value.unit),
                _number(value.computed, value.decimals and value.decimals + 2, value.unit),
                "yes" if value.agrees else "NO",
            )
            for value in values
        ]
        console = opt.console()
        console.print(fitted(columns, rows, console.width, gap=3, indent=2))
        console.print(f"{len(values) - differ} of {len(values)} values agree")
    if differ:
        raise typer.Exit(3)


def _number(number: float, decimals: int, unit: str) -> str:
    return f"{number:,.{decimals}f} {unit}".rstrip()
