"""Walk a plan against one server: reset, send, read the counters.

Nothing here decides what a number means (verdict.py), what a check is called (checks.py) or how a result looks
(outcome.py).
"""

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Protocol

from hitlab.cache.model import serve
from hitlab.client import counters
from hitlab.client.counters import Counters
from hitlab.client.dialect import ResetOutcome
from hitlab.client.http import Answer, EngineClient
from hitlab.client.ledger import CounterLedger, CounterSource
from hitlab.errors import CountersFellError, RequestAbortedError, ServerError
from hitlab.experiment.batches import Batch, batches
from hitlab.experiment.plan import Experiment
from hitlab.experiment.shape import Phase
from hitlab.experiment.steps import Act
from hitlab.measurement.asked import Asked
from hitlab.measurement.checks import CheckName, Checks
from hitlab.measurement.outcome import Answers, phase_notes, phase_result, run_result
from hitlab.measurement.prepare import Prepared, ask, log_counters, prepare
from hitlab.results.run_result import PhaseResult, Result
from hitlab.tokens import Prompt

_UNKNOWN_TOKEN = -1  # no prompt has it, so it is stored and never found


class Watch(Protocol):
    """An observer of a run."""

    def step(self, name: str, requests: int) -> None:
        """A step begins, with this many requests (0 for a reset)."""

    def answered(self, prompt_tokens: int, cached_tokens: int | None) -> None:
        """One more request of the step was answered."""


class Unwatched:
    """An observer that does nothing."""

    def step(self, name: str, requests: int) -> None:
        """Do nothing."""

    def answered(self, prompt_tokens: int, cached_tokens: int | None) -> None:
        """Do nothing."""


class _StoppedError(Exception):
    """The rest of the run would measure nothing; the reason stands among the checks."""


async def prepare_run(client: EngineClient, asked: Asked, experiment: Experiment, log: Path | None = None) -> "Run":
    """A run that fits the server and waits to be walked; lines of `log` may stand in for the server's counters.

    Raises UsageError where the experiment does not fit the server, ServerError where the server can't be measured.
    """
    source = log_counters(client, log)
    facts, counted = await ask(client, source)
    return Run(client, prepare(facts, asked, experiment), source or client, counted)


class Run:
    """One run: `walk` it, then ask for its `result`, also when it was cut short."""

    def __init__(self, client: EngineClient, prepared: Prepared, source: CounterSource, counted: Counters) -> None:
        """`source` is where the counters are read, `counted` what they were when the server was asked."""
        facts = prepared.facts
        self.prepared = prepared
        self._client = client
        self._workload = prepared.workload()
        self._model = client.engine.cache_model(facts)
        self._counts = facts.caching is not False  # with caching off the counters stand still
        self._ledger = CounterLedger(source, None if self._counts else 0)
        self._ledger.rebase(counted)
        self._checks = Checks(prepared.checks)
        self._notes = list(facts.notes)
        self._just_reset = False
        self._started = datetime.now(UTC)
        self.phases: list[PhaseResult] = []
        self.complete = False

    async def walk(self, watch: Watch) -> None:
        """Every step in turn. Raises ServerError only while nothing has been measured."""
        last = self.prepared.plan.phases[-1] if self.prepared.plan.phases else None
        try:
            for step in batches(self.prepared.plan, self._workload, self.prepared.facts.ranks):
                if isinstance(step, Batch):
                    await self._send(step, watch, step.phase is last)
                elif step is Act.RESET:
                    watch.step("reset", 0)
                    await self._empty()
            self.complete = True
        except _StoppedError:
            pass

    def result(self) -> Result:
        """What was measured up to now."""
        return run_result(
            engine=self._client.engine,
            base_url=self._client.base_url,
            facts=self.prepared.facts,
            planned=self.prepared.plan,
            phases=self.phases,
            checks=self._checks,
            notes=self._notes,
            complete=self.complete,
            started=self._started,
            counters_before=self._ledger.baseline.raw,
            counters_after=self._ledger.last.raw,
        )

    @contextmanager
    def _operation(self, check: CheckName, what: str = "") -> Iterator[None]:
        """An operation on the server: where it fails, the run ends and the failure stands under its own check.

        While nothing has been measured there is nothing to keep, and the error itself goes on.
        """
        try:
            yield
        except ServerError as error:
            name = CheckName.COUNTERS_NEVER_FELL if isinstance(error, CountersFellError) else check
            if not self.phases and name in (CheckName.RESET_CONFIRMED, CheckName.COUNTERS_READABLE):
                raise
            said = f" {error.words}" if isinstance(error, RequestAbortedError) else f": {error}"
            self._checks.fail(name, f"{what}{said}" if what else str(error))
            raise _StoppedError from None

    async def _empty(self) -> None:
        """Make the cache cold, and make sure that it is."""
        self._just_reset = True
        if self.prepared.plan.experiment.cold_by != "reset":
            return
        with self._operation(CheckName.RESET_CONFIRMED):
            outcome = await self._client.reset()
            if CheckName.RESET_CONFIRMED not in self._checks and self._counts:
                await self._try_reset(outcome)
        self._checks.made(CheckName.RESET_CONFIRMED)
        self._model.reset()

    async def _try_reset(self, outcome: ResetOutcome) -> None:
        """Store a prompt, reset, send it again: a cache that only says it is empty, or a tier behind it, hits.

        What the counters say afterwards is the baseline, so a server's own warm-up is not held against it.
        """
        canary = next(self._workload.unrelated(1, self._canary_tokens()))
        await self._request(canary)
        await self._client.reset()
        before = await self._read_counters()
        answer = await self._request(canary)
        after = await self._read_counters()
        moved = after.move(before)
        if answer.completion.cached_tokens or moved.external.hit_tokens or moved.hit_tokens:
            where = "a tier behind the cache" if moved.external.hit_tokens else "the cache"
            self._checks.fail(
                CheckName.RESET_CONFIRMED, f"a prompt still hit after the reset, in {where}; {outcome.detail}"
            )
        await self._client.reset()
        self._ledger.rebase(after)
        self._checks.forgive(CheckName.QUERIES_ADD_UP, CheckName.NO_PREEMPTION)

    def _canary_tokens(self) -> int:
        limit = self.prepared.facts.max_model_tokens or self.prepared.plan.experiment.shape.prompt_tokens
        return min(2 * self.prepared.block_tokens + 1, max(2, limit - 1))

    async def _send(self, batch: Batch, watch: Watch, last: bool) -> None:
        """Send a batch, and tally it if it is a measured phase; after the `last` nothing more is read."""
        name = batch.phase.name if batch.phase else "flood"
        watch.step(name, batch.requests)
        before, answers = self._ledger.last, Answers(batch.output_tokens)
        prompts = iter(batch.prompts)
        for position in range(batch.alone):
            await self._next(prompts, answers, name, watch)
            if self._just_reset and position == 0:
                await self._check_cold(name, before)
        if batch.prompts_per_post > 1:
            while await self._next_post(list(islice(prompts, batch.prompts_per_post)), answers, name, watch):
                pass
        elif batch.concurrency == 1:
            while await self._next(prompts, answers, name, watch):
                pass
        else:
            await _together([self._drain(prompts, answers, name, watch) for _ in range(batch.concurrency)])
        self._checks.made(CheckName.EVERY_REQUEST_ANSWERED)
        after = await self._read_counters(twice=last)
        if batch.phase:
            self._tally(batch.phase, answers, before, after)

    async def _drain(self, prompts: Iterator[Prompt], answers: Answers, name: str, watch: Watch) -> None:
        while await self._next(prompts, answers, name, watch):
            pass

    async def _next(self, prompts: Iterator[Prompt], answers: Answers, name: str, watch: Watch) -> bool:
        """Send the next prompt of a batch, if there is one, and compare its answer with the model's."""
        prompt = next(prompts, None)
        if prompt is None:
            return False
        answers.sending([prompt])
        with self._operation(CheckName.EVERY_REQUEST_ANSWERED, f"request {answers.requests + 1} of {name}"):
            if answers.output_tokens == 1:
                predicted = serve(self._model, prompt).hit_tokens
                answer = await self._request(prompt)
            else:  # what is generated is stored, too, and known only afterwards
                answer = await self._request(prompt, answers.output_tokens)
                completion = answer.completion
                output = completion.output or (_UNKNOWN_TOKEN,) * answers.output_tokens
                served = serve(self._model, prompt, output, answers.output_tokens, completion.stopped)
                predicted = served.hit_tokens
                self._workload.learn(prompt, completion.output)
        answers.add([prompt], answer, predicted)
        watch.answered(len(prompt.tokens), answer.completion.cached_tokens)
        return True

    async def _next_post(self, prompts: list[Prompt], answers: Answers, name: str, watch: Watch) -> bool:
        """Send these prompts in one POST, if there are any; the model serves them one after another."""
        if not prompts:
            return False
        answers.sending(prompts)
        predicted = sum(serve(self._model, prompt).hit_tokens for prompt in prompts)
        sent = sum(len(prompt.tokens) for prompt in prompts)
        with self._operation(CheckName.EVERY_REQUEST_ANSWERED, f"request {answers.requests + 1} of {name}"):
            answer = await self._client.complete_together(prompts)
        self._require_length(sent, answer.completion.prompt_tokens)
        answers.add(prompts, answer, predicted)
        watch.answered(sent, answer.completion.cached_tokens)
        return True

    async def _request(self, prompt: Prompt, output_tokens: int = 1) -> Answer:
        answer = await self._client.complete(prompt, output_tokens)
        self._require_length(len(prompt.tokens), answer.completion.prompt_tokens)
        return answer

    def _require_length(self, sent: int, counted: int | None) -> None:
        self._ledger.sent(sent)
        if counted is None:
            return
        self._checks.made(CheckName.PROMPT_LENGTHS_KEPT)
        if counted != sent:
            self._checks.fail(
                CheckName.PROMPT_LENGTHS_KEPT, f"the server changed the prompt: {sent:,} ids sent, {counted:,} counted"
            )
            raise _StoppedError

    async def _check_cold(self, name: str, before: Counters) -> None:
        """The first request after a reset finds nothing, here or in a tier behind the cache."""
        self._just_reset = False
        self._checks.made(CheckName.COLD_START)
        moved = (await self._read_counters()).move(before)
        hit, external = moved.hit_tokens or 0, moved.external.hit_tokens
        if hit or external:
            where = f"{external:,} of them external" if external else "in the cache"
            self._checks.fail(
                CheckName.COLD_START,
                f"the first request of {name} hit {hit + moved.apart_tokens:,} tokens, {where}: the baseline is warm",
            )

    async def _read_counters(self, *, twice: bool = False) -> Counters:
        """The counters once they hold everything sent, held against what was sent.

        Where others follow one reading is enough, because what comes late, or is not ours, is seen by the next.
        """
        with self._operation(CheckName.COUNTERS_READABLE):
            now = await self._ledger.read(twice=twice)
        self._checks.made(CheckName.COUNTERS_NEVER_FELL, CheckName.QUERIES_ADD_UP, CheckName.NO_PREEMPTION)
        off, preempted = self._ledger.off_tokens, self._ledger.preemptions
        if preempted:
            self._checks.fail(CheckName.NO_PREEMPTION, f"{preempted:,} preemptions: their prompts are counted again")
        if off < 0:
            self._checks.fail(
                CheckName.QUERIES_ADD_UP,
                f"{-off:,} tokens unaccounted: {self._ledger.sent_tokens:,} sent, {self._ledger.counted_tokens:,} "
                f"counted in {counters.SETTLE_S:g} s "
                "(did it restart? are these its own counters, with stats and prefix caching on?)",
            )
        elif off:
            why = "preempted requests are counted again" if preempted else "another client is using the server"
            self._checks.fail(CheckName.QUERIES_ADD_UP, f"{off:,} tokens more than were sent: {why}")
        if self._counts:
            self._ledger.settle()
        return now

    def _tally(self, phase: Phase, answers: Answers, before: Counters, after: Counters) -> None:
        """Keep a measured phase, and hold what its responses report against the counters."""
        moved = after.move(before)
        if wrong := moved.part.lacks or moved.contradiction:
            self._checks.fail(CheckName.COUNTERS_READABLE, f"{phase.name}: {wrong}")
        reported, hit = answers.cached_tokens, moved.hit_tokens or 0
        if reported is not None:
            self._checks.made(CheckName.RESPONSES_AGREE)
            if reported not in (hit, hit + moved.apart_tokens):
                self._checks.fail(
                    CheckName.RESPONSES_AGREE,
                    f"{phase.name}: {reported:,} cached tokens in the responses, {hit:,} in the counters",
                )
        result = phase_result(
            phase, self.prepared.plan, self.prepared.facts, answers, moved, after.evicted_since(before)
        )
        self._notes += phase_notes(result, answers)
        self.phases.append(result)


async def _together(workers: Sequence[Coroutine[None, None, None]]) -> None:
    """Run the workers; when one fails the others stop, and its error is raised as it is."""
    tasks = [asyncio.create_task(worker) for worker in workers]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
