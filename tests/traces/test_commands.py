"""What the commands that read a trace have in common."""

import gzip
import json
from pathlib import Path

import pytest
from helpers import Hitlab
from traces.rows import ROW, SESSION


@pytest.mark.parametrize("command", [("trace", "info"), ("replay", "--capacity", "60"), ("sweep",)], ids=" ".join)
def test_a_trace_without_requests_is_said_to_be_one(hitlab: Hitlab, tmp_path: Path, command: tuple[str, ...]) -> None:
    (tmp_path / "empty.gz").write_bytes(gzip.compress(b""))
    (tmp_path / "one").write_bytes(ROW)
    ran = hitlab(*command, tmp_path / "empty.gz", "--json")
    assert (ran.status, "no requests in the trace " in ran.err) == (0, True)
    assert "no requests" not in hitlab(*command, tmp_path / "one", "--json").err


@pytest.mark.parametrize("command", [("trace", "info"), ("replay", "--capacity", "60"), ("sweep",)], ids=" ".join)
def test_an_empty_name_of_a_trace_or_a_format_is_wrong_usage(
    hitlab: Hitlab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "session.json").write_text(json.dumps(SESSION))
    ran = hitlab(*command, "")
    assert (ran.status, ran.out, ran.err) == (2, "", "hitlab: TRACE is empty; name a file, or a folder of sessions\n")
    ran = hitlab(*command, "session.json", "--format", "")
    assert (ran.status, ran.out) == (2, "")
    assert "no trace format named ''" in ran.err


@pytest.mark.parametrize("command", [("trace", "info"), ("replay",), ("sweep",)], ids=" ".join)
def test_help_breaks_lines_at_the_terminal_s_width_only(hitlab: Hitlab, command: tuple[str, ...]) -> None:
    import inspect

    from hitlab.cli import replay, sweep, trace

    documented = {"trace": trace.info, "replay": replay.command, "sweep": sweep.command}[command[0]]
    shown = hitlab(*command, "--help").out
    for paragraph in inspect.cleandoc(documented.__doc__ or "").split("\n\n"):
        words, line = paragraph.split(), ""
        for word in words:  # as a terminal of 80 columns with a margin of 1 fills its lines
            if len(line) + len(word) + bool(line) > 78:
                assert f" {line} " in shown
                line = word
            else:
                line = f"{line} {word}".strip()
        assert f" {line} " in shown
