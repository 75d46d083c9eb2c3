"""A verdict goes by the roles that a break gives its phases, whatever they are called."""

import json
import sys
from importlib import import_module
from pathlib import Path

import pytest
from helpers import Hitlab

NEW_BREAK = '''
"""Every prompt with the salt of its own request; phases with names of its own."""

from dataclasses import replace

from hitlab.experiment.shape import BreakOptions, ColdRequests, Phase, Role, SharedPrefix
from hitlab.experiment.steps import Act, Draw, Send
from hitlab.tokens import Prompt

SUMMARY = "another salt in every request, in phases of other names"
TAKES: tuple[str, ...] = ()


def steps(shape: SharedPrefix, options: BreakOptions) -> list[Act | Send]:
    """From an empty cache."""

    def add_salt(prompt: Prompt, draw: Draw) -> Prompt:
        return replace(prompt, salt=draw.salt())

    plain = Phase("as it was", Role.{plain}, shape.requests, shape.prefix_tokens, ColdRequests.ALL)
    return [Act.RESET, Send(plain){more}]
'''
SALTED = """,
        Send(Phase("salted", Role.BROKEN, shape.requests, 0, ColdRequests.NONE), add_salt),
        Send(Phase("salted again", Role.REPEAT, shape.requests, 0, ColdRequests.NONE), add_salt),
    """


@pytest.fixture
def new_break(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where a file is a new member of workloads/breaks."""
    package = import_module("hitlab.workloads.breaks")
    folders = [*package.__path__, str(tmp_path)]
    monkeypatch.setattr(package, "__path__", folders)
    monkeypatch.setattr(package.__spec__, "submodule_search_locations", folders)
    monkeypatch.delitem(sys.modules, "hitlab.workloads.breaks.brand_new", raising=False)
    return tmp_path / "brand_new.py"


def test_a_new_breaks_phases_are_not_summed_with_cold_and_warm(hitlab: Hitlab, new_break: Path, tmp_path: Path) -> None:
    new_break.write_text(NEW_BREAK.replace("{plain}", "BROKEN").replace("{more}", ""))
    ran = hitlab(
        *("measure", "--engine", "vllm", "--emulate", "--requests", 8, "--break-mode", "brand-new", "--json"),
        *("--out", tmp_path / "results"),
    )
    found = json.loads(ran.out)
    assert [phase["role"] for phase in found["phases"]] == ["unbroken", "unbroken", "broken"]
    assert "6,944 of 9,600 prompt tokens hit" in found["explanation"]  # 13,888 of 19,200 with the break's own phase


def test_a_new_break_of_a_key_is_called_broken(hitlab: Hitlab, new_break: Path, tmp_path: Path) -> None:
    new_break.write_text(NEW_BREAK.replace("{plain}", "UNBROKEN").replace("{more}", SALTED))
    target = ("--break-mode", "brand-new", "--requests", 8)
    ran = hitlab("measure", "--engine", "vllm", "--emulate", *target, "--json", "--out", tmp_path / "results")
    assert json.loads(ran.out)["verdict"] == "key broken"
    listed = json.loads(hitlab("results", "list", "--folder", tmp_path / "results", "--json").out)
    assert listed[0]["hit_rate"] == 0  # of the salted pass, its headline
    predicted = json.loads(hitlab("predict", *target, "--json").out)
    assert (predicted["hit_tokens"], predicted["prompt_tokens"]) == (0, 9600)
