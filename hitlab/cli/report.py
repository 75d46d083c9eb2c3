"""`hitlab report`: kept results as one HTML file."""

from pathlib import Path
from typing import Annotated

import typer

from hitlab.cli import _options as opt
from hitlab.cli import _written
from hitlab.errors import InputError
from hitlab.files import Output, claim, replace
from hitlab.report import html
from hitlab.report.generator import wrote_page


def command(
    results: Annotated[list[Path], typer.Argument(help="Folders that measure and lab wrote, or single files of them.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The HTML file; overwrites a report of that name.")] = Path(
        "report.html"
    ),
    title: Annotated[str, typer.Option("--title", help="What the page is called.")] = "Prefix-cache hit rates",
    force: opt.Force = False,
) -> None:
    """Write kept results as one self-contained HTML page: asked, predicted, measured, checked, repeatable.

    Example: hitlab report results/ -o report.html
    """
    claim([Output("--out", out, "a report", wrote_page)], results, force=force)
    left_out: list[str] = []
    runs, labs = html.read(results, left_out)
    for line in left_out:
        opt.note(f"left out: {line}")
    if not (runs or labs):
        where = ", ".join(map(str, results))
        raise InputError("no results", where=where, todo="measure something first, or name another folder")
    replace(out, html.html(runs, labs, title).encode())
    print(f"report: {_written.said(out)}, {len(runs):,} runs and {len(labs):,} labs")
