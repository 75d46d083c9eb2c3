"""Walk a plan against one server: reset, send, scrape, and keep what every step said.

Nothing here decides what a number means (compare.py) or how it is printed (cli/measure.py).
"""

import asyncio
from array import array
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from hashlib import sha256
from itertools import islice
from typing import Protocol

from hitlab import __version__
from hitlab.cache.model import serve
from hitlab.client.counters import SETTLE_S, Counters, wait_for_counters
from hitlab.client.dialect import ResetOutcome, ServerFacts
from hitlab.client.http import Answer, EngineClient
from hitlab.errors import ServerError
from hitlab.experiment.closed_form import phase_tally
from hitlab.experiment.plan import Batch, Experiment, build
from hitlab.experiment.shape import Phase
from hitlab.experiment.steps import Act, Send, Workload
from hitlab.measurement.verdict import alike_block_sizes, judge
from hitlab.results.run_result import SCHEMA_VERSION, Check, EngineInfo, PhaseResult, Result
from hitlab.tokens import Prompt, Tally

_UNKNOWN_TOKEN = -1  # no prompt has it, so it is stored and never found


class Watch(Protocol):
    """Who looks on while a run walks."""

    def step(self, name: str, requests: int) -> None:
        """A step begins, with so many requests (0 for a reset)."""

    def answered(self, prompt_tokens: int, cached_tokens: int | None) -> None:
        """One more request of the step was answered."""


class CounterReader(Protocol):
    """Where a run's counters come from: the server's own, or its log."""

    async def scrape(self) -> Counters:
        """The counters now. Raises MetricsError."""


class _StoppedError(Exception):
    """The rest of the run would measure nothing; the reason stands among the checks."""


class Run:
    """One run: walk it, then ask for its `result`, also when it was cut short."""

    def __init__(
        self,
        client: EngineClient,
        facts: ServerFacts,
        experiment: Experiment,
        steps: Sequence[Act | Send],
        workload: Workload,
        checks: Sequence[Check],
        counters: CounterReader | None = None,
    ) -> None:
        """`checks` are those already made of what the server says of itself; `counters` are the client's by default."""
        assert facts.block_tokens is not None
        self._counters: CounterReader = counters or client
        self._client, self._facts, self._experiment = client, facts, experiment
        self._steps, self._workload = steps, workload
        self._block_tokens = facts.block_tokens
        self._model = client.engine.cache_model(facts)
        self._failed: dict[str, str] = {}
        self._given_checks = list(checks)
        self._made: set[str] = set()
        self._sent_tokens = 0
        self._baseline = self._last = Counters({})
        self._notes = list(facts.notes)
        self._just_reset = False
        self._started = datetime.now(UTC)
        self.phases: list[PhaseResult] = []
        self.complete = False

    async def walk(self, watch: Watch) -> None:
        """Every step in turn. Raises ServerError only while nothing has been measured."""
        self._begin(await self._counters.scrape())
        try:
            for step in build(self._steps, self._workload, self._experiment, self._facts.ranks):
                if isinstance(step, Batch):
                    await self._send(step, watch)
                elif step is Act.RESET:
                    watch.step("reset", 0)
                    await self._empty()
            self.complete = True
        except _StoppedError:
            pass
        except ServerError as error:
            if not self.phases:
                raise
            self._fail("every request answered", str(error))

    def result(self) -> Result:
        """What was measured up to now."""
        checks = self._given_checks + [
            Check(name=name, ok=name not in self._failed, detail=self._failed.get(name, detail))
            for name, detail in _CHECKS.items()
            if name in self._made or name in self._failed
        ]
        if not self.complete:
            checks.append(Check(name="run complete", ok=False, detail="the run was cut short"))
        shape = self._experiment.shape
        verdict = judge(shape, self._block_tokens, self._facts.caching, self.phases, checks)
        notes = list(self._notes)
        phases = [step.phase for step in self._steps if isinstance(step, Send)]
        alike = alike_block_sizes(shape, self._block_tokens, phases)
        if alike:
            notes.append(
                f"this workload can't tell block size {self._block_tokens} from {' or '.join(map(str, alike))}"
            )
        return Result(
            schema_version=SCHEMA_VERSION,
            hitlab_version=__version__,
            started_utc=self._started.isoformat(timespec="seconds"),
            engine=EngineInfo(
                name=self._client.engine.NAME,
                title=self._client.engine.TITLE,
                version=self._facts.version,
                model=self._facts.model,
                base_url=self._client.base_url,
                block_tokens=self._block_tokens,
                capacity_blocks=self._facts.capacity_blocks,
                data_parallel_ranks=self._facts.ranks,
                source="emulated" if self._facts.emulated else "real",
            ),
            experiment=asdict(self._experiment),
            phases=self.phases,
            checks=checks,
            complete=self.complete,
            valid=all(check.ok for check in checks),
            agrees=all(phase.agrees for phase in self.phases),
            verdict=verdict.word,
            explanation=verdict.sentence,
            notes=notes,
            seed=self._experiment.seed,
            counters_before=self._baseline.raw,
            counters_after=self._last.raw,
        )

    async def _empty(self) -> None:
        """Make the cache cold, and make sure that it is."""
        self._just_reset = True
        if self._experiment.cold_by != "reset":
            return
        outcome = await self._client.reset()
        if "reset confirmed" not in self._made and self._facts.caching is not False:
            await self._try_reset(outcome)
        self._made.add("reset confirmed")
        self._model.reset()

    async def _try_reset(self, outcome: ResetOutcome) -> None:
        """Store a prompt, reset, send it again: a cache that only says it is empty, or a tier behind it, hits.

        What the counters say afterwards is the baseline, so a server's own warm-up is not held against it.
        """
        canary = next(self._workload.unrelated(1, self._canary_tokens()))
        await self._request(canary)
        await self._client.reset()
        before = await self._settled()
        answer = await self._request(canary)
        after = await self._settled()
        hit, external = self._moved(before, after)
        if answer.completion.cached_tokens or external.hit_tokens or hit.hit_tokens:
            where = "a tier behind the cache" if external.hit_tokens else "the cache"
            self._fail("reset confirmed", f"a prompt still hit after the reset, in {where}; {outcome.detail}")
        await self._client.reset()
        self._begin(after)

    def _begin(self, counters: Counters) -> None:
        """Count from here on, and hold nothing against the counters that came before."""
        self._baseline = self._last = counters
        self._sent_tokens = 0
        for check in ("queries add up", "no preemption"):
            self._failed.pop(check, None)

    def _canary_tokens(self) -> int:
        limit = self._facts.max_model_tokens or self._experiment.shape.prompt_tokens
        return min(2 * self._block_tokens + 1, max(2, limit - 1))

    async def _send(self, batch: Batch, watch: Watch) -> None:
        """Send a batch, and tally it if it is a measured phase."""
        name = batch.phase.name if batch.phase else "flood"
        watch.step(name, batch.requests)
        before, seen = self._last, _Seen(batch.output_tokens)
        prompts = iter(batch.prompts)
        try:
            for position in range(batch.alone):
                await self._next(prompts, seen, watch)
                if self._just_reset and position == 0:
                    await self._check_cold(name, before)
            if batch.prompts_per_post > 1:
                while await self._next_post(list(islice(prompts, batch.prompts_per_post)), seen, watch):
                    pass
            elif batch.concurrency == 1:
                while await self._next(prompts, seen, watch):
                    pass
            else:
                await _together([self._drain(prompts, seen, watch) for _ in range(batch.concurrency)])
        except ServerError as error:
            self._fail("every request answered", f"request {seen.requests + 1} of {name}: {error}")
            raise _StoppedError from None
        self._made.add("every request answered")
        after = await self._settled()
        if batch.phase:
            self.phases.append(self._tally(batch.phase, seen, before, after))

    async def _drain(self, prompts: Iterator[Prompt], seen: "_Seen", watch: Watch) -> None:
        while await self._next(prompts, seen, watch):
            pass

    async def _next(self, prompts: Iterator[Prompt], seen: "_Seen", watch: Watch) -> bool:
        """Send the next prompt, if there is one, and compare its answer with the model's."""
        prompt = next(prompts, None)
        if prompt is None:
            return False
        if seen.output_tokens == 1:
            predicted = serve(self._model, prompt).hit_tokens
            answer = await self._request(prompt)
        else:  # what is generated is stored, too, and known only afterwards
            answer = await self._request(prompt, seen.output_tokens)
            completion = answer.completion
            output = completion.output or (_UNKNOWN_TOKEN,) * seen.output_tokens
            predicted = serve(self._model, prompt, output, seen.output_tokens, completion.stopped).hit_tokens
            self._workload.learn(prompt, completion.output)
        seen.add([prompt], answer, predicted)
        watch.answered(len(prompt.tokens), answer.completion.cached_tokens)
        return True

    async def _next_post(self, prompts: list[Prompt], seen: "_Seen", watch: Watch) -> bool:
        """Send these prompts in one POST, if there are any; the model serves them one after another."""
        if not prompts:
            return False
        predicted = [serve(self._model, prompt).hit_tokens for prompt in prompts]
        answer = await self._client.complete_together(prompts)
        self._require_length(sum(len(prompt.tokens) for prompt in prompts), answer.completion.prompt_tokens)
        seen.add(prompts, answer, sum(predicted))
        watch.answered(sum(len(prompt.tokens) for prompt in prompts), answer.completion.cached_tokens)
        return True

    async def _request(self, prompt: Prompt, output_tokens: int = 1) -> Answer:
        answer = await self._client.complete(prompt, output_tokens)
        self._require_length(len(prompt.tokens), answer.completion.prompt_tokens)
        return answer

    def _require_length(self, sent: int, counted: int | None) -> None:
        self._sent_tokens += sent
        if counted is None:
            return
        self._made.add("prompt lengths kept")
        if counted != sent:
            self._fail("prompt lengths kept", f"the server changed the prompt: {sent:,} ids sent, {counted:,} counted")
            raise _StoppedError

    async def _check_cold(self, name: str, before: Counters) -> None:
        """The first request after a reset finds nothing, here or in a tier behind the cache."""
        self._just_reset = False
        self._made.add("cold start")
        hit, external = self._moved(before, await self._settled())
        if hit.hit_tokens or external.hit_tokens:
            where = f"{external.hit_tokens:,} of them external" if external.hit_tokens else "in the cache"
            self._fail(
                "cold start",
                f"the first request of {name} hit {hit.hit_tokens + external.hit_tokens:,} tokens, {where}: "
                "the baseline is warm",
            )

    async def _settled(self) -> Counters:
        """The counters once they hold everything sent, or what they are when that took too long."""
        patience_s = 0 if self._facts.caching is False else SETTLE_S
        now = await wait_for_counters(self._counters.scrape, self._baseline, self._sent_tokens, self._last, patience_s)
        restarted = now.restarted_since(self._last)
        self._made.add("counters never fell")
        if restarted:
            self._fail("counters never fell", f"{restarted}: the server restarted, or another one answered")
            raise _StoppedError
        queried = now.since(self._baseline)[0].queried_tokens
        self._check_counters(now, queried)
        self._last = now
        return now

    def _check_counters(self, now: Counters, queried: int) -> None:
        self._made |= {"queries add up", "no preemption"}
        off = queried - self._sent_tokens
        preempted = now.preemptions - self._baseline.preemptions
        if preempted:
            self._fail("no preemption", f"{preempted:,} preemptions: their prompts are counted again")
        if off < 0:
            self._fail(
                "queries add up",
                f"{-off:,} tokens unaccounted: {self._sent_tokens:,} sent, {queried:,} counted in {SETTLE_S:g} s "
                "(did it restart? are these its own counters, with stats and prefix caching on?)",
            )
        elif off:
            why = "preempted requests are counted again" if preempted else "another client is using the server"
            self._fail("queries add up", f"{off:,} tokens more than were sent: {why}")
        self._sent_tokens = queried if self._facts.caching is not False else self._sent_tokens

    def _moved(self, before: Counters, after: Counters) -> tuple[Tally, Tally]:
        return after.since(self._baseline)[0] - before.since(self._baseline)[0], after.external - before.external

    def _tally(self, phase: Phase, seen: "_Seen", before: Counters, after: Counters) -> PhaseResult:
        measured, external = self._moved(before, after)
        closed_form = phase_tally(phase, self._experiment.shape, self._block_tokens, self._facts.ranks)
        error = measured.hit_tokens - seen.predicted_tokens
        reported = seen.cached_tokens
        if reported is not None:
            self._made.add("responses agree with counters")
        # Where a hit of another tier is counted apart, a response counts it all the same.
        apart = 0 if external.queried_tokens == 0 else external.hit_tokens
        if reported is not None and reported not in (measured.hit_tokens, measured.hit_tokens + apart):
            self._fail(
                "responses agree with counters",
                f"{phase.name}: {reported:,} cached tokens in the responses, {measured.hit_tokens:,} in the counters",
            )
        if seen.first_difference:
            self._notes.append(f"{phase.name}: the first request to differ is {seen.first_difference}")
        if closed_form.hit_tokens != seen.predicted_tokens:
            self._notes.append(
                f"{phase.name}: the closed form knows no eviction and no order, the model does: trust the model"
            )
        if external.hit_tokens:
            self._notes.append(f"{phase.name}: {external.hit_tokens:,} hit tokens came from an external tier")
        evicted = None
        if after.evicted_tokens is not None:
            evicted = after.evicted_tokens - (before.evicted_tokens or 0)
        return PhaseResult(
            name=phase.name,
            requests=seen.requests,
            prompt_tokens=seen.prompt_tokens,
            queried_tokens=measured.queried_tokens,
            hit_tokens=measured.hit_tokens,
            hit_rate=measured.hit_rate,
            closed_form_hit_tokens=closed_form.hit_tokens,
            model_hit_tokens=seen.predicted_tokens,
            error_tokens=error,
            error_points=100 * error / seen.prompt_tokens,
            agrees=error == 0,
            computed_tokens=measured.queried_tokens - measured.hit_tokens,
            median_latency_s=sorted(seen.latencies_s)[len(seen.latencies_s) // 2],
            reported_cached_tokens=reported,
            external_hit_tokens=external.hit_tokens,
            overall_hit_rate=Tally(measured.queried_tokens, measured.hit_tokens + apart).hit_rate,
            evicted_tokens=evicted,
            counters=after.since(self._baseline)[1],
            prompts_sha256=seen.digest.hexdigest(),
        )

    def _fail(self, check: str, detail: str) -> None:
        self._failed.setdefault(check, detail)


# Every check a run makes by itself, in the order they are told, with what is said when it holds.
_CHECKS = {
    "reset confirmed": "the server's answer, and a prompt that hit nothing after it",
    "cold start": "the first request after each reset hit nothing",
    "every request answered": "no request failed",
    "prompt lengths kept": "every response counted as many prompt tokens as were sent",
    "counters never fell": "no restart, no other server",
    "no preemption": "no request was computed twice",
    "queries add up": "the counters moved by exactly the tokens sent",
    "responses agree with counters": "the cached tokens that responses report sum to the counters' hits",
}


class _Seen:
    """What the answers of one batch add up to."""

    def __init__(self, output_tokens: int) -> None:
        self.output_tokens = output_tokens
        self.requests = self.prompt_tokens = self.predicted_tokens = 0
        self.cached_tokens: int | None = 0
        self.latencies_s: list[float] = []
        self.digest = sha256()
        self.first_difference = ""

    def add(self, prompts: Sequence[Prompt], answer: Answer, predicted: int) -> None:
        """Add what was answered to one POST."""
        self.requests += len(prompts)
        self.prompt_tokens += sum(len(prompt.tokens) for prompt in prompts)
        self.predicted_tokens += predicted
        self.latencies_s.append(answer.latency_s)
        for prompt in prompts:
            self.digest.update(array("q", prompt.tokens).tobytes() + (prompt.salt or "").encode())
        cached = answer.completion.cached_tokens
        self.cached_tokens = None if cached is None or self.cached_tokens is None else self.cached_tokens + cached
        if cached is not None and cached != predicted and not self.first_difference:
            self.first_difference = f"number {self.requests}: {cached:,} cached tokens, the model says {predicted:,}"


async def _together(workers: Sequence[Coroutine[None, None, None]]) -> None:
    """Run the workers; when one fails the others stop, and its error is raised as it is."""
    tasks = [asyncio.create_task(worker) for worker in workers]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
