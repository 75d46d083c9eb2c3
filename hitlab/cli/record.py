"""`hitlab record`: random sequences sent to a live engine, and everything it answered, in a file."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from hitlab.cli import _options as opt
from hitlab.cli import _server_options as given
from hitlab.cli import _signals, _target, _written
from hitlab.cli._progress import progress
from hitlab.errors import HitlabError, InterruptedRunError, UsageError
from hitlab.files import Output, claim, written
from hitlab.flags import in_flags
from hitlab.measurement.asked import Asked
from hitlab.recordings.recorder import Recorder, Wanted, check_name, prepare_recorder, save
from hitlab.recordings.recording import Recording, wrote


def command(
    engine: given.EngineName,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The recording, .json or .json.gz; an older one is overwritten.")
    ],
    base_url: given.BaseUrl = None,
    metrics_url: given.MetricsUrl = None,
    emulate: given.Emulate = False,
    cpu: given.Cpu = False,
    sequences: Annotated[int, typer.Option("--sequences", help="Sequences, each from an empty cache on.")] = 10,
    requests: Annotated[int, typer.Option("--requests", "-n", help="Requests in each sequence.")] = 60,
    max_len: Annotated[
        int | None,
        typer.Option("--max-len", help="Tokens of the longest prompt (default: 600, or a third of the pool if less)."),
    ] = None,
    max_output: Annotated[
        int, typer.Option("--max-output", help="Most tokens to generate; 1 where the server returns no token ids.")
    ] = 40,
    seed: Annotated[int, typer.Option("--seed", help="Same seed, same sequences.")] = 0,
    vocab_range: opt.VocabRange = None,
    vocab_size: opt.VocabSize = None,
    block_size: given.BlockSize = None,
    capacity_blocks: given.CapacityBlocks = None,
    api_key_env: given.ApiKeyEnv = None,
    admin_key_env: given.AdminKeyEnv = None,
    timeout: given.Timeout = 120.0,
    fault: given.Fault = None,
    engine_arg: given.EngineArg = None,
    force: opt.Force = False,
    as_json: opt.Json = False,
) -> None:
    """Record what an engine answers to random sequences, one request after another; `model` explains the file.

    Prompts branch off each other, repeat, go on from what was generated and push each other out of a small pool.

    Every request is held against the engine's counters. The server's cache is emptied before every sequence.

    Exit status: 0 all sequences recorded, 4 some could not be trusted and were left out, 1 error, 2 usage.

    Example: hitlab record --engine vllm --emulate --capacity-blocks 64 -o tape.json.gz
    """
    for option, value, least in (
        ("--sequences", sequences, 1),
        ("--requests", requests, 1),
        ("--max-output", max_output, 1),
        ("--max-len", max_len, 2),
    ):
        if value is not None and value < least:
            raise UsageError(f"{option} is {value}", todo=f"give {least} or more")
    check_name(out)
    where = _target.Target(
        engine=engine,
        base_url=base_url,
        metrics_urls=tuple(metrics_url or ()),
        emulate=emulate,
        cpu=cpu,
        asked=Asked(
            block_tokens=block_size,
            capacity_blocks=capacity_blocks,
            vocab_range=opt.token_range(vocab_range),
            vocab_tokens=vocab_size,
        ),
        api_key_env=api_key_env,
        admin_key_env=admin_key_env,
        timeout_s=timeout,
        faults=tuple(fault or ()),
        engine_args=tuple(engine_arg or ()),
    )
    claim([Output("--out", out, "a recording", wrote)], force=force)
    recorder = _record(where, Wanted(sequences, requests, seed, max_len, max_output), out)
    _print_recording(recorder.recording(), recorder.dropped, out, as_json)
    if recorder.dropped:
        raise typer.Exit(4)


def _record(where: _target.Target, wanted: Wanted, out: Path) -> Recorder:
    """Walk, and save what was finished, however the walk ended."""
    recorder: Recorder | None = None
    kept = ""
    try:
        with where.connected() as (loop, client), progress("recording") as answered:
            try:
                recorder = loop.run(prepare_recorder(client, where.asked, wanted))
                if recorder.emulated:
                    opt.console(stderr=True).print("EMULATED: a model of the engine answers, not a real one")
                loop.run(recorder.walk(answered))
            finally:  # before a server of ours is ended, which may take a while
                with _signals.held():
                    kept = _save(recorder, out)
    except HitlabError:
        if kept:
            print(kept, file=sys.stderr)
        raise
    except KeyboardInterrupt:
        raise InterruptedRunError("interrupted", todo=kept or "no sequence was finished") from None
    return recorder


def _save(recorder: Recorder | None, out: Path) -> str:
    """Write the finished sequences, if there are any, and say so."""
    if recorder is None or not recorder.sequences:
        return ""
    save(recorder.recording(), out)
    return f"finished sequences: {len(recorder.sequences):,}, in {_written.said(out)}"


def _print_recording(kept: Recording, dropped: list[str], out: Path, as_json: bool) -> None:
    requests = [request for sequence in kept.sequences for request in sequence.requests]
    prompt_tokens, hit_tokens = sum(len(request.prompt) for request in requests), sum(each.cached for each in requests)
    dropped = [*map(in_flags, dropped)]
    for reason in dropped:
        print(f"left out, {reason}", file=sys.stderr)
    if as_json:
        if written(out) != out:
            opt.note(f"recording: {_written.said(out)}")
        opt.print_json(
            {
                "file": str(written(out)) if requests else None,
                "engine": kept.engine,
                "version": kept.version,
                "source": kept.source,
                "sequences": len(kept.sequences),
                "requests": len(requests),
                "prompt_tokens": prompt_tokens,
                "hit_tokens": hit_tokens,
                "dropped": dropped,
            }
        )
    elif requests:
        emulated = "EMULATED " if kept.source == "emulated" else ""
        print(f"{emulated}{kept.engine} {kept.version}: {len(kept.sequences):,} sequences, {len(requests):,} requests")
        print(f"{hit_tokens:,} of {prompt_tokens:,} prompt tokens hit, as responses and counters agree")
        print(f"recording: {_written.said(out)}; hold the model against it with: hitlab model {written(out)}")
