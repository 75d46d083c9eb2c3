"""A few lines of Python in an engine's place, and what the tests of its server watch it with."""

import os
import select
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from helpers import HANGS_S

from hitlab.servers.cpu.recipe import CpuRecipe, PipStep

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


class Heard:
    """Progress that remembers what it was told; `saying` waits for a text."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.details: list[str] = []
        self._changed = threading.Condition()

    def say(self, text: str) -> None:
        with self._changed:
            self.lines.append(text)
            self._changed.notify_all()

    @contextmanager
    def step(self, what: str) -> Iterator[Callable[[str], None]]:
        self.say(what)
        yield self.details.append

    def saying(self, text: str) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: any(text in line for line in self.lines), timeout=HANGS_S)


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
    with urllib.request.urlopen(url, timeout=HANGS_S) as reply:
        return int(reply.status)


@contextmanager
def all_gone_after(fifo: Path) -> Iterator[None]:
    """Holds when every process that opened the pipe has ended soon after the body."""
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        yield
        assert select.select([reader], [], [], HANGS_S)[0], "a process still holds the pipe"
        assert os.read(reader, 1) == b""
    finally:
        os.close(reader)
