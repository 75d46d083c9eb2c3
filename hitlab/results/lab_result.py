"""What a lab run found, as it is kept in results/: every point predicted and measured, and never a key."""

import msgspec

from hitlab.experiment.plan import Experiment
from hitlab.results.run_result import Check, EngineInfo, PhaseResult

LAB_SCHEMA_VERSION = 1


class LabPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One point of a lab's picture: the tokens of one or more phases, added up. The cache model's is the prediction."""

    x: float | str
    series: str
    remark: str
    aside: bool  # in the table, not in the picture
    queried_tokens: int
    hit_tokens: int
    model_hit_tokens: int
    closed_form_hit_tokens: int

    @property
    def error_tokens(self) -> int:
        """Measured minus predicted."""
        return self.hit_tokens - self.model_hit_tokens


class LogSaid(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine's log said at the end of a step: tokens since the trial began, or the rate of its window."""

    after: str
    lines: int
    queried_tokens: int | None
    hit_tokens: int | None
    window_hit_rate: float | None


class LabTrial(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a lab: the experiment, its phases, and the checks that failed."""

    experiment: Experiment
    points: list[LabPoint]
    phases: list[PhaseResult]
    failed_checks: list[Check]
    verdict: str
    valid: bool
    agrees: bool
    log: list[LogSaid] = []


class LinePoint(msgspec.Struct, frozen=True, kw_only=True):
    """One point of the closed form's line."""

    x: float | str
    series: str
    queried_tokens: int
    hit_tokens: int


class LabPart(msgspec.Struct, frozen=True, kw_only=True):
    """What a lab found on one server."""

    engine: EngineInfo
    trials: list[LabTrial]
    line: list[LinePoint]
    closer: tuple[float, float] | None = None  # a stretch of the axis that the picture shows larger


class LabResult(msgspec.Struct, frozen=True, kw_only=True):
    """A whole lab run. `kind` tells it from a measured run's file."""

    schema_version: int
    kind: str
    hitlab_version: str
    started_utc: str
    lab: str
    title: str
    question: str
    picture: str
    axis_name: str
    axis_unit: str
    axis_log: bool
    share_of_possible: bool
    seed: int
    quick: bool
    parts: list[LabPart]
    complete: bool
    command: str  # that repeats it

    @property
    def trials(self) -> list[LabTrial]:
        """The runs on all servers."""
        return [trial for part in self.parts for trial in part.trials]

    @property
    def valid(self) -> bool:
        """Whether every run can be trusted, and none is missing."""
        return self.complete and all(trial.valid for trial in self.trials)

    @property
    def agrees(self) -> bool:
        """Whether every run agrees with its model to the token."""
        return all(trial.agrees for trial in self.trials)

    @property
    def exit_status(self) -> int:
        """0 agrees, 3 measured well but disagrees, 4 not valid."""
        return 4 if not self.valid else 0 if self.agrees else 3

    @property
    def verdict(self) -> str:
        """What came out, in one sentence."""
        trials = self.trials
        invalid = sum(not trial.valid for trial in trials)
        if invalid:
            return f"{invalid:,} of {len(trials):,} runs can't be trusted"
        points = [point for trial in trials for point in trial.points]
        off = [point for point in points if point.error_tokens]
        if not off:
            ending = "" if self.complete else "; the lab was cut short"
            return f"all {len(points):,} points agree with the model to the token{ending}"
        worst = max(off, key=lambda point: abs(point.error_tokens) / point.queried_tokens)
        return (
            f"{len(off):,} of {len(points):,} points differ from the model, the worst by {worst.error_tokens:+,} of "
            f"{worst.queried_tokens:,} tokens at {named(worst.x)}"
        )


def named(x: float | str) -> str:
    """A value of the axis as text on one line.

    >>> named(4.0), named("next pass,\\nno reset")
    ('4', 'next pass, no reset')
    """
    return x.replace("\n", " ") if isinstance(x, str) else f"{x:,.6g}"


def whole_tokens(point: LabPoint, share_of_possible: bool) -> int:
    """What rates are shares of: all prompt tokens or, if `share_of_possible`, the hits of a cache that never evicts."""
    return point.closed_form_hit_tokens if share_of_possible else point.queried_tokens


def rate(point: LabPoint, hit_tokens: int, share_of_possible: bool) -> float | None:
    """Hit tokens as a share of `whole_tokens`, 0 to 1; None where that is 0."""
    whole = whole_tokens(point, share_of_possible)
    return hit_tokens / whole if whole else None
