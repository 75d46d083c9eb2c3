"""Whatever operation fails in a run, it fails under its own check and no other one."""

import json
from pathlib import Path
from typing import Any

import pytest
from helpers import Hitlab

from hitlab.client.http import EngineClient
from hitlab.errors import MetricsError, RequestRefusedError, ResetRefusedError, ServerError

OPERATIONS: dict[str, tuple[str, ServerError]] = {
    "reset": ("reset confirmed", ResetRefusedError("503: busy", where="http://h/reset")),
    "scrape": ("counters readable", MetricsError("502: bad gateway", where="http://h/metrics")),
    "complete": ("every request answered", RequestRefusedError("a prompt got 500: out of luck", where="http://h/v1")),
}
RUN = ("--engine", "vllm", "--emulate", "--requests", 4, "--break-mode", "token", "--break-at", 400, "--json")


class Counted:
    """An operation of the client that fails from its n-th call on, and counts its calls."""

    def __init__(self, patch: pytest.MonkeyPatch, operation: str, fails_from: int) -> None:
        self.calls = 0
        whole = getattr(EngineClient, operation)

        async def counted(*arguments: Any, **named: Any) -> Any:
            self.calls += 1
            if self.calls >= fails_from:
                raise OPERATIONS[operation][1]
            return await whole(*arguments, **named)

        patch.setattr(EngineClient, operation, counted)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_each_call_that_fails_is_told_by_its_own_check_or_is_the_error(
    hitlab: Hitlab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, operation: str
) -> None:
    with monkeypatch.context() as patch:
        whole = Counted(patch, operation, fails_from=10**9)
        assert hitlab("measure", *RUN, "--out", tmp_path).status == 0
    name, error = OPERATIONS[operation]
    measured = 0
    for number in range(1, whole.calls + 1):
        with monkeypatch.context() as patch:
            Counted(patch, operation, fails_from=number)
            ran = hitlab("measure", *RUN, "--out", tmp_path)
        if not ran.out:  # nothing had been measured: the operation's own error, on one line
            assert (ran.status, measured) == (1, 0)
            assert error.what in ran.err
            continue
        found = json.loads(ran.out)
        measured += 1
        assert (ran.status, found["complete"]) == (4, False)
        failed = {check["name"]: check["detail"] for check in found["checks"] if not check["ok"]}
        assert failed.keys() == {name, "run complete"}
        assert error.what in failed[name]
        assert name in found["explanation"]
    assert measured


def test_a_request_that_fails_is_named_by_its_number_and_phase(
    hitlab: Hitlab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    Counted(monkeypatch, "complete", fails_from=2 + 4 + 3)  # two prompts try the reset, four are cold and warm
    found = json.loads(hitlab("measure", *RUN, "--out", tmp_path).out)
    (detail,) = [check["detail"] for check in found["checks"] if check["name"] == "every request answered"]
    assert detail.startswith("request 3 of break: ")
