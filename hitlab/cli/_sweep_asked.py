"""What a sweep is asked for: its outputs, policies, bytes of a token and capacities, checked before a trace is read."""

from collections.abc import Callable
from pathlib import Path

from hitlab import families
from hitlab.cli import _points
from hitlab.errors import UsageError
from hitlab.files import Output, claim
from hitlab.report import generator, sweep_plot
from hitlab.simulation import kv_size, request_file, sweep
from hitlab.simulation.hit_curve import Curves, lru_curve
from hitlab.simulation.policy import Choice

MAX_ELEMENT_BYTES = 16
SMALLEST_AUTO = 10  # blocks; every policy works with so many at its default options

Sizes = Callable[[int, Curves | None], list[int] | None]


def claim_outputs(trace: Path, csv: Path | None, plot: Path | None, requests_out: Path | None, force: bool) -> None:
    """Raise UsageError or InputError for a file that can't be written, or must not be."""
    outputs: list[Output] = []
    if csv:
        outputs.append(Output("--csv", csv, "a table of points", _points.wrote))
    if plot:
        sweep_plot.check_form(plot)
        outputs.append(Output("--plot", plot, "a picture", generator.drew))
    if requests_out:
        outputs.append(request_file.output(requests_out))
    claim(outputs, [trace], force=force)


def choices(text: str, drawn: bool) -> list[Choice]:
    """The policies that --policy names, each once; `drawn` asks that a plot can show them all. Raises UsageError."""
    named = families.names("policies") if text.strip().lower() == "all" else text.split(",")
    chosen: list[Choice] = []
    for each in map(Choice.of, map(str.strip, named)):
        if any((each.policy, each.options) == (other.policy, other.options) for other in chosen):
            raise UsageError(f"--policy has {each.label} twice", todo="name each policy once")
        chosen.append(each)
    if drawn:
        sweep_plot.check_lines(len(chosen))
    return chosen


def token_bytes(stated: int | None, model: str | None, kv_bytes: int) -> int | None:
    """KV cache bytes of one token, `stated` or the model's; None where neither is given. Raises UsageError."""
    if stated is not None and model is not None:
        raise UsageError("both --bytes-per-token and --model are given", todo="give one of them")
    if stated is not None and not 1 <= stated <= kv_size.MAX_MEMORY_BYTES:
        raise UsageError(f"--bytes-per-token is {stated}", todo=f"give 1 to {kv_size.MAX_MEMORY_BYTES:,}")
    if not 1 <= kv_bytes <= MAX_ELEMENT_BYTES:
        raise UsageError(f"--kv-bytes is {kv_bytes}", todo=f"give 1 to {MAX_ELEMENT_BYTES}: 1 for FP8, 2 for 16 bits")
    return stated if model is None else kv_size.architecture(model).bytes_per_token(kv_bytes)


def sizes(capacity: str | None, memory: str | None, bytes_of_token: int | None) -> Sizes:
    """The capacities in blocks, as a function of the trace's block size and curves. Raises UsageError.

    It returns None for automatic capacities as long as there are no curves: they follow from LRU's.
    """
    if capacity is not None and memory is not None:
        raise UsageError("both --capacity and --memory are given", todo="give one of them")
    if memory is not None:
        if bytes_of_token is None:
            raise UsageError("--memory needs to know what a token takes", todo="add --bytes-per-token or --model")
        return lambda block_tokens, curves: sweep.memory_capacities(memory, bytes_of_token, block_tokens)
    listed = sweep.capacities("auto" if capacity is None else capacity)
    if listed is not None:
        return lambda block_tokens, curves: listed

    def automatic(block_tokens: int, curves: Curves | None) -> list[int] | None:
        return None if curves is None else sweep.auto_capacities(curves.of(lru_curve), SMALLEST_AUTO)

    return automatic
