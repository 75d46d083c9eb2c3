"""What `measure --dry-run` prints: the steps of an experiment, and what arithmetic says of each."""

from hitlab.cli import _options as opt
from hitlab.cli._format import count
from hitlab.cli._tables import Column, fitted
from hitlab.client.dialect import load_engine
from hitlab.experiment.closed_form import phase_tally
from hitlab.experiment.fit import warnings
from hitlab.experiment.plan import Experiment, plan
from hitlab.experiment.steps import Act
from hitlab.flags import in_flags
from hitlab.measurement.asked import Asked


def print_plan(engine: str, experiment: Experiment, asked: Asked, as_json: bool) -> None:
    """Print each step with its requests, prompt tokens and predicted hit tokens; sends nothing, asks no server."""
    block_tokens = asked.block_tokens or load_engine(engine).DEFAULT_BLOCK_TOKENS
    ranks = asked.ranks or 1
    planned = plan(experiment, ranks)
    experiment = planned.experiment
    capacity_tokens = asked.capacity_blocks and asked.capacity_blocks * block_tokens
    rows: list[dict[str, object]] = []
    for step in planned.steps:
        if step is Act.RESET:
            rows.append({"step": "reset" if experiment.cold_by == "reset" else "fresh prefixes"})
        elif step is Act.FLOOD:
            flood = experiment.flood_requests or None
            tokens = flood and flood * experiment.flood_tokens
            rows.append({"step": "flood", "requests": flood or "auto", "prompt_tokens": tokens or "auto"})
        elif not isinstance(step, Act):
            tally = phase_tally(step.phase, experiment.shape, block_tokens, ranks)
            rows.append(
                {
                    "step": step.phase.name,
                    "requests": step.phase.requests,
                    "prompt_tokens": tally.queried_tokens,
                    "closed_form_hit_tokens": tally.hit_tokens,
                }
            )
    said = [*map(in_flags, warnings(planned, capacity_tokens, ranks))] if experiment.flood_requests else []
    if as_json:
        opt.print_json({"engine": engine, "block_size": block_tokens, "steps": rows, "warnings": said})
        return
    keys = ("step", "requests", "prompt_tokens", "closed_form_hit_tokens")
    headings = ("step", "requests", "prompt tokens", "closed form, hit tokens")
    columns = [Column(heading, left=heading == "step", wraps=True) for heading in headings]
    cells = [[_cell(row.get(key, "")) for key in keys] for row in rows]
    console = opt.console()
    title = f"plan for {engine}, block {block_tokens}; nothing is sent"
    console.print(fitted(columns, cells, console.width, gap=3, indent=2, title=title))
    for warning in said:
        console.print(f"note: {warning}")


def _cell(value: object) -> str:
    return count(value) if isinstance(value, int) else str(value)
