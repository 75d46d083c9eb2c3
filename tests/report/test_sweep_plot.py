"""Plots of sweeps: what the axes say, and that no line or label is taken for another."""

from pathlib import Path
from typing import Any

import pytest

from hitlab import families
from hitlab.errors import InputError
from hitlab.report import sweep_plot
from hitlab.simulation.sweep import Point


def test_a_plot_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    point = Point("lru", 10, 10, 1, 2, 0.5, 0.5, 1, 2, 0.5, 0.5)
    for path in (tmp_path / "missing" / "a.png", tmp_path / "a.docx"):
        with pytest.raises(InputError, match="can't be written"):
            sweep_plot.draw([point], path, title="")


def test_no_two_lines_look_alike() -> None:
    looks = [sweep_plot.style(number) for number in range(sweep_plot.MAX_LINES)]
    assert len({(look["color"], look["linestyle"], look["marker"]) for look in looks}) == sweep_plot.MAX_LINES
    policies = len(families.names("policies"))
    assert len({look["color"] for look in looks[:policies]}) == policies


def test_the_axis_says_1_2_5_steps_and_both_ends(tmp_path: Path) -> None:
    points = [Point("lru", size, 10, 1, 2, 0.5, 0.5, 1, 2, 0.5, 0.5) for size in (1000, 64_000)]
    sweep_plot.draw(points, tmp_path / "a.svg", title="", block_bytes=2**20)
    content = (tmp_path / "a.svg").read_text()
    for said in ("1,000", "2,000", "5,000", "10,000", "20,000", "64,000", "50"):
        assert f">{said}<" in content
    assert ">50,000<" not in content  # would run into 64,000


def test_tick_labels_never_meet() -> None:
    for first in (1, 7, 60, 999, 123_456):
        for last in (first, first + 1, 2 * first, 9 * first + 1, 640 * first, 10**6 * first, 10**9 * first):
            labels = sweep_plot.ticks(first, last)
            assert (labels[0] == first and labels[-1] == last) or last == first + 1
            assert labels == sorted(set(labels))
            assert sum(len(sweep_plot.number_text(each)) for each in labels) * 0.0155 < 1.5


def test_leads_to_names_never_cross(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.axes import Axes

    leads: list[tuple[float, float]] = []
    annotate = Axes.annotate

    def seen(self: Any, text: str, xy: Any, *arguments: Any, **options: Any) -> Any:
        if not text:
            leads.append((xy[1], options["xytext"][1]))
        return annotate(self, text, xy, *arguments, **options)

    monkeypatch.setattr(Axes, "annotate", seen)
    rates = [0.9, 0.1, 0.9, 0.89, 0.895, 0.5, 0.9, 0.91, 0.1]
    points = [
        Point(str(n), size, 0, 0, 0, rate, rate, 0, 0, rate, rate) for n, rate in enumerate(rates) for size in (10, 20)
    ]
    sweep_plot.draw(points, tmp_path / "a.svg", title="")
    assert sorted(leads) == leads
    places = [place for _, place in leads]
    assert places == sorted(set(places)) and len(places) == len(rates)


def test_labels_keep_their_gap_and_stay_below_the_top() -> None:
    places = sweep_plot.apart([9.0, 9.5, 10.0, 10.0], 1, 10)
    assert places == [7.0, 8.0, 9.0, 10.0]
    assert sweep_plot.apart([], 1, 10) == []
