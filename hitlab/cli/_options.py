"""Options that several commands share, said once, and how to print.

`predict` imports this: what is slow to import (rich, msgspec) is imported by the function that needs it.
"""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hitlab import families
from hitlab.errors import UsageError
from hitlab.experiment.steps import load_break
from hitlab.flags import in_flags

if TYPE_CHECKING:
    from rich.console import Console


def one_of(names: Sequence[str]) -> str:
    """Names in words.

    >>> one_of(["a", "b", "c"])
    'a, b or c'
    """
    *most, last = names
    return f"{', '.join(most)} or {last}" if most else last


Requests = Annotated[int, typer.Option("--requests", "--num-prompts", "-n", help="N: requests in all.")]
PrefixLen = Annotated[int, typer.Option("--prefix-len", help="P: tokens of the shared prefix.")]
SuffixLen = Annotated[int, typer.Option("--suffix-len", help="S: tokens of each request's own suffix.")]
Groups = Annotated[int, typer.Option("--groups", "--num-prefixes", "--num-groups", help="G: different prefixes.")]
PerGroup = Annotated[
    int | None,
    typer.Option("--per-group", "--turns", help="In place of N: requests of each group, turns of a conversation."),
]
Workload = Annotated[
    str,
    typer.Option(
        "--workload",
        "-w",
        help=f"The prompts: {one_of(families.names('workloads'))}.",
    ),
]
OutputLen = Annotated[int, typer.Option("--output-len", help="Tokens to generate after each prompt.")]
DataParallel = Annotated[
    int, typer.Option("--dp", "--data-parallel-size", min=1, help="D: data-parallel ranks; each has its own cache.")
]
BreakMode = Annotated[
    str, typer.Option("--break-mode", help=f"How to break the cache: {', '.join(families.names('workloads.breaks'))}.")
]
BreakAt = Annotated[
    int, typer.Option("--break-at", help="Token index in the prefix that `token` changes; at 0 nothing can hit.")
]
BreakFixed = Annotated[
    bool, typer.Option("--break-fixed", help="One same broken token or salt in all requests, not one each.")
]
ColdBy = Annotated[
    str, typer.Option("--cold-by", help="How to start cold: reset, or fresh-prefix where reset isn't allowed.")
]
VocabRange = Annotated[
    str | None, typer.Option("--vocab-range", help="First and last token id to send (default: 1000:31999).")
]
VocabSize = Annotated[
    int | None, typer.Option("--vocab-size", min=2, help="The model's vocabulary, where the server does not say.")
]
Force = Annotated[
    bool, typer.Option("--force", help="Overwrite files, too, that hitlab did not write; never what the command reads.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else there.")]


def token_range(text: str | None) -> tuple[int, int] | None:
    """First and last id that --vocab-range names; None where it is not given. Raises UsageError."""
    if text is None:
        return None
    first, colon, last = text.partition(":")
    if not (colon and first.isdecimal() and last.isdecimal() and len(text) < 20 and int(first) <= int(last)):
        raise UsageError(f"--vocab-range {text!r} is no range", todo="give FIRST:LAST, as 1000:31999")
    return int(first), int(last)


def note_unused_break_options(break_mode: str, at: int, fixed: bool) -> None:
    """Say that an option was given which this break mode does not read. Raises UsageError for an unknown mode."""
    takes = load_break(break_mode).TAKES
    for option, given, name in (("--break-at", at != 0, "at"), ("--break-fixed", fixed, "fixed")):
        if given and name not in takes:
            note(f"{option} means nothing with --break-mode {break_mode}")


def note(text: str) -> None:
    """Print a line on stderr that begins with "note:", with flags in place of fields."""
    print(f"note: {in_flags(text)}", file=sys.stderr)


def print_json(document: Any) -> None:
    """One JSON document, readable and one value per line."""
    import msgspec

    print(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())


def console(stderr: bool = False) -> "Console":
    """A rich console that leaves numbers and brackets in our text alone."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, markup=False)
