"""The life of a server on this machine's CPU: real processes and sockets, a script in the engine's place."""

import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from servers.cpu.fakes import (
    SERVES_FOREVER,
    SERVES_ONCE,
    SERVES_WITH_CHILDREN,
    Heard,
    all_gone_after,
    fake,
    status_of,
)

from hitlab.cache.sizes import CacheSizes
from hitlab.errors import LaunchError, UnreachableError
from hitlab.servers.cpu import server as launch
from hitlab.servers.cpu.recipe import ServerOptions
from hitlab.servers.cpu.server import running


def test_server_serves_inside_and_its_port_is_free_after(cache: Path, heard: Heard) -> None:
    with running(fake(), ServerOptions(), heard) as server:
        assert status_of(f"{server.base_url}/anything") == 200
        assert server.death() is None
    port = int(server.base_url.rpartition(":")[2])
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port))


def test_readiness_is_asked_for_only_where_the_recipe_says(cache: Path, heard: Heard) -> None:
    with running(fake(), ServerOptions(), heard) as server:
        pass
    assert set(server.log.text().splitlines()) == {"asked for /ready"}


def test_options_reach_the_server(cache: Path, heard: Heard) -> None:
    script = (
        f"import os, sys; print(sys.argv[1:], os.environ['BLOCK_TOKENS'], os.getcwd(), flush=True)\n{SERVES_FOREVER}"
    )
    port = launch._free_port(0)
    options = ServerOptions(CacheSizes(block_tokens=8), port=port, extra_args=("--seed", "3"))
    with running(fake(script), options, heard) as server:
        pass
    assert server.base_url == f"http://127.0.0.1:{port}"
    folder = cache / "models" / "tiny-llama"
    assert server.log.text().startswith(f"['{port}', '--seed', '3'] 8 {folder}\n")
    assert json.loads((folder / "config.json").read_text())["architectures"] == ["LlamaForCausalLM"]


def test_foreign_python_settings_do_not_reach_the_server(
    cache: Path, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    with running(
        fake("import os; print(os.environ.get('PYTHONPATH'))" + SERVES_FOREVER), ServerOptions(), heard
    ) as server:
        pass
    assert server.log.text().startswith("None\n")


def test_stubborn_and_orphaned_children_end_with_the_server(
    cache: Path, heard: Heard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fifo = tmp_path / "fifo"
    monkeypatch.setenv("FIFO", str(fifo))
    with all_gone_after(fifo), running(fake(SERVES_WITH_CHILDREN), ServerOptions(), heard):
        pass


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_no_process_outlives_hitlab(cache: Path, tmp_path: Path, number: signal.Signals) -> None:
    body = f"""
import sys
sys.path[:] = {sys.path!r}
import signal
from hitlab.servers.cpu import processes
from hitlab.servers.cpu.recipe import ServerOptions
from hitlab.servers.cpu.server import running
from servers.cpu.fakes import SERVES_WITH_CHILDREN, Heard, fake
processes.GRACE_SECONDS = 0.2
with running(fake(SERVES_WITH_CHILDREN), ServerOptions(), Heard()):
    print("ready", flush=True)
    signal.pause()
"""
    fifo = tmp_path / "fifo"
    environ = {**os.environ, "FIFO": str(fifo)}
    with all_gone_after(fifo):
        command = [sys.executable, "-c", body]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environ, start_new_session=True) as process:
            assert process.stdout is not None and process.stdout.readline() == b"ready\n"
            os.killpg(process.pid, number)  # as a terminal does: the whole group gets it


def test_death_at_start_shows_the_engines_last_error_and_its_log(cache: Path, heard: Heard) -> None:
    script = "print('loading'); raise RuntimeError('No common block size for 16')"
    with pytest.raises(LaunchError) as raised, running(fake(script), ServerOptions(), heard):
        pass
    log = next((cache / "logs").glob("fake-1-*.log"))
    assert str(raised.value) == (
        f"Fake 1 died at start (exit status 1): RuntimeError: No common block size for 16; its log is {log}"
    )


def test_death_by_signal_is_named(cache: Path, heard: Heard) -> None:
    script = "import os; os.kill(os.getpid(), 9)"
    with (
        pytest.raises(LaunchError, match=r"killed by signal 9, perhaps for lack of memory"),
        running(fake(script), ServerOptions(), heard),
    ):
        pass


def test_server_that_never_gets_ready_is_given_up_and_ended(
    cache: Path, heard: Heard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fifo = tmp_path / "fifo"
    monkeypatch.setenv("FIFO", str(fifo))
    script = (
        "import os, signal; os.open(os.environ['FIFO'], os.O_WRONLY); print('warming up', flush=True); signal.pause()"
    )
    # Patience ends when the script has come as far as it goes.
    clock = SimpleNamespace(monotonic=lambda: 2.0 if "warming up" in heard.details else 0.0)
    monkeypatch.setattr(launch, "time", clock)
    recipe = replace(fake(script), ready_seconds=1.0)
    with (
        all_gone_after(fifo),
        pytest.raises(LaunchError, match="not ready after 1 s: warming up; its log is "),
        running(recipe, ServerOptions(), heard),
    ):
        pass


def test_server_error_after_the_server_died_says_that_it_died(cache: Path, heard: Heard) -> None:
    script = SERVES_ONCE + "print('ValueError: lost'); sys.exit(3)"
    with (
        pytest.raises(LaunchError, match=r"Fake 1 ended by itself \(exit status 3\): ValueError: lost; its log is "),
        running(fake(script), ServerOptions(), heard) as server,
    ):
        status_of(f"{server.base_url}/die")
        server.wait()
        raise UnreachableError("connection refused")


def test_server_error_of_a_living_server_stays_what_it_is(
    cache: Path, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "DYING_SECONDS", 0.0)
    with pytest.raises(UnreachableError, match="no answer in time"), running(fake(), ServerOptions(), heard):
        raise UnreachableError("no answer in time")


def test_errors_the_server_survived_at_start_do_not_explain_its_end(cache: Path, heard: Heard) -> None:
    script = "print('ValueError: never mind', flush=True)" + SERVES_ONCE
    with running(fake(script), ServerOptions(), heard) as server:
        status_of(f"{server.base_url}/die")
        assert "ended by itself (exit status 0): asked for /die; its log is " in server.wait()


def test_wait_returns_when_the_server_ends_by_itself(cache: Path, heard: Heard) -> None:
    with running(fake(SERVES_ONCE), ServerOptions(), heard) as server:
        status_of(f"{server.base_url}/die")
        assert "Fake 1 ended by itself" in server.wait()


def test_taken_port_is_one_clear_line(cache: Path, heard: Heard) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(LaunchError) as raised, running(fake(), ServerOptions(port=port), heard):
            pass
    assert str(raised.value) == (
        f"127.0.0.1: port {port} cannot be used: Address already in use; "
        "choose another with `port`, or 0 for any free one"
    )
    assert not (cache / "envs").exists()  # said before anything is installed


def test_port_out_of_range_is_one_clear_line(cache: Path, heard: Heard) -> None:
    with (
        pytest.raises(LaunchError, match="port 70000 cannot be used"),
        running(fake(), ServerOptions(port=70_000), heard),
    ):
        pass
