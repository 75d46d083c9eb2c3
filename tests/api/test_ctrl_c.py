"""Ctrl-C ends a measurement in a script at once, with all that it has started."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import HANGS_S

from hitlab.servers.emulated import server as emulate
from hitlab.servers.emulated.config import Faults

MEASURE = """
import signal, sys, threading
import hitlab as hl

signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    hl.measure("vllm", sys.argv[1])
except KeyboardInterrupt:
    print("interrupted with", *sorted(thread.name for thread in threading.enumerate()))
"""

# The server is the measurement's own here; a thread sends the signal once it holds a POST back.
EMULATE = """
import os, signal, threading
import hitlab as hl
from hitlab.servers import start

signal.signal(signal.SIGINT, signal.default_int_handler)
usual, pressing = start.emulated, []

def hanging(engine, sizes):
    server = usual(engine, sizes, ["hang-post=20"])

    def press():
        server.hanging.wait()
        os.kill(os.getpid(), signal.SIGINT)

    pressing.append(threading.Thread(target=press))
    pressing[0].start()
    return server

start.emulated = hanging

def measure():
    try:
        hl.measure("vllm", emulate=True)
    except KeyboardInterrupt:
        pressing[0].join()
        print("interrupted with", *sorted(thread.name for thread in threading.enumerate()))

"""
NOTEBOOK = """
import asyncio
loop = asyncio.new_event_loop()
loop.call_soon(measure)
loop.call_soon(loop.stop)
loop.run_forever()
"""


def test_a_request_that_is_never_answered_is_left(root: Path) -> None:
    with emulate.start("vllm", faults=Faults(hang_post=20)) as server:
        process = subprocess.Popen(
            [sys.executable, "-c", MEASURE, server.base_url],
            cwd=root,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert server.hanging.wait(HANGS_S)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=HANGS_S)
        finally:
            process.kill()
            process.communicate()
            server.release()
    assert (process.returncode, out, err) == (0, "interrupted with MainThread\n", "")


@pytest.mark.parametrize("called", ["measure()", NOTEBOOK], ids=["plain", "in a loop that runs"])
def test_the_emulated_server_ends_too(root: Path, called: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", EMULATE + called], cwd=root, capture_output=True, text=True, timeout=HANGS_S, check=False
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "interrupted with MainThread\n", "")
