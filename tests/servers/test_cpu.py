"""Starting engines of our own: real processes and sockets, with a few lines of Python in the engine's place."""

import asyncio
import fcntl
import io
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from hitlab import families
from hitlab.cache.sizes import CacheSizes
from hitlab.client.http import EngineClient
from hitlab.errors import LaunchError, UnreachableError, UsageError
from hitlab.servers.cpu import environments, process_log
from hitlab.servers.cpu import server as launch
from hitlab.servers.cpu.process_log import last_error_line
from hitlab.servers.cpu.recipe import CpuRecipe, PipStep, ServerOptions, ServerSpec
from hitlab.servers.cpu.server import running
from hitlab.tokens import Prompt, Tally

VLLM: CpuRecipe = families.cpu_recipe("vllm")
SGLANG: CpuRecipe = families.cpu_recipe("sglang")

SERVES = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        print("asked for", self.path, flush=True)
        self.send_response(200)
        self.end_headers()
        if self.path == "/die":
            raise KeyboardInterrupt
    def log_message(self, *arguments):
        pass
server = http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
"""
SERVES_FOREVER = SERVES + "server.serve_forever()"
SERVES_ONCE = SERVES + "try: server.serve_forever()\nexcept KeyboardInterrupt: pass\n"
# Two children that do not care for SIGTERM, one of them orphaned; all hold the pipe named by FIFO open.
SERVES_WITH_CHILDREN = """
import os, signal, subprocess, sys
held = os.open(os.environ["FIFO"], os.O_WRONLY)
stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('set', flush=True); signal.pause()"
child = subprocess.Popen([sys.executable, "-c", stubborn], pass_fds=[held], stdout=subprocess.PIPE)
orphan = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {stubborn!r}], pass_fds=[{held}])"
middle = subprocess.Popen([sys.executable, "-c", orphan], pass_fds=[held], stdout=subprocess.PIPE)
child.stdout.readline(), middle.stdout.readline(), middle.wait()
""" + (SERVES_FOREVER)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache directory of this test's own, and little patience with what does not stop when asked."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("hitlab.servers.cpu.processes.GRACE_SECONDS", 0.2)
    return tmp_path / "hitlab"


class Heard(io.StringIO):
    """What was printed; `saying` waits for a text."""

    def __init__(self) -> None:
        super().__init__()
        self._changed = threading.Condition()

    def write(self, text: str) -> int:
        with self._changed:
            self._changed.notify_all()
            return super().write(text)

    def saying(self, text: str) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: text in self.getvalue(), timeout=30)


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def console(heard: Heard) -> Console:
    return Console(file=heard, width=80)


def fake(script: str = SERVES_FOREVER, *pip_steps: PipStep) -> CpuRecipe:
    """A recipe whose engine is a script that is told its port."""
    return CpuRecipe(
        engine="fake",
        title="Fake",
        version="1",
        pip_steps=pip_steps,
        argv=lambda spec: ("python", "-c", script, str(spec.port), *spec.extra_args),
        environment=lambda spec: {"BLOCK_TOKENS": str(spec.block_tokens)},
        ready_path="/ready",
        block_tokens=4,
        capacity_tokens=64,
        download_mb=300,
        installed_mb=1200,
    )


def pip(*arguments: str) -> PipStep:
    return PipStep("a package", arguments)


def status_of(url: str) -> int:
    with urllib.request.urlopen(url) as reply:
        return int(reply.status)


@contextmanager
def all_gone_after(fifo: Path) -> Iterator[None]:
    """Holds when every process that opened the pipe has ended soon after the body."""
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        yield
        assert select.select([reader], [], [], 20)[0], "a process still holds the pipe"
        assert os.read(reader, 1) == b""
    finally:
        os.close(reader)


# The server's life


def test_server_serves_inside_and_its_port_is_free_after(cache: Path, console: Console) -> None:
    with running(fake(), ServerOptions(), console) as server:
        assert status_of(f"{server.base_url}/anything") == 200
        assert server.death() is None
    port = int(server.base_url.rpartition(":")[2])
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port))


def test_readiness_is_asked_for_only_where_the_recipe_says(cache: Path, console: Console) -> None:
    with running(fake(), ServerOptions(), console) as server:
        pass
    assert set(server.log.text().splitlines()) == {"asked for /ready"}


def test_options_reach_the_server(cache: Path, console: Console) -> None:
    script = (
        f"import os, sys; print(sys.argv[1:], os.environ['BLOCK_TOKENS'], os.getcwd(), flush=True)\n{SERVES_FOREVER}"
    )
    port = launch._free_port(0)
    options = ServerOptions(CacheSizes(block_tokens=8), port=port, extra_args=("--seed", "3"))
    with running(fake(script), options, console) as server:
        pass
    assert server.base_url == f"http://127.0.0.1:{port}"
    folder = cache / "models" / "tiny-llama"
    assert server.log.text().startswith(f"['{port}', '--seed', '3'] 8 {folder}\n")
    assert json.loads((folder / "config.json").read_text())["architectures"] == ["LlamaForCausalLM"]


def test_foreign_python_settings_do_not_reach_the_server(
    cache: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    with running(
        fake("import os; print(os.environ.get('PYTHONPATH'))" + SERVES_FOREVER), ServerOptions(), console
    ) as server:
        pass
    assert server.log.text().startswith("None\n")


def test_stubborn_and_orphaned_children_end_with_the_server(
    cache: Path, console: Console, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fifo = tmp_path / "fifo"
    monkeypatch.setenv("FIFO", str(fifo))
    with all_gone_after(fifo), running(fake(SERVES_WITH_CHILDREN), ServerOptions(), console):
        pass


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_no_process_outlives_hitlab(cache: Path, tmp_path: Path, number: signal.Signals) -> None:
    body = f"""
import sys
sys.path[:0] = {[str(Path(__file__).parent), *sys.path]!r}
import hitlab.servers.cpu.processes
from test_cpu import *
hitlab.servers.cpu.processes.GRACE_SECONDS = 0.2
with running(fake(SERVES_WITH_CHILDREN), ServerOptions(), Console(stderr=True)):
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


def test_death_at_start_shows_the_engines_last_error_and_its_log(cache: Path, console: Console) -> None:
    script = "print('loading'); raise RuntimeError('No common block size for 16')"
    with pytest.raises(LaunchError) as raised, running(fake(script), ServerOptions(), console):
        pass
    log = next((cache / "logs").glob("fake-1-*.log"))
    assert str(raised.value) == (
        f"Fake 1 died at start (exit status 1): RuntimeError: No common block size for 16; its log is {log}"
    )


def test_death_by_signal_is_named(cache: Path, console: Console) -> None:
    script = "import os; os.kill(os.getpid(), 9)"
    with (
        pytest.raises(LaunchError, match=r"killed by signal 9, perhaps for lack of memory"),
        running(fake(script), ServerOptions(), console),
    ):
        pass


def test_server_that_never_gets_ready_is_given_up_and_ended(
    cache: Path, console: Console, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fifo = tmp_path / "fifo"
    monkeypatch.setenv("FIFO", str(fifo))
    script = (
        "import os, signal; os.open(os.environ['FIFO'], os.O_WRONLY); print('warming up', flush=True); signal.pause()"
    )
    recipe = replace(fake(script), ready_seconds=1.0)
    with (
        all_gone_after(fifo),
        pytest.raises(LaunchError, match="not ready after 1 s: warming up; its log is "),
        running(recipe, ServerOptions(), console),
    ):
        pass


def test_server_error_after_the_server_died_says_that_it_died(cache: Path, console: Console) -> None:
    script = SERVES_ONCE + "print('ValueError: lost'); sys.exit(3)"
    with (
        pytest.raises(LaunchError, match=r"Fake 1 ended by itself \(exit status 3\): ValueError: lost; its log is "),
        running(fake(script), ServerOptions(), console) as server,
    ):
        status_of(f"{server.base_url}/die")
        raise UnreachableError("connection refused")


def test_server_error_of_a_living_server_stays_what_it_is(cache: Path, console: Console) -> None:
    with pytest.raises(UnreachableError, match="no answer in time"), running(fake(), ServerOptions(), console):
        raise UnreachableError("no answer in time")


def test_errors_the_server_survived_at_start_do_not_explain_its_end(cache: Path, console: Console) -> None:
    script = "print('ValueError: never mind', flush=True)" + SERVES_ONCE
    with running(fake(script), ServerOptions(), console) as server:
        status_of(f"{server.base_url}/die")
        assert "ended by itself (exit status 0): asked for /die; its log is " in server.wait()


def test_wait_returns_when_the_server_ends_by_itself(cache: Path, console: Console) -> None:
    with running(fake(SERVES_ONCE), ServerOptions(), console) as server:
        status_of(f"{server.base_url}/die")
        assert "Fake 1 ended by itself" in server.wait()


def test_taken_port_is_one_clear_line(cache: Path, console: Console) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(LaunchError) as raised, running(fake(), ServerOptions(port=port), console):
            pass
    assert str(raised.value) == (
        f"127.0.0.1: port {port} cannot be used: Address already in use; "
        "choose another with --port, or 0 for any free one"
    )
    assert not (cache / "envs").exists()  # said before anything is installed


def test_port_out_of_range_is_one_clear_line(cache: Path, console: Console) -> None:
    with (
        pytest.raises(LaunchError, match="port 70000 cannot be used"),
        running(fake(), ServerOptions(port=70_000), console),
    ):
        pass


# The environment


def test_size_is_told_before_the_first_installation_and_not_again(cache: Path, console: Console, heard: Heard) -> None:
    with launch.environment(fake(), console) as home:
        first = heard.getvalue()
    with launch.environment(fake(), console):
        assert heard.getvalue() == first
    assert first.splitlines()[0] == (
        f"Fake 1 is not installed yet: about 0.3 GB to download and 1.2 GB on disk in {home}, once; "
        "it takes a few minutes"
    )
    assert "step 1 of 1: a virtual environment" in first.splitlines()[1]
    assert launch.is_installed(fake())


def test_half_made_environment_is_remade(cache: Path, console: Console, heard: Heard) -> None:
    leftover = cache / "envs" / "fake-1" / "lib" / "leftover"
    leftover.mkdir(parents=True)
    assert not launch.is_installed(fake())
    with launch.environment(fake(), console):
        assert "half made" in heard.getvalue()
        assert not leftover.exists()


def test_environment_of_another_recipe_is_remade(cache: Path, console: Console) -> None:
    newer = replace(fake(), site_files={"newer.py": "THERE = True\n"})
    with launch.environment(fake(), console):
        assert not launch.is_installed(newer)
    with launch.environment(newer, console) as home:
        code = "import newer; print(newer.THERE)"
        assert subprocess.check_output([home / "bin" / "python", "-c", code]) == b"True\n"


def test_environment_whose_python_is_gone_is_remade(cache: Path, console: Console) -> None:
    with launch.environment(fake(), console) as home:
        python = home / "bin" / "python"
    python.unlink()
    python.symlink_to("/nowhere/python")
    assert not launch.is_installed(fake())
    with launch.environment(fake(), console):
        assert subprocess.check_output([python, "-c", "print(1)"]) == b"1\n"


def test_pip_installs_what_the_steps_say(cache: Path, console: Console, tmp_path: Path) -> None:
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
    with running(fake(script, step), ServerOptions(), console) as server:
        pass
    assert server.log.text().startswith("42\n")
    assert not (cache / "envs" / "fake-1" / "tmp").exists()


def test_pip_failure_shows_pips_last_error_and_leaves_nothing_half_made(cache: Path, console: Console) -> None:
    recipe = fake(SERVES_FOREVER, pip("install", "--no-index", "no-such-engine==1"))
    with pytest.raises(LaunchError) as raised, running(recipe, ServerOptions(), console):
        pass
    log = next((cache / "logs").glob("install-fake-1-*.log"))
    assert str(raised.value) == (
        "installing a package failed (exit status 1): "
        f"ERROR: No matching distribution found for no-such-engine==1; the whole log is {log}"
    )
    assert not (cache / "envs" / "fake-1").exists()


def test_no_network_is_named_as_the_cause(cache: Path, console: Console) -> None:
    closed = f"http://127.0.0.1:{launch._free_port(0)}/simple"
    recipe = fake(SERVES_FOREVER, pip("install", "--retries", "1", "--index-url", closed, "no-such-engine==1"))
    with (
        pytest.raises(LaunchError, match="pip cannot reach its package index"),
        running(recipe, ServerOptions(), console),
    ):
        pass


def test_interrupted_installation_ends_pip_and_leaves_nothing_half_made(cache: Path, console: Console) -> None:
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
            with pytest.raises(KeyboardInterrupt), running(recipe, ServerOptions(), console):
                pass
            assert interrupting.result(timeout=20) == b"closed"
    assert not (cache / "envs" / "fake-1").exists()


def test_too_little_disk_space_is_said_before_anything_is_made(cache: Path, console: Console) -> None:
    recipe = replace(fake(), installed_mb=10**9)
    with (
        pytest.raises(LaunchError, match=r"not enough disk space for Fake 1: 1000000\.6 GB needed, \d+\.\d GB free"),
        running(recipe, ServerOptions(), console),
    ):
        pass
    assert not (cache / "envs" / "fake-1").exists()


def test_unsuitable_python_is_named(cache: Path, console: Console) -> None:
    recipe = replace(fake(), python=((3, 1), (3, 2)))
    with (
        pytest.raises(LaunchError, match=r"Fake 1 runs on Python 3\.1 to 3\.2, and this is 3\.\d+ "),
        running(recipe, ServerOptions(), console),
    ):
        pass


def test_unwritable_cache_directory_is_one_clear_line(
    tmp_path: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with (
        pytest.raises(LaunchError, match=r"file/hitlab.*: Not a directory; .*XDG_CACHE_HOME"),
        running(fake(), ServerOptions(), console),
    ):
        pass


def test_two_starts_at_once_make_one_environment(cache: Path) -> None:
    both_serve = threading.Barrier(2)

    def start() -> int:
        with running(fake(), ServerOptions(), Console(file=io.StringIO())) as server:
            both_serve.wait(timeout=60)
            return status_of(f"{server.base_url}/")

    with ThreadPoolExecutor(2) as pool:
        starts = [pool.submit(start) for _ in range(2)]
        assert [started.result() for started in starts] == [200, 200]
    assert len(list((cache / "logs").glob("install-*.log"))) == 1
    assert len(list((cache / "logs").glob("fake-*.log"))) == 2


def test_second_start_waits_for_the_first_to_install_and_says_so(cache: Path, console: Console, heard: Heard) -> None:
    (cache / "envs").mkdir(parents=True)
    with (cache / "envs" / "fake-1.lock").open("w") as lock, ThreadPoolExecutor(1) as pool:

        def make() -> bool:
            with launch.environment(fake(), console):
                return launch.is_installed(fake())

        fcntl.flock(lock, fcntl.LOCK_EX)
        second = pool.submit(make)
        assert heard.saying("waiting for it to finish")
        assert not launch.is_installed(fake())
        fcntl.flock(lock, fcntl.LOCK_UN)
        assert second.result(timeout=60)


def test_start_that_waited_uses_what_the_other_made_meanwhile(cache: Path, console: Console, heard: Heard) -> None:
    (cache / "envs").mkdir(parents=True)
    with (cache / "envs" / "fake-1.lock").open("w") as lock, ThreadPoolExecutor(1) as pool:

        def make() -> None:
            with launch.environment(fake(), console):
                pass

        fcntl.flock(lock, fcntl.LOCK_SH)  # so that the second start finds nothing, and then may not begin
        second = pool.submit(make)
        assert heard.saying("waiting for it to finish")
        environments._make(fake(), launch.environment_dir(fake()), Console(file=io.StringIO()))
        fcntl.flock(lock, fcntl.LOCK_UN)
        second.result(timeout=60)
    assert len(list((cache / "logs").glob("install-*.log"))) == 1


def test_only_the_newest_logs_are_kept(cache: Path, console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_log, "KEPT_LOGS", 3)
    (cache / "logs").mkdir(parents=True)
    for number in range(5):
        (cache / "logs" / f"old-{number}.log").touch()
        os.utime(cache / "logs" / f"old-{number}.log", (number, number))
    with running(fake(), ServerOptions(), console) as server:
        kept = {path.name for path in (cache / "logs").iterdir()}
    assert len(kept) == 3
    assert {server.log.path.name, "old-4.log"} < kept


# Last error lines, from logs of the real engines and of pip


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


# The recipes

SPEC = ServerSpec("model", port=8123, block_tokens=64, capacity_blocks=48)


def value_of(flag: str, argv: tuple[str, ...]) -> str:
    return argv[argv.index(flag) + 1]


def test_vllm_gets_blocks_and_a_longest_request_that_fits_beside_the_reserved_block() -> None:
    argv = VLLM.argv(SPEC)
    assert value_of("--block-size", argv) == "64"
    assert value_of("--num-gpu-blocks-override", argv) == "48"
    assert value_of("--max-model-len", argv) == "3008"  # 47 x 64
    assert value_of("--max-model-len", VLLM.argv(replace(SPEC, capacity_blocks=10_000))) == "16384"


def test_sglang_gets_tokens() -> None:
    argv = SGLANG.argv(SPEC)
    assert value_of("--page-size", argv) == "64"
    assert value_of("--max-total-tokens", argv) == "3072"  # 48 x 64


@pytest.mark.parametrize("recipe", [VLLM, SGLANG], ids=lambda recipe: recipe.name)
def test_ranks_and_extra_arguments_come_through(recipe: CpuRecipe) -> None:
    argv = recipe.argv(replace(SPEC, ranks=2, extra_args=("--seed", "3")))
    assert argv[-2:] == ("--seed", "3")  # last, so that they win
    assert [flag for flag in argv if flag in recipe.owned_args and "d" in flag and value_of(flag, argv) == "2"]
    assert not [flag for flag in recipe.argv(SPEC) if flag in ("--data-parallel-size", "--dp-size")]


def test_sglang_ranks_get_cpus_of_their_own() -> None:
    def bound(ranks: int, *cpus: int) -> str | None:
        return SGLANG.environment(replace(SPEC, ranks=ranks, cpus=cpus)).get("SGLANG_CPU_OMP_THREADS_BIND")

    assert bound(1, 0, 1) is None
    assert bound(2, 4, 5) == "4|5"
    assert bound(3, 4, 5) == "4|5|4"


@pytest.mark.parametrize("recipe", [VLLM, SGLANG], ids=lambda recipe: recipe.name)
def test_recipes_pin_every_distribution_and_name_no_address(recipe: CpuRecipe) -> None:
    wanted = [argument for step in recipe.pip_steps for argument in step.arguments[1:] if not argument.startswith("--")]
    assert len(wanted) > 100
    assert [argument for argument in wanted if argument.count("==") != 1 or "/" in argument] == []


@pytest.mark.parametrize("recipe", [VLLM, SGLANG], ids=lambda recipe: recipe.name)
def test_files_written_beside_the_packages_compile(recipe: CpuRecipe) -> None:
    assert recipe.site_files
    for path, text in recipe.site_files.items():
        if path.endswith(".py"):
            compile(text, path, "exec")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (
            ServerOptions(CacheSizes(block_tokens=16)),
            "vLLM on the CPU has no blocks of 16 tokens; --block-size must be a multiple of 32",
        ),
        (ServerOptions(CacheSizes(block_tokens=48)), "no blocks of 48 tokens"),
        (ServerOptions(CacheSizes(block_tokens=0)), "no blocks of 0 tokens"),
        (ServerOptions(CacheSizes(capacity_blocks=1)), "--capacity-blocks is 1; it must be at least 2"),
        (ServerOptions(CacheSizes(ranks=0)), "--dp is 0"),
        (ServerOptions(port=-1), "--port is -1"),
        (ServerOptions(extra_args=("--port=1",)), "--port among the engine's arguments; use hitlab's own option"),
    ],
)
def test_what_the_engine_would_refuse_is_refused_before_it_starts(options: ServerOptions, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        VLLM.spec(options, "model", cpus=(0,))


def test_defaults_are_the_recipes() -> None:
    spec = VLLM.spec(ServerOptions(), "model", cpus=(0,))
    assert (spec.block_tokens, spec.capacity_blocks) == (32, 8192)
    assert VLLM.spec(ServerOptions(CacheSizes(block_tokens=128)), "model", cpus=(0,)).capacity_blocks == 2048


# The engines themselves


@pytest.mark.real_engine
@pytest.mark.parametrize("recipe", [VLLM, SGLANG], ids=lambda recipe: recipe.name)
def test_real_engine_starts_counts_resets_and_leaves_nothing_behind(recipe: CpuRecipe, console: Console) -> None:
    if not launch.is_installed(recipe):
        pytest.skip(f"{recipe.title} is not installed; `hitlab serve --engine {recipe.engine} --cpu` installs it")
    prompt = Prompt(tuple(range(1000, 2000)))
    options = ServerOptions(CacheSizes(block_tokens=32, capacity_blocks=1024))

    async def talk(base_url: str) -> None:
        async with EngineClient(families.engine(recipe.engine), base_url) as client:
            facts = await client.facts()
            assert (facts.version, facts.block_tokens) == (recipe.version, 32)
            assert facts.capacity_tokens in (32_768, 32_768 - 32)
            before = await client.scrape()
            # Nothing the start did was counted, not even a warm-up.
            assert all(tally == Tally(0, 0) for tally in before.pairs.values())
            cached = [(await client.complete(prompt)).completion.cached_tokens for _ in range(2)]
            assert (await client.reset()).done is not False
            cached.append((await client.complete(prompt)).completion.cached_tokens)
            assert cached == [0, 992, 0]

    with running(recipe, options, console) as server:
        asyncio.run(talk(server.base_url))
        started = descendants(os.getpid())
    assert len(started) > 3
    assert not {process for process, _ in processes()} & started


def processes() -> list[tuple[int, int]]:
    """Every process of the machine and its parent."""
    lines = subprocess.check_output(["ps", "-A", "-o", "pid=,ppid="], text=True).splitlines()
    return [(int(process), int(parent)) for process, parent in map(str.split, lines)]


def descendants(ancestor: int) -> set[int]:
    table, found = processes(), {ancestor}
    while children := {process for process, parent in table if parent in found} - found:
        found |= children
    return found - {ancestor}
