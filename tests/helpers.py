"""What tests import from one another's side."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hitlab.experiment.plan import Experiment
from hitlab.results.run_result import EngineInfo, Result


@dataclass(frozen=True)
class Ran:
    """What a command left behind."""

    status: int
    out: str
    err: str


Hitlab = Callable[..., Ran]

# Seconds after which whatever a test waits for is held to hang. No test takes nearly so long on a busy machine.
HANGS_S = 600.0


def kept_result(experiment: Experiment, source: str = "real", **changes: Any) -> Result:
    """A kept result of this experiment on vLLM, with nothing measured in it."""
    fields: dict[str, Any] = {
        "schema_version": 1,
        "hitlab_version": "0",
        "started_utc": "2026-11-29T23:01:43+00:00",
        "engine": EngineInfo(
            name="vllm",
            title="vLLM",
            version="0.32.0",
            model="tiny",
            base_url="http://h:8000",
            block_tokens=16,
            capacity_blocks=2047,
            data_parallel_ranks=1,
            source=source,
        ),
        "experiment": experiment,
        "phases": [],
        "checks": [],
        "complete": True,
        "valid": True,
        "agrees": True,
        "verdict": "healthy",
        "explanation": "",
        "notes": [],
        "seed": experiment.seed,
        "counters_before": {},
        "counters_after": {},
    }
    return Result(**(fields | changes))
