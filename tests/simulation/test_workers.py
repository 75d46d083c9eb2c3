"""Worker processes do not see Ctrl-C, from their start on, and are ended by the process that started them."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import joblib
import pytest

from hitlab.simulation.workers import Workers, results, sigint_blocked

PRINT_MASK = "import signal; print(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))"


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    """End what a test leaves running."""
    from joblib.externals.loky import get_reusable_executor

    yield
    get_reusable_executor().shutdown(wait=True, kill_workers=True)


def is_blocked() -> bool:
    return signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_a_process_started_inside_has_ctrl_c_blocked_and_this_one_gets_it_afterwards() -> None:
    with pytest.raises(KeyboardInterrupt), sigint_blocked():
        ran = subprocess.run([sys.executable, "-c", PRINT_MASK], capture_output=True, text=True, check=True)
        signal.raise_signal(signal.SIGINT)
        is_blocked_inside = is_blocked()
    assert (ran.stdout, is_blocked_inside, is_blocked()) == ("True\n", True, False)


def test_a_worker_that_gets_ctrl_c_goes_on_with_its_work() -> None:
    tasks = [joblib.delayed(signal.raise_signal)(signal.SIGINT) for _ in range(6)]
    tasks += [joblib.delayed(abs)(-number) for number in range(6)]
    found = list(results(Workers(jobs=2), tasks))
    assert sorted(each for each in found if each is not None) == [0, 1, 2, 3, 4, 5]
    assert len(found) == 12
    assert not is_blocked()


def test_workers_are_ended_when_the_caller_stops_early(recwarn: pytest.WarningsRecorder) -> None:
    found = results(Workers(jobs=2), (joblib.delayed(os.getpid)() for _ in range(1000)))
    worker = next(found)
    os.kill(worker, 0)  # it is there
    found.close()
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)
    assert recwarn.list == []
