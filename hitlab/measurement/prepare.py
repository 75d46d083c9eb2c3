"""One measured run from an address to a result: ask the server what it is, fit the plan to it, walk it.

The same for the command line and for labs; what is printed is theirs.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from hitlab import families
from hitlab.client.dialect import ServerFacts
from hitlab.client.engine_log import LogCounters
from hitlab.client.http import EngineClient
from hitlab.client.model_files import vocabulary_tokens
from hitlab.errors import InputError, UsageError
from hitlab.experiment.fit import auto_flood_requests, longest_prompt, require_fits, require_ids, warnings
from hitlab.experiment.plan import Experiment, outline
from hitlab.experiment.steps import Act, Send, WorkloadFile
from hitlab.experiment.vocabulary import safe_range
from hitlab.measurement.run import Run, Watch
from hitlab.results import store
from hitlab.results.run_result import Check


@dataclass(frozen=True, slots=True)
class Asked:
    """What the user believes of the server, or leaves to it; None and False leave it."""

    block_tokens: int | None = None
    capacity_blocks: int | None = None
    ranks: int | None = None
    auto_flood: bool = False
    vocab_range: tuple[int, int] | None = None
    vocab_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Prepared:
    """A plan that fits the server, and what has to be said of it before it runs."""

    facts: ServerFacts
    experiment: Experiment
    steps: list[Act | Send]
    checks: list[Check]
    warnings: list[str]


def prepare(facts: ServerFacts, asked: Asked, experiment: Experiment) -> Prepared:
    """Fit the experiment to the server. Raises UsageError where that can't be done."""
    block_tokens = facts.block_tokens or asked.block_tokens
    if block_tokens is None:
        raise InputError(
            "the server does not say its block size", todo="give --block-size; the run will say it is unverified"
        )
    checks = _fact_checks(facts, asked)
    vocab_tokens = asked.vocab_tokens or vocabulary_tokens(facts.model_path)
    experiment = replace(experiment, vocab_range=safe_range(asked.vocab_range, vocab_tokens))
    if asked.auto_flood:
        if facts.capacity_tokens is None:
            raise UsageError("the server does not say its pool size", todo="give --flood-requests a number, not auto")
        flood_tokens = min(experiment.flood_tokens, facts.capacity_tokens - 1, (facts.max_model_tokens or 1 << 30) - 1)
        experiment = replace(experiment, flood_tokens=flood_tokens)
        flood_requests = auto_flood_requests(facts.capacity_tokens, facts.ranks, experiment)
        experiment = replace(experiment, flood_requests=flood_requests)
    experiment, steps = outlined(experiment, facts.ranks)
    limits = [limit for limit in (facts.max_model_tokens, facts.capacity_tokens) if limit is not None]
    require_fits(experiment, steps, min(limits, default=None))
    require_ids(experiment, steps)
    said = warnings(experiment, steps, facts.capacity_tokens, facts.ranks)
    # Without a known pool the model gets one that nothing in the plan can fill.
    endless = 2 * (
        experiment.flood_requests * experiment.flood_tokens
        + 8 * experiment.shape.requests * (longest_prompt(experiment.shape, steps) + experiment.output_tokens)
    )
    known = replace(facts, block_tokens=block_tokens, capacity_tokens=facts.capacity_tokens or endless)
    return Prepared(known, experiment, steps, checks, said)


def outlined(experiment: Experiment, ranks: int) -> tuple[Experiment, list[Act | Send]]:
    """The experiment as its workload can send it, and its steps. Raises UsageError where it can't."""
    file: WorkloadFile = _workload_file(experiment)
    if experiment.break_mode != "none" and not file.BREAKABLE:
        raise UsageError(f"{experiment.workload} has no breaks", todo="leave out --break-mode")
    if experiment.concurrency > 1 and not file.BREAKABLE:
        raise UsageError(
            f"in {experiment.workload} a prompt holds the answers before it", todo="leave out --concurrency"
        )
    shape = file.fit(experiment.shape)
    phases = file.phases(shape, experiment.output_tokens, ranks)
    how = families.break_mode(experiment.break_mode)
    return replace(experiment, shape=shape), outline(how, shape, experiment.options, phases)


async def measure(
    client: EngineClient,
    asked: Asked,
    experiment: Experiment,
    watch: Watch,
    on_ready: Callable[[Run, Prepared], None],
    log: Path | None = None,
) -> None:
    """Prepare and walk; `on_ready` gets the run before it starts, so that no end of it loses the result.

    With a `log`, its lines stand in for the server's counters.
    """
    counters = LogCounters(client.engine, log) if log else None
    facts = await client.facts()
    if counters:
        note = f"tokens were counted in the {counters.source}, not by counters; they count only where they add up"
        facts = replace(facts, notes=(*facts.notes, note))
    else:
        await client.scrape()  # a page that can't be read explains more than the facts it leaves unsaid
    prepared = prepare(facts, asked, experiment)
    fitted = prepared.experiment
    workload = _workload_file(fitted).build(fitted.shape, fitted.seed, fitted.vocab_range, fitted.output_tokens)
    run = Run(client, prepared.facts, prepared.experiment, prepared.steps, workload, prepared.checks, counters)
    on_ready(run, prepared)
    await run.walk(watch)


def keep(run: Run, folder: Path) -> Path:
    """Save what a run has measured."""
    return store.save(run.result(), folder)


def _workload_file(experiment: Experiment) -> WorkloadFile:
    return families.workload(experiment.workload)


def _fact_checks(facts: ServerFacts, asked: Asked) -> list[Check]:
    """What the server says of itself against what was asked for."""
    return [
        _agreement("block size", asked.block_tokens, facts.block_tokens, required=True),
        _agreement("pool size in blocks", asked.capacity_blocks, facts.capacity_blocks),
        _agreement("data-parallel ranks", asked.ranks, facts.ranks),
        Check(
            name="prefix caching on",
            ok=facts.caching is not False,
            detail={True: "the engine says it is", False: "the engine says it is off", None: "the engine does not say"}[
                facts.caching
            ],
        ),
    ]


def _agreement(name: str, asked: int | None, said: int | None, required: bool = False) -> Check:
    if said is None:
        return Check(
            name=name,
            ok=not required,
            detail=f"the engine does not say{'' if asked is None else f', {asked:,} taken on trust'}",
        )
    if asked is not None and asked != said:
        return Check(name=name, ok=False, detail=f"you said {asked:,}, the engine says {said:,}, and that was used")
    return Check(name=name, ok=True, detail=f"{said:,}, by the engine's own word")
