"""From an address to a run that can be walked: ask the server what it is, and fit the plan to it."""

from dataclasses import dataclass, replace
from pathlib import Path

from hitlab.client.dialect import ServerFacts
from hitlab.client.engine_log import LogCounters
from hitlab.client.http import EngineClient
from hitlab.client.model_files import vocabulary_tokens
from hitlab.errors import InputError, UsageError
from hitlab.experiment.fit import longest_prompt, require_fits, require_ids, warnings, with_auto_flood
from hitlab.experiment.plan import Experiment, Plan, plan
from hitlab.experiment.steps import Workload, load_workload
from hitlab.experiment.vocabulary import safe_range
from hitlab.measurement.asked import Asked
from hitlab.measurement.checks import fact_checks
from hitlab.results.run_result import Check


@dataclass(frozen=True, slots=True)
class Prepared:
    """A plan that fits the server, and what has to be said of it before it runs."""

    facts: ServerFacts  # with the block size that is used; a pool that nothing fills, where the server does not say
    plan: Plan
    checks: list[Check]
    warnings: list[str]

    @property
    def block_tokens(self) -> int:
        """The server's block size or, where it does not say, the one the user believes."""
        assert self.facts.block_tokens is not None
        return self.facts.block_tokens

    def workload(self) -> Workload:
        """A builder of the plan's prompts, which begins with the first."""
        experiment = self.plan.experiment
        return load_workload(experiment.workload).build(
            experiment.shape, experiment.seed, experiment.vocab_range, experiment.output_tokens
        )


def prepare(facts: ServerFacts, asked: Asked, experiment: Experiment) -> Prepared:
    """Fit the experiment to the server. Raises UsageError where that can't be done."""
    block_tokens = facts.block_tokens or asked.block_tokens
    if block_tokens is None:
        raise InputError(
            "the server does not say its block size", todo="give `block_tokens`; the run will say it is unverified"
        )
    vocab_tokens = asked.vocab_tokens or vocabulary_tokens(facts.model_path)
    experiment = replace(experiment, vocab_range=safe_range(asked.vocab_range, vocab_tokens))
    if asked.auto_flood:
        if facts.capacity_tokens is None:
            raise UsageError("the server does not say its pool size", todo="give `flood_requests` a number, not auto")
        experiment = with_auto_flood(experiment, facts.capacity_tokens, facts.ranks, facts.max_model_tokens)
    planned = plan(experiment, facts.ranks)
    limits = [limit for limit in (facts.max_model_tokens, facts.capacity_tokens) if limit is not None]
    require_fits(planned, min(limits, default=None))
    require_ids(planned)
    known = replace(facts, block_tokens=block_tokens, capacity_tokens=facts.capacity_tokens or _endless_tokens(planned))
    said = warnings(planned, facts.capacity_tokens, facts.ranks)
    return Prepared(known, planned, fact_checks(facts, asked), said)


def _endless_tokens(planned: Plan) -> int:
    """A pool that nothing in the plan can fill, for the model of a server that does not say its own."""
    experiment = planned.experiment
    flood_tokens = experiment.flood_requests * experiment.flood_tokens
    request_tokens = longest_prompt(planned) + experiment.output_tokens
    return 2 * (flood_tokens + 8 * experiment.shape.requests * request_tokens)


async def ask(client: EngineClient, log: LogCounters | None = None) -> ServerFacts:
    """What the server says of itself, where its counters (or, given a log, its lines) can be read.

    Raises UnreachableError, KeyRefusedError, MetricsError and ServerError.
    """
    facts = await client.facts()
    if log is None:
        await client.scrape()  # a page that can't be read explains more than the facts it leaves unsaid
        return facts
    note = f"tokens were counted in the {log.source}, not by counters; they count only where they add up"
    return replace(facts, notes=(*facts.notes, note))


def log_counters(client: EngineClient, log: Path | None) -> LogCounters | None:
    """The engine's log in place of its counters, from its end on; None without a log."""
    return LogCounters(client.engine, log) if log else None
