"""An engine's environment: made once, by one start at a time, and remade when it is not what the recipe makes."""

import fcntl
import os
import signal
import socket
import subprocess
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from helpers import HANGS_S
from servers.cpu.fakes import SERVES_FOREVER, Heard, fake, pip, status_of

from hitlab.errors import LaunchError
from hitlab.servers.cpu import environments
from hitlab.servers.cpu import server as launch
from hitlab.servers.cpu.recipe import ServerOptions
from hitlab.servers.cpu.server import running
from hitlab.servers.progress import Silent


def test_size_is_told_before_the_first_installation_and_not_again(cache: Path, heard: Heard) -> None:
    with launch.environment(fake(), heard) as home:
        first = list(heard.lines)
    with launch.environment(fake(), heard):
        assert heard.lines == first
    assert first == [
        f"Fake 1 is not installed yet: about 0.3 GB to download and 1.2 GB on disk in {home}, once; "
        "it takes a few minutes",
        "Fake 1, step 1 of 1: a virtual environment",
    ]
    assert launch.is_installed(fake())


def test_half_made_environment_is_remade(cache: Path, heard: Heard) -> None:
    leftover = cache / "envs" / "fake-1" / "lib" / "leftover"
    leftover.mkdir(parents=True)
    assert not launch.is_installed(fake())
    with launch.environment(fake(), heard):
        assert "half made" in heard.lines[0]
        assert not leftover.exists()


def test_environment_of_another_recipe_is_remade(cache: Path, heard: Heard) -> None:
    newer = replace(fake(), site_files={"newer.py": "THERE = True\n"})
    with launch.environment(fake(), heard):
        assert not launch.is_installed(newer)
    with launch.environment(newer, heard) as home:
        code = "import newer; print(newer.THERE)"
        assert subprocess.check_output([home / "bin" / "python", "-c", code]) == b"True\n"


def test_environment_whose_python_is_gone_is_remade(cache: Path, heard: Heard) -> None:
    with launch.environment(fake(), heard) as home:
        python = home / "bin" / "python"
    python.unlink()
    python.symlink_to("/nowhere/python")
    assert not launch.is_installed(fake())
    with launch.environment(fake(), heard):
        assert subprocess.check_output([python, "-c", "print(1)"]) == b"1\n"


def test_pip_installs_what_the_steps_say(cache: Path, heard: Heard, tmp_path: Path) -> None:
    wheel = tmp_path / "tiny_engine-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny_engine.py", "ANSWER = 42\n")
        archive.writestr(
            "tiny_engine-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-engine\nVersion: 1.0\n"
        )
        archive.writestr(
            "tiny_engine-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("tiny_engine-1.0.dist-info/RECORD", "")
    step = pip("install", "--no-index", "--find-links", str(tmp_path), "tiny-engine==1.0")
    script = "import tiny_engine; print(tiny_engine.ANSWER, flush=True)\n" + SERVES_FOREVER
    with running(fake(script, step), ServerOptions(), heard) as server:
        pass
    assert server.log.text().startswith("42\n")
    assert not (cache / "envs" / "fake-1" / "tmp").exists()


def test_pip_failure_shows_pips_last_error_and_leaves_nothing_half_made(cache: Path, heard: Heard) -> None:
    recipe = fake(SERVES_FOREVER, pip("install", "--no-index", "no-such-engine==1"))
    with pytest.raises(LaunchError) as raised, running(recipe, ServerOptions(), heard):
        pass
    log = next((cache / "logs").glob("install-fake-1-*.log"))
    assert str(raised.value) == (
        "installing a package failed (exit status 1): "
        f"ERROR: No matching distribution found for no-such-engine==1; the whole log is {log}"
    )
    assert not (cache / "envs" / "fake-1").exists()


def test_no_network_is_named_as_the_cause(cache: Path, heard: Heard) -> None:
    closed = f"http://127.0.0.1:{launch._free_port(0)}/simple"
    recipe = fake(SERVES_FOREVER, pip("install", "--retries", "1", "--index-url", closed, "no-such-engine==1"))
    with (
        pytest.raises(LaunchError, match="pip cannot reach its package index"),
        running(recipe, ServerOptions(), heard),
    ):
        pass


def test_interrupted_installation_ends_pip_and_leaves_nothing_half_made(cache: Path, heard: Heard) -> None:
    with socket.create_server(("127.0.0.1", 0)) as index:

        def interrupt() -> bytes:
            connection, _ = index.accept()  # pip has begun, and will wait here for an answer
            os.kill(os.getpid(), signal.SIGINT)
            with connection:
                while connection.recv(1024):
                    pass
            return b"closed"

        url = f"http://127.0.0.1:{index.getsockname()[1]}/simple"
        recipe = fake(SERVES_FOREVER, pip("install", "--index-url", url, "engine==1"))
        with ThreadPoolExecutor(1) as pool:
            interrupting = pool.submit(interrupt)
            with pytest.raises(KeyboardInterrupt), running(recipe, ServerOptions(), heard):
                pass
            assert interrupting.result(timeout=HANGS_S) == b"closed"
    assert not (cache / "envs" / "fake-1").exists()


def test_too_little_disk_space_is_said_before_anything_is_made(cache: Path, heard: Heard) -> None:
    recipe = replace(fake(), installed_mb=10**9)
    with (
        pytest.raises(LaunchError, match=r"not enough disk space for Fake 1: 1000000\.6 GB needed, \d+\.\d GB free"),
        running(recipe, ServerOptions(), heard),
    ):
        pass
    assert not (cache / "envs" / "fake-1").exists()


def test_unsuitable_python_is_named(cache: Path, heard: Heard) -> None:
    recipe = replace(fake(), python=((3, 1), (3, 2)))
    with (
        pytest.raises(LaunchError, match=r"Fake 1 runs on Python 3\.1 to 3\.2, and this is 3\.\d+ "),
        running(recipe, ServerOptions(), heard),
    ):
        pass


def test_unwritable_cache_directory_is_one_clear_line(
    tmp_path: Path, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with (
        pytest.raises(LaunchError, match=r"file/hitlab.*: Not a directory; .*XDG_CACHE_HOME"),
        running(fake(), ServerOptions(), heard),
    ):
        pass


def test_two_starts_at_once_make_one_environment(cache: Path) -> None:
    both_serve = threading.Barrier(2)

    def start() -> int:
        with running(fake(), ServerOptions(), Silent()) as server:
            both_serve.wait(timeout=HANGS_S)
            return status_of(f"{server.base_url}/")

    with ThreadPoolExecutor(2) as pool:
        starts = [pool.submit(start) for _ in range(2)]
        assert [started.result() for started in starts] == [200, 200]
    assert len(list((cache / "logs").glob("install-*.log"))) == 1
    assert len(list((cache / "logs").glob("fake-*.log"))) == 2


def test_second_start_waits_for_the_first_to_install_says_so_and_uses_what_was_made(cache: Path, heard: Heard) -> None:
    """The first one goes on using it, which the second must not wait for."""
    (cache / "envs").mkdir(parents=True)
    with (
        ThreadPoolExecutor(1) as pool,
        (cache / "envs" / "fake-1.making.lock").open("w") as made,
        (cache / "envs" / "fake-1.lock").open("w") as used,
    ):

        def start() -> None:
            with launch.environment(fake(), heard):
                assert launch.is_installed(fake())

        fcntl.flock(made, fcntl.LOCK_EX)
        second = pool.submit(start)
        assert heard.saying("waiting for it to finish")
        assert not launch.is_installed(fake())
        environments._make(fake(), launch.environment_dir(fake()), Silent())
        fcntl.flock(used, fcntl.LOCK_SH)
        fcntl.flock(made, fcntl.LOCK_UN)
        second.result(timeout=HANGS_S)
    assert len(list((cache / "logs").glob("install-*.log"))) == 1


def test_environment_is_not_remade_while_it_is_used(cache: Path, heard: Heard) -> None:
    newer = replace(fake(), site_files={"newer.py": "THERE = True\n"})
    with ThreadPoolExecutor(1) as pool:

        def remake() -> None:
            with launch.environment(newer, heard):
                assert launch.is_installed(newer)

        with launch.environment(fake(), Silent()):
            remaking = pool.submit(remake)
            assert heard.saying("waiting for it to finish")
            assert launch.is_installed(fake())
        remaking.result(timeout=HANGS_S)
