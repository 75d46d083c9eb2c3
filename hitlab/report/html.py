"""Kept results as one HTML file that needs nothing else: no script, no network, light and dark.

Whatever a result holds may have come from a server, so all of it is escaped; pictures are drawn anew from the
numbers and never taken from a file.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from hitlab import __version__, families
from hitlab.errors import InputError
from hitlab.experiment.lab import load_lab
from hitlab.report import lab_plot
from hitlab.report.generator import GENERATOR
from hitlab.results import store
from hitlab.results.lab_result import LabResult, named, rate, whole_tokens
from hitlab.results.reproduce import break_in_words, measure_command, shape_in_words
from hitlab.results.run_result import PhaseResult, Result

_WORDS = {
    "workload": "workload",
    "break_mode": "break",
    "concurrency": "requests in flight",
    "cold_by": "cold by",
    "output_tokens": "tokens generated",
    "prompts_per_post": "prompts a POST",
}
_ORDINARY = {"workload": "shared-prefix", "concurrency": 1, "output_tokens": 1, "prompts_per_post": 1}


def read(paths: Iterable[Path], left_out: list[str]) -> tuple[list[tuple[str, Result]], list[tuple[str, LabResult]]]:
    """Measured runs and labs, each with its file's name.

    A file of a folder that can't be read is added to `left_out` with the reason. Raises InputError for a file that
    was named itself.
    """
    runs: list[tuple[str, Result]] = []
    labs: list[tuple[str, LabResult]] = []
    for path in paths:
        folder = path.is_dir()
        for file in store.kept(path) if folder else [path]:
            try:
                if store.is_lab(file):
                    labs.append((file.name, store.load_lab(file)))
                else:
                    runs.append((file.name, store.load(file)))
            except InputError as error:
                if not folder:
                    raise
                left_out.append(str(error))
        for file in store.kept_labs(path) if folder else []:
            try:
                labs.append((file.name, store.load_lab(file)))
            except InputError as error:
                left_out.append(str(error))
    return runs, [(name, lab) for name, lab in labs if lab.parts]


def html(runs: Sequence[tuple[str, Result]], labs: Sequence[tuple[str, LabResult]], title: str) -> str:
    """The report as one page of HTML."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {
        "number": lambda value: "none" if value is None else f"{value:,}",
        "signed": lambda value: f"{value:+,}",
        "percent": lambda value: "none" if value is None else f"{100 * value:.4f} %",
        "moment": lambda started_utc: started_utc.replace("T", " ").removesuffix("+00:00"),
        "share": _percent_wide,
        "predicted_share": lambda phase: _percent_wide(_predicted(phase)),
    }
    template = environment.from_string((files("hitlab.report") / "report.html").read_text(encoding="utf-8"))
    sources = [result.engine.source for _, result in runs]
    sources += [part.engine.source for _, lab in labs for part in lab.parts]
    return template.render(
        title=title,
        generator=GENERATOR,
        version=__version__,
        any_emulated="emulated" in sources,
        runs=[
            {
                "file": file,
                "result": result,
                "asked": _headline(result),
                "shape": f"{shape_in_words(result)} B={result.engine.block_tokens}".strip(),
                "outcome": _outcome(result),
                "questions": list(_questions(result)),
                "command": measure_command(result),
            }
            for file, result in runs
        ],
        labs=[
            {
                "file": file,
                "result": lab,
                # The one thing that is not escaped here: matplotlib has escaped its texts.
                "picture": Markup(_own_ids(lab_plot.svg(lab), f"lab{number}-")),
                "outcome": _lab_outcome(lab),
                "points": list(_points(lab)),
                "log": [said for trial in lab.trials for said in trial.log],
                "failed_checks": [check for trial in lab.trials for check in trial.failed_checks],
            }
            for number, (file, lab) in enumerate(labs, 1)
        ],
    )


def _own_ids(svg: str, prefix: str) -> str:
    """The picture with a prefix on its ids, so that no other picture of the page has them, and without its metadata.

    >>> _own_ids('<a id="x"/><use xlink:href="#x"/><g clip-path="url(#x)"/><metadata>m</metadata>', "p-")
    '<a id="p-x"/><use xlink:href="#p-x"/><g clip-path="url(#p-x)"/>'
    """
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    return re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{prefix}", svg)


def _headline(result: Result) -> str:
    workload, broken = result.experiment.workload, break_in_words(result)
    return f"{workload}, broken by {broken}" if broken else workload


def _outcome(result: Result) -> tuple[str, str]:
    """Whether the run can be trusted and whether it agrees: a style of the page, and words."""
    others = [check for check in result.checks if not check.ok and check.name != "run complete"]
    if not (result.complete or others):
        return "mixed", "interrupted"
    if not result.valid:
        return "bad", "not to be trusted"
    return ("good", "agrees to the token") if result.agrees else ("bad", "disagrees")


def _lab_outcome(lab: LabResult) -> tuple[str, str]:
    if not all(trial.valid for trial in lab.trials):
        return "bad", "not to be trusted"
    if not lab.complete:
        return "mixed", "interrupted"
    if lab.agrees:
        return "good", "agrees to the token"
    known = load_lab(lab.lab) if lab.lab in families.names("labs") else None
    off = [point for trial in lab.trials for point in trial.points if point.error_tokens]
    if known is not None and known.finds_fewer_hits and all(point.error_tokens < 0 for point in off):
        return "mixed", "differs: the finding"
    return "bad", "disagrees"


def _questions(result: Result) -> Iterator[tuple[str, str]]:
    engine, asked = result.engine, result.experiment
    yield "server", engine.base_url
    if engine.model:
        yield "model", engine.model
    pool = f", {engine.capacity_blocks:,} of them" if engine.capacity_blocks else ""
    ranks = f", on each of {engine.data_parallel_ranks} ranks" if engine.data_parallel_ranks > 1 else ""
    yield "cache", f"blocks of {engine.block_tokens:,} tokens{pool}{ranks}"
    shape = asked.shape
    yield (
        "prompts",
        f"{shape.requests} requests, {shape.prefix_tokens} shared and {shape.suffix_tokens} own tokens, "
        f"{shape.groups} prefix{'' if shape.groups == 1 else 'es'}",
    )
    for name, word in _WORDS.items():
        if getattr(asked, name) != _ORDINARY.get(name):
            yield word, str(getattr(asked, name))
    if asked.break_mode == "token":
        yield "changed token", f"at {asked.options.at}, {'the same in' if asked.options.fixed else 'another in'} each"
    if asked.break_mode == "capacity":
        yield "flood", f"{asked.flood_requests} prompts of {asked.flood_tokens} tokens"


def _points(lab: LabResult) -> Iterator[dict[str, Any]]:
    for part in lab.parts:
        for trial in part.trials:
            for point in trial.points:
                yield {
                    "x": named(point.x),
                    "block_tokens": part.engine.block_tokens,
                    "remark": ", ".join(filter(None, (point.series, point.remark))),
                    "predicted": rate(point, point.model_hit_tokens, lab.share_of_possible),
                    "measured": rate(point, point.hit_tokens, lab.share_of_possible),
                    "hit_tokens": point.hit_tokens,
                    "whole_tokens": whole_tokens(point, lab.share_of_possible),
                    "error_tokens": point.error_tokens,
                }


def _predicted(phase: PhaseResult) -> float | None:
    return phase.model_hit_tokens / phase.prompt_tokens if phase.prompt_tokens else None


def _percent_wide(share: float | None) -> str:
    return f"{100 * min(1.0, max(0.0, share or 0.0)):.2f}"
