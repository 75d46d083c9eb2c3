"""What people see: tables that stay whole on narrow terminals, and help in whole paragraphs."""

import re
from pathlib import Path
from typing import Any

import pytest
import typer
from helpers import Hitlab
from rich.console import Console

from hitlab.cli import COMMANDS, build_app
from hitlab.cli._tables import Column, fitted

COLUMNS = [Column("name", left=True, wraps=True), Column("first", spare=1), Column("second", spare=2), Column("kept")]
ROWS = [("a few words", "1,234,567", "7,654,321", "12,345"), ("b", "1", "2", "3")]


def lines(width: int) -> list[str]:
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        console.print(fitted(COLUMNS, ROWS, width))
    return captured.get().splitlines()


@pytest.mark.parametrize(
    ("width", "headings"),
    [(44, ["name", "first", "second", "kept"]), (35, ["name", "first", "kept"]), (20, ["name", "kept"])],
)
def test_columns_go_in_their_order_and_numbers_stay_whole(width: int, headings: list[str]) -> None:
    shown = lines(width)
    assert shown[1].split() == headings
    assert max(map(len, shown)) <= width
    numbers = re.findall(r"[\d,]{2,}", "\n".join(shown))
    assert numbers == [cell for cell, column in zip(ROWS[0], COLUMNS, strict=True) if column.heading in headings[1:]]


def test_what_can_not_fit_is_folded_and_never_cut() -> None:
    shown = "\n".join(lines(9))
    assert "…" not in shown
    assert "".join(character for character in shown if character.isdigit()).startswith("12345")


@pytest.mark.parametrize("columns", [40, 50, 60, 70, 80])
def test_measured_numbers_are_whole_at_any_usual_width(
    hitlab: Hitlab, root: Path, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    ran = hitlab("results", "show", root / "results" / "reference" / "20261130T000000-vllm-capacity.json")
    assert max(map(len, ran.out.splitlines())) <= columns
    assert "…" not in ran.out
    assert re.search(r" recovery +63 .*62,496 .*82\.667 %.* 0 ", ran.out)
    assert ("median" in ran.out) is (columns == 80)


@pytest.mark.parametrize("columns", [60, 80])
def test_lab_tables_keep_labels_on_one_line_and_say_what_shares_are_of(
    hitlab: Hitlab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    start = ("--engine", "vllm", "--emulate", "--quick", "--out", tmp_path)
    counters = hitlab("lab", "run", "counters-and-log", *start).out
    assert re.search(r"^ reset, then a broken pass +32\.8125 %", counters, re.MULTILINE)
    cliff = hitlab("lab", "run", "capacity-cliff", *start).out
    assert "…" not in counters + cliff
    if columns == 80:
        assert "of possible" in cliff
        assert re.search(r"100\.0000 % +([\d,]+) +\1 +0", cliff)


def _commands(path: str, command: Any) -> list[tuple[str, str]]:
    children = getattr(command, "commands", {})
    return [
        (path, command.help or ""),
        *(each for name in children for each in _commands(f"{path} {name}", children[name])),
    ]


def test_each_paragraph_of_help_is_one_line_that_the_terminal_wraps() -> None:
    group: Any = typer.main.get_command(build_app())
    texts = [each for name in COMMANDS for each in _commands(name, group.commands[name])]
    folded = [path for path, text in texts for part in text.split("\n\n") if "\n" in part.strip()]
    assert folded == []


def test_example_of_model_is_the_file_that_the_example_of_record_makes(hitlab: Hitlab) -> None:
    assert "-o tape.json.gz" in " ".join(hitlab("record", "--help").out.split())
    assert "hitlab model tape.json.gz" in hitlab("model", "--help").out
