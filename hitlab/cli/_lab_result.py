"""How the result of a lab looks on a terminal."""

from rich.table import Table

from hitlab.cli import _options as opt
from hitlab.cli._format import count, percent, signed
from hitlab.cli._tables import Column, fitted
from hitlab.results.lab_result import LabPoint, LabResult, named, rate, whole_tokens


def print_lab(result: LabResult) -> None:
    """Print a lab on stdout: its servers with a table of points each, failed checks, verdict, what to look for."""
    console = opt.console()
    console.print(f"{result.title}\n{result.question}")
    for part in result.parts:
        engine = part.engine
        emulated = "EMULATED " if engine.source == "emulated" else ""
        pool = f", {engine.capacity_blocks:,} of them" if engine.capacity_blocks else ""
        version = engine.version or "(version unknown)"
        console.print(f"{emulated}{engine.title} {version}: blocks of {engine.block_tokens} tokens{pool}")
        console.print(_table(result, [point for trial in part.trials for point in trial.points], console.width))
    _print_log(result)
    for trial in result.trials:
        for check in trial.failed_checks:
            console.print(f"check failed, {check.name}: {check.detail}")
    any_emulated = any(part.engine.source == "emulated" for part in result.parts)
    console.print(f"{'EMULATED ' if any_emulated else ''}{result.lab}: {result.verdict}")
    console.print(f"the picture: {result.picture}")


def _table(result: LabResult, points: list[LabPoint], width: int) -> Table:
    """The points, each series under a line with its name."""
    series = list(dict.fromkeys(point.series for point in points))
    named_series, by_name = any(series), any(isinstance(point.x, str) for point in points)
    widest = max((len(named(point.x)) for point in points if not isinstance(point.x, str)), default=0)
    rows: list[tuple[str, ...]] = []
    for name in series:
        chosen = [point for point in points if point.series == name]
        if named_series:
            rows.append((f"{name}:", *[""] * 6))
        rows += [
            (named(each.x).rjust(widest), each.remark, *_figures(each, result.share_of_possible)) for each in chosen
        ]
    columns = [
        Column(result.axis_name, left=named_series, wraps=not by_name),
        Column("remark", left=True, spare=1, wraps=True),
        Column("predicted"),
        Column("measured"),
        Column("hit tokens", spare=2),
        Column("of possible" if result.share_of_possible else "of", spare=3),
        Column("error"),
    ]
    if not any(point.remark for point in points):
        columns.pop(1)
        rows = [(row[0], *row[2:]) for row in rows]
    return fitted(columns, rows, width)


def _print_log(result: LabResult) -> None:
    console = opt.console()
    columns = [Column(heading, left=heading == "after") for heading in ("after", "lines", "hit tokens", "of", "window")]
    for trial in result.trials:
        if trial.log:
            rows = [
                (
                    said.after,
                    count(said.lines),
                    count(said.hit_tokens),
                    count(said.queried_tokens),
                    percent(said.window_hit_rate, 1),
                )
                for said in trial.log
            ]
            title = "the engine's log, which is for eyeballing"
            console.print(fitted(columns, rows, console.width, gap=3, indent=2, title=title))


def _figures(point: LabPoint, share_of_possible: bool) -> list[str]:
    """Predicted and measured hit rate, hit tokens, of how many, and how far the model is off."""
    predicted, measured = (
        rate(point, hit_tokens, share_of_possible) for hit_tokens in (point.model_hit_tokens, point.hit_tokens)
    )
    return [
        percent(predicted, 4),
        percent(measured, 4),
        count(point.hit_tokens),
        count(whole_tokens(point, share_of_possible)),
        signed(point.error_tokens),
    ]
