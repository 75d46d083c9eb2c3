"""From what is kept to what was asked: in words, and as the command that runs it again.

A key is never kept, so none can appear.
"""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

import msgspec

from hitlab.experiment.plan import Experiment
from hitlab.experiment.shape import SharedPrefix
from hitlab.experiment.vocabulary import DEFAULT_RANGE
from hitlab.flags import FLAGS
from hitlab.results.run_result import EngineInfo, Result, ServerAsked

_LETTERS = {"requests": "N", "prefix_tokens": "P", "suffix_tokens": "S", "groups": "G"}
# Fields that `measure` has no flag for: only labs use them.
LAB_ONLY = frozenset({"prompts_per_post"})
_FLOOD = ("flood_requests", "flood_tokens")


def asked_in_words(result: Result) -> str:
    """The experiment in a few words, such as `N=64 P=1000 S=200 break token at 400`."""
    workload, broken = result.experiment.workload, break_in_words(result)
    words = [] if workload == "shared-prefix" else [workload]
    return " ".join([*words, shape_in_words(result), *(["break", broken] if broken else [])])


def shape_in_words(result: Result) -> str:
    """The shape by its letters; those that are 1 are left out."""
    sizes = {name: getattr(result.experiment.shape, name) for name in _LETTERS}
    return " ".join(f"{letter}={sizes[name]}" for name, letter in _LETTERS.items() if sizes[name] != 1)


def break_in_words(result: Result) -> str:
    """The break and, where it changes a token, the token's place; empty without a break."""
    experiment = result.experiment
    if experiment.break_mode == "token":
        return f"token at {experiment.options.at}"
    return "" if experiment.break_mode == "none" else experiment.break_mode


def measure_command(result: Result) -> str:
    """The `hitlab measure` that runs the same experiment on the same server.

    An engine that hitlab started itself is started anew; any other one is where it was.
    """
    words = ["hitlab", "measure", "--engine", result.engine.name]
    words += _server_words(result.engine, _server(result))
    given = experiment_fields(result.experiment)
    usual = experiment_fields(Experiment(SharedPrefix(0, 0, 0)))
    shape_fields = {each.name for each in fields(SharedPrefix)} - {"groups"}
    flooded = _FLOOD if result.experiment.break_mode == "capacity" else ()
    always = {*shape_fields, *flooded, "seed"}
    for name in FLAGS:
        if name in given and (name in always or given[name] != usual[name]) and (name in flooded or name not in _FLOOD):
            words += _flag_words(name, given[name])
    return shlex.join(words)


def experiment_fields(experiment: Experiment) -> dict[str, Any]:
    """Everything an experiment says, flat, under the names that flags.FLAGS has.

    >>> flat = experiment_fields(Experiment(SharedPrefix(64, 1000, 200)))
    >>> flat["prefix_tokens"], flat["break_at"], flat["vocab_range"]
    (1000, 0, (1000, 31999))
    """
    own = {each.name: getattr(experiment, each.name) for each in fields(Experiment)}
    shape, options = own.pop("shape"), own.pop("options")
    return {
        **{each.name: getattr(shape, each.name) for each in fields(SharedPrefix)},
        **own,
        "break_at": options.at,
        "break_fixed": options.fixed,
        "vocab_range": tuple(experiment.vocab_range),
    }


def lab_command(name: str, engine: str, server: Sequence[str], options: Mapping[str, Any]) -> str:
    """A `hitlab lab run`; options that are None or False are left out, one that is True stands alone.

    >>> lab_command("tenants", "vllm", ["--emulate"], {"--quick": True, "--dp": None, "--seed": 7})
    'hitlab lab run tenants --engine vllm --emulate --quick --seed 7'
    """
    words = ["hitlab", "lab", "run", name, "--engine", engine, *server]
    for option, value in options.items():
        if value is not None and value is not False:
            words += [option] if value is True else [option, str(value)]
    return shlex.join(words)


def _server_words(engine: EngineInfo, asked: ServerAsked) -> Iterator[str]:
    """Options that lead to the server, or start one like it."""
    if asked.start:
        yield f"--{asked.start}"
    else:
        yield from ("--base-url", engine.base_url)
    usual = ServerAsked()
    for name in ServerAsked.__struct_fields__:
        value = getattr(asked, name)
        if name != "start" and value != getattr(usual, name):
            yield from _flag_words(name, value)


def _server(result: Result) -> ServerAsked:
    """How to get the server again. One that is started anew gets the sizes it had, whatever the defaults are now."""
    engine = result.engine
    # Files of before this was kept: an emulated server was started for the run.
    asked = result.server or ServerAsked(start="emulate" if engine.source == "emulated" else "")
    if not asked.start or asked.faults:  # a faulty server may not say its true sizes
        return asked
    return msgspec.structs.replace(
        asked,
        block_tokens=engine.block_tokens,
        capacity_blocks=engine.capacity_blocks,
        ranks=engine.data_parallel_ranks if engine.data_parallel_ranks > 1 else None,
    )


def _flag_words(name: str, value: Any) -> list[str]:
    """A field's flag and its value as the command line takes it."""
    flag = FLAGS[name]
    if name == "vocab_range":
        first, last = value
        # The server did not say its vocabulary, or the range would not have needed to be given: so say it again.
        size = [FLAGS["vocab_tokens"], str(last + 1)] if last > DEFAULT_RANGE[1] else []
        return [flag, f"{first}:{last}", *size]
    if isinstance(value, bool):
        return [flag] if value else []
    if isinstance(value, tuple):
        return [word for each in value for word in (flag, str(each))]
    return [flag, f"{value:g}" if isinstance(value, float) else str(value)]
