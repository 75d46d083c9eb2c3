"""What `measure` found, as it is kept in results/: everything that reproduces the run, and never a key.

Files of older versions stay readable: a new field has a default, and a change that no default can bridge gets a new
SCHEMA_VERSION. docs/schemas/result.schema.json is the schema, written by tools/schemas.py.
"""

from collections.abc import Mapping
from typing import Literal

import msgspec

from hitlab.experiment.plan import Experiment
from hitlab.experiment.shape import Role

SCHEMA_VERSION = 1


_ROLES_BY_NAME = {
    "break": Role.BROKEN,
    "burst": Role.BROKEN,
    "repeat": Role.REPEAT,
    "evicted": Role.PROBE,
    "recovery": Role.RECOVERY,
}


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The engine that was measured, as it describes itself."""

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
    computed_tokens: int  # that no tier had
    median_latency_s: float
    reported_cached_tokens: int | None  # sum over the responses; None where they do not say
    external_hit_tokens: int  # of a tier behind the cache
    overall_hit_rate: float | None = None  # that tier's hits counted too
    local_hit_tokens: int | None = None  # of the cache beside the model; None where the engine does not tell it apart
    host_hit_tokens: int | None = None  # of SGLang's host memory, among the hit tokens
    storage_hit_tokens: int | None = None  # of the storage behind that, among the hit tokens
    evicted_tokens: int | None
    counters: str  # the metric the tally was read from
    prompts_sha256: str
    role: Role | None = None  # what it is there to show; never None once it is read, see below

    def __post_init__(self) -> None:
        """Older files keep no roles; the names that their phases could have say which role each had."""
        if self.role is None:
            msgspec.structs.force_setattr(self, "role", _ROLES_BY_NAME.get(self.name, Role.UNBROKEN))


class ServerAsked(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the user named the server, or had it started; a command that runs the experiment again says the same.

    Keys are never kept, only the names of the environment variables that hold them.
    """

    start: Literal["", "emulate", "cpu"] = ""  # a server that hitlab started itself, or "" for one that was there
    block_tokens: int | None = None
    capacity_blocks: int | None = None
    ranks: int | None = None
    metrics_urls: tuple[str, ...] = ()
    log: str | None = None
    faults: tuple[str, ...] = ()
    engine_args: tuple[str, ...] = ()
    api_key_env: str | None = None
    admin_key_env: str | None = None
    timeout_s: float = 120.0


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
    experiment: Experiment
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
    server: ServerAsked | None = None  # None in files of before it was kept

    @property
    def exit_status(self) -> int:
        """0 agrees, 3 measured well but disagrees, 4 not valid."""
        return 4 if not self.valid else 0 if self.agrees else 3
