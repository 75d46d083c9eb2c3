"""`hitlab predict`: the closed form. Plain text and light imports, because it must start at once."""

from typing import Annotated

import typer

from hitlab.cli import _options as opt
from hitlab.cli._format import percent
from hitlab.experiment.closed_form import check_shape, shape_of
from hitlab.experiment.plan import Experiment
from hitlab.experiment.prediction import PhasePrediction, Prediction, predict
from hitlab.experiment.shape import BreakOptions
from hitlab.tokens import Tally

DEFAULT_BLOCK_TOKENS = 16  # vLLM's, said here so that the default case loads no engine


def command(
    requests: opt.Requests = 64,
    prefix_len: opt.PrefixLen = 1000,
    suffix_len: opt.SuffixLen = 200,
    block_size: Annotated[
        int | None,
        typer.Option(
            "--block-size",
            "--page-size",
            "-B",
            help="B: match granularity in tokens (default: the engine's, or 16).",
        ),
    ] = None,
    groups: opt.Groups = 1,
    per_group: opt.PerGroup = None,
    workload: opt.Workload = "shared-prefix",
    output_len: opt.OutputLen = 1,
    dp: opt.DataParallel = 1,
    engine: Annotated[
        str | None, typer.Option("--engine", "-e", help="Whose default block or page size to take.")
    ] = None,
    break_mode: opt.BreakMode = "none",
    break_at: opt.BreakAt = 0,
    break_fixed: opt.BreakFixed = False,
    as_json: opt.Json = False,
) -> None:
    """Predict the hit rate of a shared-prefix or multi-turn workload by arithmetic, offline.

    (N-G*D)*B*floor(P/B) / (N*(P+S)), with the penalties that keep it below P/(P+S).

    Example: hitlab predict --prefix-len 1000 --suffix-len 200 --requests 64 --block-size 16
    """
    shape = shape_of(requests, prefix_len, suffix_len, groups, per_group)
    block_tokens = _block_tokens(block_size, engine)
    check_shape(shape, block_tokens, dp)
    opt.note_unused_break_options(break_mode, break_at, break_fixed)
    options = BreakOptions(break_at, break_fixed)
    found = predict(
        Experiment(shape, break_mode, options, workload=workload, output_tokens=output_len), block_tokens, dp
    )
    shape, unbroken = found.experiment.shape, found.unbroken
    if as_json:
        penalties = {
            "matchable_prefix_tokens": unbroken.matchable_prefix_tokens,
            "stranded_tokens": unbroken.stranded_tokens,
            "last_token_tokens": unbroken.last_token_tokens,
            "cold_start_points": unbroken.cold_start_points,
            "granularity_points": unbroken.granularity_points,
            "last_token_points": unbroken.last_token_points,
            "below_one_block": unbroken.below_one_block,
        }
        opt.print_json(
            {
                "hit_tokens": found.hit_tokens,
                "prompt_tokens": found.prompt_tokens,
                "hit_rate": found.hit_rate,
                **(penalties if found.one_prefix else {}),
                "requests": shape.requests,
                "prefix_len": prefix_len,
                "suffix_len": suffix_len,
                "output_len": output_len,
                "block_size": block_tokens,
                "groups": groups,
                "dp": dp,
                "break_mode": break_mode,
                "break_at": break_at,
                "break_fixed": break_fixed,
                "workload": workload,
                "phases": _phase_rows(found),
            }
        )
        return
    if found.one_prefix:
        print(
            f"{shape.requests:,} requests of {prefix_len:,} shared + {suffix_len:,} own tokens, block {block_tokens:,}"
        )
        for line in _sheet(found):
            print(line)
    else:
        print(f"{groups:,} conversations that open with {prefix_len:,} tokens, block {block_tokens:,}")
        print(f"{shape.requests // groups:,} turns: {suffix_len:,} new tokens, {output_len:,} generated")
        print(f"\nhit rate     {_percent(found.tally)}  {_of(found.tally)}")
    print()
    print(f"{'phase':<9}{'requests':>9}{'prompt tokens':>15}{'hit tokens':>13}{'hit rate':>12}")
    for phase in found.phases:
        print(_row(phase))


def _phase_rows(found: Prediction) -> list[dict[str, object]]:
    return [
        {
            "name": phase.name,
            "requests": phase.requests,
            "prompt_tokens": phase.prompt_tokens,
            "hit_tokens": phase.hit_tokens,
            "hit_rate": phase.hit_rate,
        }
        for phase in found.phases
    ]


def _block_tokens(block_size: int | None, engine: str | None) -> int:
    if engine is None:
        default = DEFAULT_BLOCK_TOKENS
    else:
        from hitlab.client.dialect import load_engine

        default = int(load_engine(engine).DEFAULT_BLOCK_TOKENS)
    return default if block_size is None else block_size


def _sheet(found: Prediction) -> list[str]:
    shape, losses, tally, scored = found.experiment.shape, found.unbroken, found.tally, found.scored
    unbroken = losses.tally
    ceiling = Tally(shape.prompt_tokens, shape.prefix_tokens)
    cold = losses.cold_requests
    stranded, last = losses.stranded_tokens, losses.last_token_tokens
    lost = unbroken - tally
    lines = ["", f"hit rate     {_percent(tally)}  {_of(tally)} ({' + '.join(scored)})"]
    if "warm" not in scored:
        lines += [
            f"unbroken     {_percent(unbroken)}  {_of(unbroken)} (cold + warm)",
            f"break        {_loss(100 * lost.hit_tokens / tally.queried_tokens)}  "
            + (f"{lost.hit_tokens:,} tokens lost to it" if lost.hit_tokens else "only the first request misses"),
        ]
    lines += [
        f"ceiling      {_percent(ceiling)}  P/(P+S): every prefix token found, every time",
        f"cold start   {_loss(losses.cold_start_points)}  {cold:,} cold request{'s'[: cold != 1]}",
        f"granularity  {_loss(losses.granularity_points)}  "
        f"{stranded:,} of {shape.prefix_tokens:,} tokens stranded in a partial block",
    ]
    if last:
        lines.append(
            f"last token   {_loss(losses.last_token_points)}  "
            f"{last:,} tokens computed again with each prompt's last token"
        )
    if cold == shape.requests > 1:
        lines += ["", f"every request is a cold one: no prefix is sent twice to a rank ({shape.groups:,} groups)"]
    if losses.below_one_block:
        lines += [
            "",
            "below one block: 0 by arithmetic; no request can ever hit a prefix shorter than a block",
        ]
    return lines


def _row(phase: PhasePrediction) -> str:
    counts = f"{phase.requests:>9,}{phase.prompt_tokens:>15,}{phase.hit_tokens:>13,}"
    return f"{phase.name:<9}{counts}{_percent(phase.tally):>12}"


def _percent(tally: Tally) -> str:
    unit = "  " if tally.hit_rate is None else " %"
    return f"{percent(tally.hit_rate, 4, unit=''):>9}{unit}"


def _of(tally: Tally) -> str:
    return f"{tally.hit_tokens:,} of {tally.queried_tokens:,} prompt tokens"


def _loss(points: float) -> str:
    return f"{-points or 0.0:9.4f} points"
