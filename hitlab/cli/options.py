"""Options that several commands share, said once, and JSON on stdout."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

Requests = Annotated[int, typer.Option("--requests", "--num-prompts", "-n", help="N: requests in all.")]
PrefixLen = Annotated[int, typer.Option("--prefix-len", help="P: tokens of the shared prefix.")]
SuffixLen = Annotated[int, typer.Option("--suffix-len", help="S: tokens of each request's own suffix.")]
Groups = Annotated[int, typer.Option("--groups", help="G: different prefixes, used in turn.")]
DataParallel = Annotated[
    int, typer.Option("--dp", "--data-parallel-size", help="D: data-parallel ranks; each has its own cache.")
]
BreakMode = Annotated[str, typer.Option("--break-mode", help="How to break the cache: none, token, salt, capacity.")]
BreakAt = Annotated[int, typer.Option("--break-at", help="Token index in the prefix that `token` changes.")]
BreakFixed = Annotated[
    bool, typer.Option("--break-fixed", help="One same broken token or salt in all requests, not one each.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else there.")]


def print_json(document: Any) -> None:
    """One JSON document, readable and one value per line."""
    import msgspec

    print(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())


def console(stderr: bool = False) -> "Console":
    """A rich console that leaves numbers and brackets in our text alone."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, markup=False)
