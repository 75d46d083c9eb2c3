"""From what is kept to what was asked: in words, and as the command that runs it again.

A key is never kept, so none can appear.
"""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from hitlab.results.run_result import Result

# Options of `measure` by the names under which an experiment keeps them, and what leaves them out.
_SHAPE = {"requests": "--requests", "prefix_tokens": "--prefix-len", "suffix_tokens": "--suffix-len"}
_LETTERS = {"requests": "N", "prefix_tokens": "P", "suffix_tokens": "S", "groups": "G"}
_SCALARS = {
    "workload": ("--workload", "shared-prefix"),
    "break_mode": ("--break-mode", "none"),
    "concurrency": ("--concurrency", 1),
    "cold_by": ("--cold-by", "reset"),
}


def asked_in_words(result: Result) -> str:
    """The experiment in a few words, such as `N=64 P=1000 S=200 break token at 400`."""
    workload, broken = str(result.experiment.get("workload", "shared-prefix")), break_in_words(result)
    words = [] if workload == "shared-prefix" else [workload]
    return " ".join([*words, shape_in_words(result), *(["break", broken] if broken else [])])


def shape_in_words(result: Result) -> str:
    """The shape by its letters, without the ones that are 1."""
    shape = result.experiment.get("shape")
    known = shape if isinstance(shape, Mapping) else {}
    return " ".join(f"{letter}={known[name]}" for name, letter in _LETTERS.items() if known.get(name, 1) != 1)


def break_in_words(result: Result) -> str:
    """The break and, of a token, its place; empty without one."""
    mode, options = str(result.experiment.get("break_mode", "none")), result.experiment.get("options")
    if mode == "token" and isinstance(options, Mapping):
        return f"{mode} at {options.get('at')}"
    return "" if mode == "none" else mode


def measure_command(result: Result) -> str:
    """The `hitlab measure` of a kept result. An emulated engine is started anew, a real one is where it was."""
    engine, asked = result.engine, result.experiment
    words = ["hitlab", "measure", "--engine", engine.name]
    if engine.source == "emulated":
        words += ["--emulate", "--block-size", str(engine.block_tokens)]
        words += ["--capacity-blocks", str(engine.capacity_blocks)] if engine.capacity_blocks else []
        words += ["--dp", str(engine.data_parallel_ranks)] if engine.data_parallel_ranks > 1 else []
    else:
        words += ["--base-url", engine.base_url]
    words += _shape(asked.get("shape"))
    for name, (option, default) in _SCALARS.items():
        if asked.get(name, default) != default:
            words += [option, str(asked[name])]
    options = asked.get("options")
    if isinstance(options, Mapping):
        words += ["--break-at", str(options["at"])] if options.get("at") else []
        words += ["--break-fixed"] if options.get("fixed") else []
    if asked.get("break_mode") == "capacity":
        words += ["--flood-requests", str(asked.get("flood_requests")), "--flood-len", str(asked.get("flood_tokens"))]
    vocab_range = asked.get("vocab_range")
    if isinstance(vocab_range, Sequence) and list(vocab_range) != [1000, 31_999]:
        words += ["--vocab-range", ":".join(map(str, vocab_range))]
    return shlex.join([*words, "--seed", str(result.seed)])


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


def _shape(shape: object) -> list[str]:
    if not isinstance(shape, Mapping):
        return []
    words = [word for name, option in _SHAPE.items() if name in shape for word in (option, str(shape[name]))]
    return words + (["--groups", str(shape["groups"])] if shape.get("groups", 1) != 1 else [])
