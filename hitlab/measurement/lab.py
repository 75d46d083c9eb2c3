"""Run a lab: each of its trials as a measured run, on one server after another, into one result."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from hitlab import __version__
from hitlab.client.engine_log import FollowedLog
from hitlab.client.http import EngineClient
from hitlab.errors import InputError
from hitlab.experiment.closed_form import phase_tally, total
from hitlab.experiment.lab import Lab, Reading, Server, Trial
from hitlab.experiment.plan import Experiment, plan
from hitlab.measurement.asked import Asked
from hitlab.measurement.run import prepare_run
from hitlab.results.lab_result import LAB_SCHEMA_VERSION, LabPart, LabPoint, LabResult, LabTrial, LinePoint, LogSaid
from hitlab.results.run_result import PhaseResult, Result
from hitlab.tokens import Tally


class _LogWatch:
    """Observer of a run that reads the engine's log, where one is named, whenever a step is over.

    It shows no progress: a lab counts trials, not requests.
    """

    def __init__(self, log: FollowedLog | None) -> None:
        self._log = log
        self._step = ""
        self.said: list[LogSaid] = []

    def step(self, name: str, requests: int) -> None:
        self.over()
        self._step = name

    def answered(self, prompt_tokens: int, cached_tokens: int | None) -> None: ...

    def over(self) -> None:
        """The step has ended."""
        if self._log is None or not self._step:
            return
        reading = self._log.read()
        everything = reading.ranks()[-1]
        tally = everything.tally
        self.said.append(
            LogSaid(
                after=self._step,
                lines=everything.entries,
                queried_tokens=None if tally is None else tally.queried_tokens,
                hit_tokens=None if tally is None else tally.hit_tokens,
                window_hit_rate=everything.last_window_hit_rate,
            )
        )


@dataclass(slots=True)
class LabRun:
    """A lab under way: run it `on` one server after another, and ask for its `result` at any time."""

    name: str
    lab: Lab
    command: str
    seed: int = 0
    quick: bool = False
    cold_by: str = "reset"
    log: Path | None = None
    complete: bool = False
    _parts: list[LabPart] = field(default_factory=list)
    _started: datetime = field(default_factory=lambda: datetime.now(UTC))

    async def on(self, client: EngineClient, asked: Asked, told: Callable[[int, int], None]) -> None:
        """Run every trial on this server; `told` is called with the number of trials done and of all.

        Raises UsageError where a trial does not fit the server, ServerError where the server can't be measured.
        """
        server = await _server(client, asked)
        trials = self.trials(server)
        done: list[LabTrial] = []
        closer = self.lab.closer(server) if self.lab.closer else None
        line = [point for trial in _line(self.lab, server) for point in _line_points(trial, server)]
        for number, trial in enumerate(trials):
            told(number, len(trials))
            # Each trial has prompts of its own, so that a cache that can't be emptied is as cold as one that can.
            experiment = replace(trial.experiment, seed=self.seed + number, cold_by=self.cold_by)
            log = FollowedLog(client.engine, self.log) if self.log else None
            watch = _LogWatch(log)
            run = await prepare_run(client, asked, experiment)
            await run.walk(watch)
            watch.over()
            result = run.result()
            if not done:
                self._parts.append(LabPart(engine=result.engine, trials=done, line=line, closer=closer))
            done.append(lab_trial(trial.readings, result, watch.said))
        told(len(trials), len(trials))

    def trials(self, server: Server) -> list[Trial]:
        """Those to run; a quick lab leaves out the dense ones."""
        return [trial for trial in self.lab.trials(server) if not (self.quick and trial.dense)]

    def result(self) -> LabResult:
        """What was found up to now."""
        lab = self.lab
        return LabResult(
            schema_version=LAB_SCHEMA_VERSION,
            kind="lab",
            hitlab_version=__version__,
            started_utc=self._started.isoformat(timespec="seconds"),
            lab=self.name,
            title=lab.title,
            question=lab.question,
            picture=lab.picture,
            axis_name=lab.axis.name,
            axis_unit=lab.axis.unit,
            axis_log=lab.axis.log,
            share_of_possible=lab.share_of_possible,
            seed=self.seed,
            quick=self.quick,
            parts=list(self._parts),
            complete=self.complete,
            command=self.command,
        )


def lab_trial(readings: Iterable[Reading], result: Result, log: list[LogSaid]) -> LabTrial:
    """A measured run as a lab keeps it."""
    return LabTrial(
        experiment=result.experiment,
        points=[_point(reading, result.phases) for reading in readings],
        phases=result.phases,
        failed_checks=[check for check in result.checks if not check.ok],
        verdict=result.verdict,
        valid=result.valid,
        agrees=result.agrees,
        log=log,
    )


async def _server(client: EngineClient, asked: Asked) -> Server:
    facts = await client.facts()
    block_tokens = facts.block_tokens or asked.block_tokens
    if block_tokens is None:
        raise InputError("the server does not say its block size", todo="give `block_tokens`")
    return Server(block_tokens, facts.capacity_tokens, facts.ranks, facts.max_model_tokens)


def _point(reading: Reading, phases: list[PhaseResult]) -> LabPoint:
    chosen = [phase for phase in phases if phase.name in reading.phases]
    return LabPoint(
        x=reading.x,
        series=reading.series,
        remark=reading.remark,
        aside=reading.aside,
        queried_tokens=sum(phase.queried_tokens for phase in chosen),
        hit_tokens=sum(phase.hit_tokens for phase in chosen),
        model_hit_tokens=sum(phase.model_hit_tokens for phase in chosen),
        closed_form_hit_tokens=sum(phase.closed_form_hit_tokens for phase in chosen),
    )


def _line(lab: Lab, server: Server) -> list[Trial]:
    return list(lab.line(server) if lab.line else lab.trials(server))


def _line_points(trial: Trial, server: Server) -> list[LinePoint]:
    return [
        LinePoint(x=reading.x, series=reading.series, queried_tokens=tally.queried_tokens, hit_tokens=tally.hit_tokens)
        for reading in trial.readings
        if not reading.aside
        for tally in [closed_form(trial.experiment, reading.phases, server)]
    ]


def closed_form(experiment: Experiment, names: tuple[str, ...], server: Server) -> Tally:
    """The closed form of some phases of an experiment."""
    planned = plan(experiment, server.ranks)
    return total(
        phase_tally(phase, planned.experiment.shape, server.block_tokens, server.ranks)
        for phase in planned.phases
        if phase.name in names
    )
