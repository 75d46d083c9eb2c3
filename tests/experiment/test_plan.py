"""What is asked of an experiment becomes the same steps however it is spelled, or is refused in one line."""

from dataclasses import replace

import pytest

from hitlab.errors import UsageError
from hitlab.experiment.plan import Experiment, plan
from hitlab.experiment.shape import SharedPrefix

SMALL = Experiment(SharedPrefix(4, 100, 20))


def test_names_in_any_case_are_the_same_experiment() -> None:
    spelled = replace(SMALL, workload="Shared-Prefix", break_mode="TOKEN")
    plain = plan(replace(SMALL, workload="shared-prefix", break_mode="token"), 1)
    assert plan(spelled, 1).experiment == plain.experiment


@pytest.mark.parametrize("break_mode", ["token", "salt", "capacity", "burst"])
def test_conversation_is_not_broken(break_mode: str) -> None:
    with pytest.raises(UsageError, match="multi-turn has no breaks"):
        plan(replace(SMALL, workload="multi-turn", break_mode=break_mode), 1)


def test_no_phase_has_fewer_than_no_requests() -> None:
    with pytest.raises(UsageError, match="-1 requests"):
        plan(replace(SMALL, shape=SharedPrefix(0, 100, 20)), 1)
