"""What the command line shows of a server that starts."""

import re

import pytest

from hitlab.cli._progress import StartProgress


def test_lines_for_people_are_neither_wrapped_nor_read_as_markup(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    path = "/a/folder [red] with a name that is longer than the terminal is wide"
    StartProgress().say(path)
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", f"{path}\n")


def test_a_step_on_a_plain_stream_is_one_line_when_it_has_ended(capsys: pytest.CaptureFixture[str]) -> None:
    with StartProgress().step("starting [b]Fake[/b] 1") as detail:
        detail("loading")
        assert capsys.readouterr().err == ""
    assert re.fullmatch(r"starting \[b]Fake\[/b] 1: \d+ s\n", capsys.readouterr().err)
