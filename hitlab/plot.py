"""A sweep as a picture: hit rate over capacity, one line a policy, told apart by colour, dash and mark alike."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hitlab.errors import InputError
from hitlab.sweep import RATES, Point

# Okabe and Ito's colours, which colour-blind readers can tell apart, darkest first; dashes and marks do for print.
COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
DASHES = ("-", "--", "-.", (0, (1, 1)), (0, (6, 1, 1, 1, 1, 1)))
MARKS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*")
STYLE: Any = {
    "font.size": 10,
    "svg.fonttype": "none",
    "text.parse_math": False,  # a trace or server whose name has a $ in it
    "axes.spines.top": False,
    "axes.spines.right": False,
}
_LABEL_GAP = 0.042  # of the axis' height


def draw(
    points: Sequence[Point],
    path: Path,
    *,
    title: str,
    rate: str = "steady_token_hit_rate",
    block_bytes: int | None = None,
) -> None:
    """Write the picture, its form chosen by the file's ending (.svg, .png, .pdf). Raises InputError.

    `block_bytes` adds a scale in GiB.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import FuncFormatter, NullFormatter, PercentFormatter

    labels = list(dict.fromkeys(each.policy for each in points))
    with mpl.rc_context(STYLE):
        figure, axes = pyplot.subplots(figsize=(8.5, 5.2), layout="constrained")
        ends: list[tuple[float, float, str, str]] = []
        for number, label in enumerate(labels):
            line = [(each.capacity_blocks, getattr(each, rate)) for each in points if each.policy == label]
            known = [(x, y) for x, y in line if y is not None]
            if not known:
                continue
            colour = COLOURS[number % len(COLOURS)]
            axes.plot(
                *zip(*known, strict=True),
                color=colour,
                linestyle=DASHES[number % len(DASHES)],
                marker=MARKS[number % len(MARKS)],
                markersize=4.5,
                markevery=(number % 3, 3) if len(known) > 6 else None,
                markerfacecolor="white",
                linewidth=1.6,
            )
            ends.append((known[-1][1], known[-1][0], label, colour))
        axes.set_xscale("log")
        axes.set_ylim(0, 1.06 * max((y for y, *_ in ends), default=1) or 1)
        axes.margins(x=0.02)
        axes.set_xlabel("cache capacity (blocks)")
        axes.set_ylabel(f"prefix hit rate ({RATES[rate]})")
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.grid(alpha=0.25)
        axes.set_title(title, loc="left", fontsize=11)
        if block_bytes:
            gib: Any = block_bytes / 2**30
            above = axes.secondary_xaxis("top", functions=(lambda x: x * gib, lambda x: x / gib))
            above.set_xlabel("KV memory (GiB)")
            above.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,g}"))
        _label_ends(axes, ends)
        try:
            figure.savefig(path, dpi=160)
        except (OSError, ValueError) as error:
            raise InputError(f"the plot can't be written: {error}", where=str(path)) from None
        finally:
            pyplot.close(figure)


def _label_ends(axes: Any, ends: list[tuple[float, float, str, str]]) -> None:
    """Each line's name at its right end, moved apart where they meet, with a thin lead from the line."""
    top = axes.get_ylim()[1]
    ends = sorted(ends)
    places = apart([y for y, *_ in ends], top * _LABEL_GAP, top)
    for place, (y, x, label, colour) in zip(places, ends, strict=True):
        axes.annotate(
            label,
            xy=(x, y),
            xytext=(1.06, place),
            xycoords="data",
            textcoords=axes.get_yaxis_transform(),
            va="center",
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": colour,
                "linewidth": 0.6,
                "shrinkA": 0,
                "shrinkB": 2,
                "relpos": (0, 0.5),
            },
        )


def apart(wanted: Sequence[float], gap: float, top: float) -> list[float]:
    """Sorted places, each as near to where it is wanted as a gap between neighbours and the top allow.

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
