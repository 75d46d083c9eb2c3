"""A lab as a picture: predictions as lines, measurements as points, and below them by how much the two differ."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

from hitlab.report.style import COLOURS, DASHES, MARKS, STYLE
from hitlab.results.lab_result import LabPart, LabPoint, LabResult, rate

_NARROWEST_ERROR = 0.5  # percentage points: an axis that zooms into rounding would show errors where there are none


@dataclass(slots=True)
class _Series:
    """One curve: its label, the line of the closed form, and measured points, each with whether its run is valid."""

    label: str
    line: list[tuple[float | str, float]] = field(default_factory=list)
    points: list[tuple[LabPoint, bool]] = field(default_factory=list)

    @property
    def closed_form_holds(self) -> bool:
        return all(point.model_hit_tokens == point.closed_form_hit_tokens for point, _ in self.points)


def svg(result: LabResult) -> str:
    """The picture as an <svg> element and nothing around it."""
    text = _written(result, "svg").decode()
    return text[text.index("<svg") :]


def png(result: LabResult) -> bytes:
    """The picture as a PNG."""
    return _written(result, "png")


def _written(result: LabResult, form: str) -> bytes:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    # A fixed salt makes the same result the same file.
    with mpl.rc_context({**STYLE, "svg.hashsalt": result.lab}):
        figure = Figure(figsize=(6.0, 4.6), layout="constrained")
        _draw(figure, result)
        file = BytesIO()
        metadata = {"Date": None, "Creator": None} if form == "svg" else {}
        figure.savefig(file, format=form, dpi=160, metadata=metadata, transparent=form == "svg")
        return file.getvalue()


def _draw(figure: Any, result: LabResult) -> None:
    from matplotlib.ticker import NullFormatter, PercentFormatter

    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(5, 1))
    found = list(_series(result))
    names = list(dict.fromkeys(x for each in found for x in _all_x(each) if isinstance(x, str)))
    closer = max((part.closer for part in result.parts if part.closer), default=None)
    inset = upper.inset_axes([0.57, 0.09, 0.42, 0.38]) if closer else None
    largest = 0.0
    for number, each in enumerate(found):
        # A shift tells apart what would lie on top of each other where x is only a name.
        shift = (number - (len(found) - 1) / 2) * 0.08 if names else 0.0
        for axes in filter(None, (upper, inset)):
            _draw_rates(axes, number, each, result, names, shift)
        largest = max(largest, _draw_errors(lower, number, each, result, names, shift))
    if inset:
        _show_closer(upper, inset, found, closer)
    highest = upper.get_ylim()[1]
    upper.set_ylim(-0.03 * highest, 1.02 * highest)
    upper.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
    upper.set_ylabel("share of possible hits" if result.share_of_possible else "hit rate (of prompt tokens)")
    upper.grid(alpha=0.25)
    upper.legend(frameon=False, fontsize=9)
    lower.axhline(0, color="0.4", linewidth=0.8)
    most = max(_NARROWEST_ERROR, 1.25 * largest)
    lower.set_ylim(-most, most)
    lower.set_ylabel("measured −\npredicted\n(points)", fontsize=8)
    lower.grid(alpha=0.25)
    lower.set_xlabel(f"{result.axis_name} ({result.axis_unit})" if result.axis_unit else result.axis_name)
    if names:
        lower.set_xticks(range(len(names)), names)
        lower.set_xlim(-0.4, len(names) - 0.6)
    elif result.axis_log:
        values = sorted({x for each in found for x in _all_x(each)})
        lower.set_xscale("log", base=2)
        lower.set_xticks(values, [f"{x:,g}" for x in values])
        lower.xaxis.set_minor_formatter(NullFormatter())
    figure.suptitle(result.title, x=0.01, ha="left", fontsize=12, fontweight="bold")
    upper.set_title("\n".join(_servers(result)), loc="left", fontsize=9)


def _show_closer(upper: Any, inset: Any, found: list[_Series], closer: Any) -> None:
    from matplotlib.ticker import PercentFormatter

    first, last = closer
    seen = [y for each in found for x, y in each.line if isinstance(x, int | float) and first <= x <= last]
    inset.set_xlim(first, last)
    inset.set_ylim(-0.04 * max(seen), 1.1 * max(seen))
    inset.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
    inset.tick_params(labelsize=8)
    inset.grid(alpha=0.25)
    upper.indicate_inset_zoom(inset, edgecolor="0.4")


def _draw_rates(axes: Any, number: int, each: _Series, result: LabResult, names: list[str], shift: float) -> None:
    """Predictions as lines, measurements as points."""
    share = result.share_of_possible
    colour = COLOURS[number % len(COLOURS)]
    look: Any = {"color": colour, "linestyle": DASHES[number % len(DASHES)], "linewidth": 1.4}
    name = f"{each.label}, " if each.label else ""
    line = [(_place(x, names, shift), y) for x, y in each.line]
    if each.closed_form_holds:
        axes.plot(*zip(*line, strict=True), **look, label=f"{name}predicted")
    else:
        faint = {"color": "0.55", "linestyle": "--", "linewidth": 1.1}
        axes.plot(*zip(*line, strict=True), **faint, label=f"{name}closed form, which knows no eviction")
        model = [
            (_place(point.x, names, shift), _rate(point, point.model_hit_tokens, share)) for point, _ in each.points
        ]
        axes.plot(*zip(*model, strict=True), **look, label=f"{name}predicted by the model")
    for points, marker, trusted in _marked(number, each):
        axes.plot(
            [_place(point.x, names, shift) for point in points],
            [_rate(point, point.hit_tokens, share) for point in points],
            # Smaller from curve to curve, so that one point shows around another that it equals.
            **_mark(colour, marker, max(3.0, 7.5 - 2.5 * number)),
            label=f"{name}measured" if trusted else f"{name}not to be trusted",
        )


def _draw_errors(axes: Any, number: int, each: _Series, result: LabResult, names: list[str], shift: float) -> float:
    """Measured minus predicted in percentage points; returns the largest."""
    colour, largest = COLOURS[number % len(COLOURS)], 0.0
    for points, marker, _ in _marked(number, each):
        x = [_place(point.x, names, shift) for point in points]
        off = [
            100 * (_rate(point, point.hit_tokens, share) - _rate(point, point.model_hit_tokens, share))
            for point in points
            for share in [result.share_of_possible]
        ]
        axes.vlines(x, 0, off, color=colour, linewidth=1)
        axes.plot(x, off, **_mark(colour, marker, 4))
        largest = max(largest, *map(abs, off))
    return largest


def _marked(number: int, each: _Series) -> Iterator[tuple[list[LabPoint], str, bool]]:
    """Points with their mark: those of valid runs, then those that can't be trusted."""
    for trusted, marker in ((True, MARKS[number % len(MARKS)]), (False, "x")):
        points = [point for point, valid in each.points if valid is trusted]
        if points:
            yield points, marker, trusted


def _mark(colour: str, marker: str, size: float) -> Any:
    return {"color": colour, "marker": marker, "markerfacecolor": "white", "linestyle": "", "markersize": size}


def _place(x: float | str, names: list[str], shift: float) -> float:
    return names.index(x) + shift if isinstance(x, str) else x


def _rate(point: LabPoint, hit_tokens: int, share_of_possible: bool) -> float:
    return rate(point, hit_tokens, share_of_possible) or 0.0


def _series(result: LabResult) -> Iterator[_Series]:
    for part in result.parts:
        names = dict.fromkeys(point.series for trial in part.trials for point in trial.points if not point.aside)
        for name in names:
            block = f"B={part.engine.block_tokens}" if len(result.parts) > 1 else ""
            yield _one_series(part, name, ", ".join(filter(None, (name, block))), result.share_of_possible)


def _one_series(part: LabPart, name: str, label: str, share_of_possible: bool) -> _Series:
    return _Series(
        label,
        [
            (point.x, 1.0 if share_of_possible else point.hit_tokens / point.queried_tokens)
            for point in part.line
            if point.series == name and point.queried_tokens
        ],
        [
            (point, trial.valid)
            for trial in part.trials
            for point in trial.points
            if point.series == name and not point.aside
        ],
    )


def _all_x(each: _Series) -> list[Any]:
    return [x for x, _ in each.line] + [point.x for point, _ in each.points]


def _servers(result: LabResult) -> Iterator[str]:
    for part in result.parts:
        engine = part.engine
        said = "EMULATED " if engine.source == "emulated" else ""
        pool = f", {engine.capacity_blocks:,} of them" if engine.capacity_blocks else ""
        ranks = f", {engine.data_parallel_ranks} ranks" if engine.data_parallel_ranks > 1 else ""
        version = engine.version or "(version unknown)"
        yield f"{said}{engine.title} {version}: blocks of {engine.block_tokens} tokens{pool}{ranks}"
