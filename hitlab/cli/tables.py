"""How a result looks on a terminal."""

from rich.box import SIMPLE_HEAD
from rich.table import Table

from hitlab.cli import options as opt
from hitlab.result import Result


def print_result(result: Result) -> None:
    """Everything a person wants to see of a run, 80 columns wide."""
    console = opt.console()
    engine = result.engine
    emulated = "EMULATED " if engine.source == "emulated" else ""
    pool = f"{engine.capacity_blocks:,} blocks" if engine.capacity_blocks else "a pool of unknown size"
    console.print(
        f"{emulated}{engine.title} {engine.version or '(version unknown)'}: {pool} of {engine.block_tokens} tokens"
    )
    table = Table(box=SIMPLE_HEAD, padding=0)
    headings = ("phase", "reqs", "prompt", "hit", "measured", "closed", "model", "error", "median", "computed")
    units = ("", "", "tokens", "tokens", "hit rate", "form", "", "tokens", "ms", "tokens")
    for heading, unit in zip(headings, units, strict=True):
        table.add_column(f"{heading}\n{unit}", justify="left" if heading == "phase" else "right", no_wrap=True)
    for phase in result.phases:
        table.add_row(
            phase.name,
            f"{phase.requests:,}",
            f"{phase.prompt_tokens:,}",
            f"{phase.hit_tokens:,}",
            "-" if phase.hit_rate is None else f"{100 * phase.hit_rate:.3f} %",
            f"{phase.closed_form_hit_tokens:,}",
            f"{phase.model_hit_tokens:,}",
            f"{phase.error_tokens:+,}" if phase.error_tokens else "0",
            f"{1000 * phase.median_latency_s:.1f}",
            f"{phase.computed_tokens:,}",
        )
    console.print(table)
    for check in result.checks:
        if not check.ok:
            console.print(f"check failed, {check.name}: {check.detail}")
    for note in result.notes:
        console.print(f"note: {note}")
    state = "" if result.valid else "INVALID RUN. "
    console.print(f"{emulated}{state}{result.verdict}: {result.explanation}")
