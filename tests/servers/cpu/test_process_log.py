"""Logs of the processes we start: few are kept, and the line that says why one died is found."""

import os
from pathlib import Path

import pytest
from servers.cpu.fakes import Heard, fake

from hitlab.servers.cpu import process_log
from hitlab.servers.cpu.process_log import last_error_line
from hitlab.servers.cpu.recipe import ServerOptions
from hitlab.servers.cpu.server import running


def test_only_the_newest_logs_are_kept(cache: Path, heard: Heard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_log, "KEPT_LOGS", 3)
    (cache / "logs").mkdir(parents=True)
    for number in range(5):
        (cache / "logs" / f"old-{number}.log").touch()
        os.utime(cache / "logs" / f"old-{number}.log", (number, number))
    with running(fake(), ServerOptions(), heard) as server:
        kept = {path.name for path in (cache / "logs").iterdir()}
    assert len(kept) == 3
    assert {server.log.path.name, "old-4.log"} < kept


# From logs of the real engines and of pip.
@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "it printed nothing"),
        ("loading\nstill loading\n\n", "still loading"),
        (
            "(Worker pid=1) ERROR 11-29 22:56:56 [multiproc_executor.py:953] ValueError: Available memory is less\n"
            "Exception: WorkerProc initialization failed due to an exception. See stack trace for root cause.\n"
            "    raise RuntimeError(\n"
            "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}\n",
            "ValueError: Available memory is less",
        ),
        (
            "(APIServer pid=1) WARNING 11-29 23:19:46 [core_client.py:817] engine core exited unexpectedly\n"
            "(APIServer pid=1) ERROR 11-29 [async_llm.py:906] vllm.EngineDeadError: An issue. See stack trace (above)\n"
            "INFO:     Finished server process [1]\n",
            "vllm.EngineDeadError: An issue. See stack trace (above)",
        ),
        (
            "[2026-11-29 23:20:38] Subprocess scheduler_0 (pid=2) crashed with exit code -9. Triggering SIGQUIT...\n"
            "[2026-11-29 23:20:38] kill_process_tree called: parent_pid=1, include_parent=True, pid=1\n",
            "Subprocess scheduler_0 (pid=2) crashed with exit code -9. Triggering SIGQUIT...",
        ),
        (
            "usage: vllm serve [model_tag] [options]\nvllm: error: unrecognized arguments: --bogus 3\n",
            "error: unrecognized arguments: --bogus 3",
        ),
        (
            "    raise InvalidVersion(version)\npackaging.version.InvalidVersion: Invalid version: 'N/A'\n",
            "packaging.version.InvalidVersion: Invalid version: 'N/A'",
        ),
        (
            "WARNING: Retrying after connection broken by 'NewConnectionError: refused'\n"
            "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device\n\n",
            "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device",
        ),
    ],
)
def test_last_error_line_is_the_last_that_names_a_cause(text: str, line: str) -> None:
    assert last_error_line(text) == line
