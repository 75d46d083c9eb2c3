"""Draws a sweep: hit rate over capacity, one line a policy, each with a colour, a dash and a marker of its own."""

import math
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from hitlab.errors import InputError, UsageError
from hitlab.files import replace
from hitlab.report.generator import form_of, picture_metadata
from hitlab.report.style import COLOURS, DASHES, MARKS, STYLE
from hitlab.simulation.sweep import RATES, Point

MAX_LINES = 40  # more can't be told apart
_KEY = (1.06, 1.09, 1.12)  # the sample of a line before its name: three x, in widths of the axis
_LINE_INCHES = 0.19  # a name's height, with some air
_MARGIN_INCHES = 1.2  # of the picture's height, above and below the axes
_DIGIT = 0.0155  # the width of a label's digit, in widths of the axis


def draw(
    points: Sequence[Point],
    path: Path,
    *,
    title: str,
    rate: str = "steady_token_hit_rate",
    block_bytes: int | None = None,
) -> None:
    """Write the picture in the format of the path's ending (.svg, .png, .pdf). Raises InputError.

    `block_bytes` adds a scale in GiB.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator, PercentFormatter

    labels = list(dict.fromkeys(each.policy for each in points))
    with mpl.rc_context(STYLE):
        height = max(5.2, _MARGIN_INCHES + len(labels) * _LINE_INCHES)
        figure, axes = pyplot.subplots(figsize=(8.5, height), layout="constrained")
        ends: list[End] = []
        for number, label in enumerate(labels):
            line = [(each.capacity_blocks, getattr(each, rate)) for each in points if each.policy == label]
            known = [(x, y) for x, y in line if y is not None]
            if not known:
                continue
            every = (number % 3, 3) if len(known) > 6 else None
            axes.plot(*zip(*known, strict=True), markevery=every, **style(number))
            ends.append((known[-1][1], known[-1][0], label, style(number)))
        axes.set_xscale("log")
        axes.set_ylim(0, 1.06 * max((y for y, *_ in ends), default=1) or 1)
        axes.margins(x=0.02)
        axes.set_xlabel("cache capacity (blocks)")
        axes.set_ylabel(f"prefix hit rate ({RATES[rate]})")
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        sizes = [each.capacity_blocks for each in points]
        first, last = min(sizes, default=1), max(sizes, default=1)
        said = FuncFormatter(lambda x, _: number_text(x))
        axes.xaxis.set_major_locator(FixedLocator(ticks(first, last)))
        axes.xaxis.set_major_formatter(said)
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.grid(alpha=0.25)
        axes.set_title(title, loc="left", fontsize=11)
        if block_bytes:
            gib: Any = block_bytes / 2**30
            above = axes.secondary_xaxis("top", functions=(lambda x: x * gib, lambda x: x / gib))
            above.set_xlabel("KV memory (GiB)")
            above.xaxis.set_major_locator(FixedLocator(ticks(first * gib, last * gib, ends=first == last)))
            above.xaxis.set_major_formatter(said)
            above.xaxis.set_minor_locator(NullLocator())
        _label_ends(axes, ends, _LINE_INCHES / (height - _MARGIN_INCHES))
        form, picture = form_of(path), BytesIO()
        try:
            figure.savefig(picture, format=form, dpi=160, metadata=picture_metadata(form))
        except ValueError as error:
            raise InputError(f"the plot can't be written: {error}", where=str(path)) from None
        finally:
            pyplot.close(figure)
    replace(path, picture.getvalue())


End = tuple[float, float, str, dict[str, Any]]  # of a line: y, x, its name, its style


def _label_ends(axes: Any, ends: list[End], gap: float) -> None:
    """Write each line's name at the right with a sample of the line before it, in the order of the lines' ends.

    Names that would overlap are moved apart; a thin lead connects each to its line's end. Because of the order no two
    leads cross.
    """
    top = axes.get_ylim()[1]
    ends = sorted(ends, key=lambda end: end[:3])
    places = apart([y for y, *_ in ends], top * gap, top)
    right = axes.get_yaxis_transform()
    for place, (y, x, label, look) in zip(places, ends, strict=True):
        axes.annotate(
            "",
            xy=(x, y),
            xytext=(_KEY[0], place),
            xycoords="data",
            textcoords=right,
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": look["color"], "linewidth": 0.6, "shrinkA": 0, "shrinkB": 2},
        )
        axes.plot(_KEY, [place] * 3, transform=right, clip_on=False, markevery=[1], **look)
        axes.annotate(label, (_KEY[-1] + 0.012, place), xycoords=right, va="center", annotation_clip=False)


def apart(wanted: Sequence[float], gap: float, top: float) -> list[float]:
    """Places near the wanted ones, which are sorted, with at least a gap between neighbours and none above the top.

    >>> apart([0, 10, 10, 10, 40], 4, 42)
    [0.0, 6.0, 10.0, 14.0, 40.0]
    """
    # Less their gaps, the places must not fall: runs that do are pooled to their mean (isotonic regression).
    pools: list[tuple[float, int]] = []
    for number, place in enumerate(wanted):
        total, count = place - number * gap, 1
        while pools and pools[-1][0] / pools[-1][1] > total / count:
            before, size = pools.pop()
            total, count = total + before, count + size
        pools.append((total, count))
    level = [total / count for total, count in pools for _ in range(count)]
    last = len(level) - 1
    return [min(each + i * gap, top - (last - i) * gap) for i, each in enumerate(level)]


def check_form(path: Path) -> None:
    """Raise UsageError for a file whose ending means no form of picture."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    if form_of(path) not in FigureCanvasAgg.get_supported_filetypes():
        raise UsageError(f"--plot {path} ends in no form of picture", todo="end it in .svg, .png or .pdf")


def check_lines(count: int) -> None:
    """Raise UsageError for more lines than can be told apart."""
    if count > MAX_LINES:
        raise UsageError(f"a plot of {count} policies", todo=f"plot up to {MAX_LINES}, or leave out --plot")


def style(number: int) -> dict[str, Any]:
    """matplotlib's options for the line of this number; no two of MAX_LINES have the same colour, dash and marker."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": DASHES[number % len(DASHES)],
        "marker": MARKS[number % len(MARKS)],
        "markersize": 4.5,
        "markerfacecolor": "white",
        "linewidth": 1.6,
    }


def ticks(first: float, last: float, ends: bool = True) -> list[float]:
    """Values to label on a logarithmic axis: both ends, if wanted, and 1-2-5 steps where there is room.

    A short axis, on which few of these lie, gets finer steps.

    >>> ticks(1000, 64_000)
    [1000, 2000, 5000, 10000, 20000, 64000]
    >>> ticks(6000, 7400)
    [6000, 6500, 7000, 7400]
    >>> ticks(0.125, 8, ends=False)
    [0.2, 0.5, 1, 2, 5]
    """
    if first >= last:
        return [first]
    span = math.log10(last / first)
    labelled: list[tuple[float, float, float]] = []  # value, place from 0 to 1, half its width
    found = [first, last] if ends else []
    for steps in ((10,), (50,), (20,), (30, 40, 60, 70, 80, 90), range(15, 100, 10)):  # tenths
        decades = range(math.floor(math.log10(first)), math.ceil(math.log10(last)) + 1)
        wide = ((decade, step) for decade in decades for step in steps)
        found += [step * 10 ** (decade - 1) if decade > 0 else step / 10 ** (1 - decade) for decade, step in wide]
        for value in found:
            place, half = math.log10(value / first) / span, len(number_text(value)) * _DIGIT / 2
            if first <= value <= last and all(abs(place - at) > half + other for _, at, other in labelled):
                labelled.append((int(value) if value == int(value) else value, place, half))
        found = []
        if steps == (20,) and len(labelled) > 3:
            break
    return sorted(value for value, *_ in labelled)


def number_text(value: float) -> str:
    """A number as an axis labels it.

    >>> number_text(64000.0), number_text(0.5)
    ('64,000', '0.5')
    """
    return f"{value:,.10g}"
