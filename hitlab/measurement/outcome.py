"""From what the answers and counters of a run add up to, to the documents that are kept."""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from typing import Any

from hitlab import __version__
from hitlab.client.counters import Move
from hitlab.client.dialect import EngineApi, ServerFacts
from hitlab.client.http import Answer
from hitlab.experiment.closed_form import phase_tally
from hitlab.experiment.plan import Plan
from hitlab.experiment.shape import Phase
from hitlab.measurement.checks import Checks
from hitlab.measurement.verdict import alike_block_sizes, judge
from hitlab.results.run_result import SCHEMA_VERSION, EngineInfo, PhaseResult, Result
from hitlab.tokens import Prompt


@dataclass(slots=True)
class Answers:
    """What the answers to one batch of requests add up to, beside the model's prediction."""

    output_tokens: int = 1  # asked for after each prompt
    requests: int = 0
    prompt_tokens: int = 0
    predicted_tokens: int = 0  # hits, by the cache model
    cached_tokens: int | None = 0  # hits, as responses report them; None once one does not
    latencies_s: list[float] = field(default_factory=list)
    first_difference: str = ""
    digest: Any = field(default_factory=sha256)

    def sending(self, prompts: Sequence[Prompt]) -> None:
        """These prompts are sent now. The digest has them in this order, in whatever order answers come."""
        for prompt in prompts:
            self.digest.update(array("q", prompt.tokens).tobytes() + (prompt.salt or "").encode())

    def add(self, prompts: Sequence[Prompt], answer: Answer, predicted_tokens: int) -> None:
        """Add the answer to one POST of these prompts."""
        self.requests += len(prompts)
        self.prompt_tokens += sum(len(prompt.tokens) for prompt in prompts)
        self.predicted_tokens += predicted_tokens
        self.latencies_s.append(answer.latency_s)
        cached = answer.completion.cached_tokens
        self.cached_tokens = None if cached is None or self.cached_tokens is None else self.cached_tokens + cached
        if cached is not None and cached != predicted_tokens and not self.first_difference:
            self.first_difference = (
                f"number {self.requests}: {cached:,} cached tokens, the model says {predicted_tokens:,}"
            )

    @property
    def median_latency_s(self) -> float:
        """Of one POST, from sending it to the last byte of its answer."""
        return sorted(self.latencies_s)[len(self.latencies_s) // 2]


def phase_result(
    phase: Phase, planned: Plan, facts: ServerFacts, answers: Answers, moved: Move, evicted_tokens: int | None
) -> PhaseResult:
    """One phase as it is kept: measured, and predicted by the closed form and by the model."""
    assert facts.block_tokens is not None
    closed_form = phase_tally(phase, planned.experiment.shape, facts.block_tokens, facts.ranks)
    measured = moved.tally
    error_tokens = measured.hit_tokens - answers.predicted_tokens
    return PhaseResult(
        name=phase.name,
        role=phase.role,
        requests=answers.requests,
        prompt_tokens=answers.prompt_tokens,
        queried_tokens=measured.queried_tokens,
        hit_tokens=measured.hit_tokens,
        hit_rate=moved.hit_rate,
        closed_form_hit_tokens=closed_form.hit_tokens,
        model_hit_tokens=answers.predicted_tokens,
        error_tokens=error_tokens,
        error_points=100 * error_tokens / answers.prompt_tokens,
        agrees=error_tokens == 0,
        computed_tokens=measured.queried_tokens - measured.hit_tokens - moved.apart_tokens,
        median_latency_s=answers.median_latency_s,
        reported_cached_tokens=answers.cached_tokens,
        external_hit_tokens=moved.external.hit_tokens,
        overall_hit_rate=moved.overall_hit_rate,
        local_hit_tokens=moved.tiers.local,
        host_hit_tokens=moved.tiers.host,
        storage_hit_tokens=moved.tiers.storage,
        evicted_tokens=evicted_tokens,
        counters=moved.source,
        prompts_sha256=answers.digest.hexdigest(),
    )


def phase_notes(phase: PhaseResult, answers: Answers) -> list[str]:
    """What a reader should know of a phase beside its numbers."""
    notes = []
    if answers.first_difference:
        notes.append(f"{phase.name}: the first request to differ is {answers.first_difference}")
    if phase.closed_form_hit_tokens != phase.model_hit_tokens:
        notes.append(f"{phase.name}: the closed form knows no eviction and no order, the model does: trust the model")
    if phase.external_hit_tokens:
        notes.append(f"{phase.name}: {phase.external_hit_tokens:,} hit tokens came from an external tier")
    return notes


def run_result(
    *,
    engine: EngineApi,
    base_url: str,
    facts: ServerFacts,
    planned: Plan,
    phases: Sequence[PhaseResult],
    checks: Checks,
    notes: Sequence[str],
    complete: bool,
    started: datetime,
    counters_before: Mapping[str, float],
    counters_after: Mapping[str, float],
) -> Result:
    """A whole run as it is kept, with its verdict."""
    assert facts.block_tokens is not None
    shape, listed = planned.experiment.shape, checks.listed(complete)
    verdict = judge(shape, facts.block_tokens, facts.caching, phases, listed)
    alike = alike_block_sizes(shape, facts.block_tokens, planned.phases)
    untold = f"this workload can't tell block size {facts.block_tokens} from {' or '.join(map(str, alike))}"
    return Result(
        schema_version=SCHEMA_VERSION,
        hitlab_version=__version__,
        started_utc=started.isoformat(timespec="seconds"),
        engine=EngineInfo(
            name=engine.NAME,
            title=engine.TITLE,
            version=facts.version,
            model=facts.model,
            base_url=base_url,
            block_tokens=facts.block_tokens,
            capacity_blocks=facts.capacity_blocks,
            data_parallel_ranks=facts.ranks,
            source="emulated" if facts.emulated else "real",
        ),
        experiment=planned.experiment,
        phases=list(phases),
        checks=listed,
        complete=complete,
        valid=all(check.ok for check in listed),
        agrees=all(phase.agrees for phase in phases),
        verdict=verdict.word,
        explanation=verdict.sentence,
        notes=[*notes, *([untold] if alike else [])],
        seed=planned.experiment.seed,
        counters_before=counters_before,
        counters_after=counters_after,
    )
