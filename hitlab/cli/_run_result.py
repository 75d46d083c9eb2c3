"""How the result of one run looks on a terminal, as `measure` and `results show` print it."""

from hitlab.cli import _options as opt
from hitlab.cli._format import count, percent, signed
from hitlab.cli._tables import Column, fitted
from hitlab.results.run_result import Result

_COLUMNS = (
    Column("phase\n", left=True),
    Column("reqs\n"),
    Column("prompt\ntokens", spare=1),
    Column("hit\ntokens"),
    Column("measured\nhit rate"),
    Column("closed\nform", spare=3),
    Column("model\n", spare=2),
    Column("error\ntokens"),
    Column("median\nms", spare=5),
    Column("computed\ntokens", spare=4),
)


def print_result(result: Result) -> None:
    """Print a run on stdout: server, phases, failed checks, notes, verdict; the whole table takes 80 columns."""
    console = opt.console()
    engine = result.engine
    emulated = "EMULATED " if engine.source == "emulated" else ""
    pool = f"{count(engine.capacity_blocks)} blocks" if engine.capacity_blocks else "a pool of unknown size"
    console.print(
        f"{emulated}{engine.title} {engine.version or '(version unknown)'}: {pool} of {engine.block_tokens} tokens"
    )
    rows = [
        (
            phase.name,
            count(phase.requests),
            count(phase.prompt_tokens),
            count(phase.hit_tokens),
            percent(phase.hit_rate),
            count(phase.closed_form_hit_tokens),
            count(phase.model_hit_tokens),
            signed(phase.error_tokens),
            f"{1000 * phase.median_latency_s:.1f}",
            count(phase.computed_tokens),
        )
        for phase in result.phases
    ]
    console.print(fitted(_COLUMNS, rows, console.width, gap=1))
    for check in result.checks:
        if not check.ok:
            console.print(f"check failed, {check.name}: {check.detail}")
    for note in result.notes:
        console.print(f"note: {note}")
    state = "" if result.valid else "INVALID RUN. "
    console.print(f"{emulated}{state}{result.verdict}: {result.explanation}")
