"""Worker processes see no signal that ends a command, from their start on; who started them ends them."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import joblib
import pytest

from hitlab.simulation.workers import Workers, results, signals_blocked

STOPS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
PRINT_MASK = "import signal; print(*sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, []))))"


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    """End what a test leaves running."""
    from joblib.externals.loky import get_reusable_executor

    yield
    get_reusable_executor().shutdown(wait=True, kill_workers=True)


def blocked() -> set[int]:
    return {*signal.pthread_sigmask(signal.SIG_BLOCK, [])}


def test_a_process_started_inside_has_all_blocked_and_this_one_gets_it_afterwards() -> None:
    with pytest.raises(KeyboardInterrupt), signals_blocked():
        ran = subprocess.run([sys.executable, "-c", PRINT_MASK], capture_output=True, text=True, check=True)
        signal.raise_signal(signal.SIGINT)
        inside = blocked()
    assert (ran.stdout, inside, blocked()) == ("1 2 15\n", {*STOPS}, set())


@pytest.mark.parametrize("number", STOPS)
def test_a_worker_that_gets_a_signal_goes_on_with_its_work(number: int) -> None:
    tasks = [joblib.delayed(signal.raise_signal)(number) for _ in range(6)]
    tasks += [joblib.delayed(abs)(-number) for number in range(6)]
    found = list(results(Workers(jobs=2), tasks))
    assert sorted(each for each in found if each is not None) == [0, 1, 2, 3, 4, 5]
    assert len(found) == 12
    assert not blocked()


def test_workers_are_ended_when_the_caller_stops_early(recwarn: pytest.WarningsRecorder) -> None:
    found = results(Workers(jobs=2), (joblib.delayed(os.getpid)() for _ in range(1000)))
    worker = next(found)
    os.kill(worker, 0)  # it is there
    found.close()
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)
    assert recwarn.list == []


PARENT = """
import os, sys, joblib
from hitlab.simulation.workers import Workers, results
for each in results(Workers(jobs=2), (joblib.delayed(os.getpid)() for _ in range(10**6))):
    print(each, flush=True)
"""


def test_workers_end_when_what_started_them_was_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as parent:
        assert parent.stdout
        worker = int(parent.stdout.readline())
        try:
            parent.kill()
            parent.communicate(timeout=60)  # to the end of stderr, which each of its processes holds open
        except subprocess.TimeoutExpired:
            os.kill(worker, signal.SIGKILL)
            raise
