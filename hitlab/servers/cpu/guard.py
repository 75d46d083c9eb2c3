"""Runs a command and ends all of it once the parent is gone: python guard.py GRACE_SECONDS COMMAND [ARGUMENT...]

A process of its own, so that no server outlives hitlab however that ends: Ctrl-C, kill -9, a closed terminal.
The parent holds the other end of stdin. When that closes, every process of the command's session is asked to
stop, and killed if it has not after GRACE_SECONDS. The exit status is the command's; 128 + n after signal n.
Runs as a script, so it imports nothing of hitlab.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time

_LINUX_PR_SET_CHILD_SUBREAPER = 36


def main(grace_seconds: float, command: list[str]) -> int:
    """Run the command until it ends or the parent does; its exit status."""
    # Orphans of the command become our children, so that the dead among them do not linger as zombies where
    # process 1 reaps none (in many containers) and look alive.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_LINUX_PR_SET_CHILD_SUBREAPER, 1)
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    except OSError as error:
        print(f"error: {command[0]}: {error.strerror}", flush=True)
        return 127
    signal.signal(signal.SIGTERM, lambda *_: _signal(process.pid, signal.SIGTERM))
    threading.Thread(target=_outlive_parent, args=(process.pid, grace_seconds), daemon=True).start()
    status = process.wait()
    _end_session(process.pid, grace_seconds)
    return status if status >= 0 else 128 - status


def _outlive_parent(session: int, grace_seconds: float) -> None:
    while os.read(0, 1024):
        pass
    _signal(session, signal.SIGTERM)
    time.sleep(grace_seconds)
    _signal(session, signal.SIGKILL)


def _end_session(session: int, grace_seconds: float) -> None:
    """End the processes that the command left behind when it ended by itself."""
    for number, seconds in ((signal.SIGTERM, grace_seconds), (signal.SIGKILL, 2.0)):
        _signal(session, number)
        deadline = time.monotonic() + seconds
        while _alive(session):
            if time.monotonic() > deadline:
                break
            time.sleep(0.02)
        else:
            return


def _alive(session: int) -> bool:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-session, os.WNOHANG)[0]:
            pass
    return _signal(session, 0)


def _signal(session: int, number: int) -> bool:
    try:
        os.killpg(session, number)
    except (ProcessLookupError, PermissionError):  # macOS: PermissionError when only zombies are left
        return False
    return True


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), sys.argv[2:]))
