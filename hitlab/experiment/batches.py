"""A plan's steps with the prompts that each sends."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from hitlab.experiment.plan import Plan
from hitlab.experiment.shape import Phase
from hitlab.experiment.steps import Act, Workload
from hitlab.tokens import Prompt

FLOOD_CONCURRENCY = 8  # a flood is not measured, so it may go as fast as it can


@dataclass(frozen=True, slots=True)
class Batch:
    """Requests to send now: a measured phase, or (without one) a flood."""

    phase: Phase | None
    prompts: Iterable[Prompt]
    requests: int
    alone: int  # this many are sent one after the other before the rest may overlap
    concurrency: int
    output_tokens: int = 1
    prompts_per_post: int = 1


def batches(planned: Plan, workload: Workload, ranks: int) -> Iterator[Act | Batch]:
    """The steps with their prompts, which are made when a step is reached.

    A phase's first requests, one for each group and rank, go alone, so that what they store is there for the rest.
    """
    experiment = planned.experiment
    for index, step in enumerate(planned.steps):
        if step is Act.FLOOD:
            prompts = workload.unrelated(experiment.flood_requests, experiment.flood_tokens)
            yield Batch(None, prompts, experiment.flood_requests, 0, FLOOD_CONCURRENCY)
        elif isinstance(step, Act):
            if experiment.cold_by == "fresh-prefix" and index:
                workload.fresh_prefixes()
            yield step
        else:
            requests = step.phase.requests
            plain = workload.prompts(requests)
            altered = map(step.alter, plain, workload.draws(requests, experiment.options.fixed))
            alone = min(requests, experiment.shape.groups * ranks) if step.first_alone else 0
            yield Batch(
                step.phase,
                altered,
                requests,
                alone,
                experiment.concurrency,
                experiment.output_tokens,
                experiment.prompts_per_post,
            )
