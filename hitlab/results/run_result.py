"""What `measure` found, as it is kept in results/: everything that reproduces the run, and never a key.

Files of older versions stay readable: a new field has a default, and a change that no default can bridge gets a new
SCHEMA_VERSION. docs/schemas/result.schema.json is the schema, written by tools/schemas.py.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

SCHEMA_VERSION = 1


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured, in its own words."""

    name: str
    title: str
    version: str | None
    model: str | None
    base_url: str
    block_tokens: int
    capacity_blocks: int | None  # of one data-parallel rank, by the engine's own count
    data_parallel_ranks: int
    source: str  # "real" or "emulated"


class PhaseResult(msgspec.Struct, frozen=True, kw_only=True):
    """One phase: what was sent, what the counters moved by, what was predicted. Rates are 0 to 1."""

    name: str
    requests: int
    prompt_tokens: int
    queried_tokens: int
    hit_tokens: int
    hit_rate: float | None
    closed_form_hit_tokens: int
    model_hit_tokens: int
    error_tokens: int  # measured minus model
    error_points: float
    agrees: bool
    computed_tokens: int
    median_latency_s: float
    reported_cached_tokens: int | None  # sum over the responses; None where they do not say
    external_hit_tokens: int  # of a tier behind the cache
    overall_hit_rate: float | None = None  # that tier's hits counted too
    evicted_tokens: int | None
    counters: str  # the metric the tally was read from
    prompts_sha256: str


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One condition of a valid run."""

    name: str
    ok: bool
    detail: str


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """A whole run."""

    schema_version: int
    hitlab_version: str
    started_utc: str
    engine: EngineInfo
    experiment: Mapping[str, Any]
    phases: list[PhaseResult]
    checks: list[Check]
    complete: bool
    valid: bool
    agrees: bool
    verdict: str
    explanation: str
    notes: list[str]
    seed: int
    counters_before: Mapping[str, float]
    counters_after: Mapping[str, float]

    @property
    def exit_status(self) -> int:
        """0 agrees, 3 measured well but disagrees, 4 not valid."""
        return 4 if not self.valid else 0 if self.agrees else 3
