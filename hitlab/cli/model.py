"""`hitlab model`: a cache model held against a recording of its engine."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from hitlab.cli import _options as opt
from hitlab.client.dialect import load_engine
from hitlab.errors import HitlabError, InputError
from hitlab.recordings.recording import Difference, compare, read_recording, recorded_facts


def command(
    recording: Annotated[Path, typer.Argument(help="A recording, .json or .json.gz, as `record` makes one.")],
    as_json: opt.Json = False,
) -> None:
    """Compare a cache model with what its engine answered: hit tokens and, where counted, evicted tokens.

    Exit status 3 if the model differs, 4 if the recording itself does not add up.

    Example: hitlab model tape.json.gz
    """
    try:
        tape = read_recording(recording.read_bytes())
        engine = load_engine(tape.engine)
        facts = recorded_facts(tape, engine)
        result = compare(tape, lambda: engine.cache_model(facts))
    except OSError as error:
        raise InputError(error.strerror or str(error), where=str(recording)) from error
    except HitlabError as error:
        where = ", ".join(filter(None, (str(recording), error.where)))
        raise InputError(error.what, where=where, todo=error.todo) from error

    if as_json:
        opt.print_json({"engine": tape.engine, "version": tape.version} | msgspec.to_builtins(result))
    else:
        print(f"{tape.engine} {tape.version}, {len(tape.sequences):,} sequences, {result.requests:,} requests")
        print(f"hits differ      {result.hits_differ:,}")
        print(f"evicted differ   {result.evicted_differ:,}")
        if result.counters_differ:
            print(
                f"counters differ  {result.counters_differ:,} sequences: "
                "the engine's counters grew by more or less than its answers add up to"
            )
        if result.first_difference:
            print(_describe(result.first_difference))
    if not result.agrees:
        raise typer.Exit(3)
    if result.counters_differ:
        raise typer.Exit(4)


def _describe(difference: Difference) -> str:
    evicted = difference.expected_evicted_tokens
    counted = "not counted" if evicted is None else f"{evicted:,}"
    return (
        f"first difference at sequence {difference.sequence}, request {difference.request} "
        f"({difference.prompt_tokens:,} prompt tokens)\n"
        f"  hit tokens      engine {difference.expected_hit_tokens:,}, model {difference.got_hit_tokens:,}\n"
        f"  evicted tokens  engine {counted}, model {difference.got_evicted_tokens:,}"
    )
