"""`vllm bench serve --dataset-name prefix_repetition`, with exact token ids in place of generated text.

Its options here: --num-prompts N, --prefix-repetition-num-prefixes is --groups, -prefix-len P, -suffix-len S and
-output-len the same. Each prefix gets N // G prompts, what is left over is not sent; the order is shuffled.
"""

from dataclasses import replace

from hitlab.errors import UsageError
from hitlab.experiment.shape import Phase, SharedPrefix, cold_and_warm
from hitlab.experiment.steps import Workload

SUMMARY = "vLLM's benchmark: N // G prompts for each of G prefixes, shuffled"
BREAKABLE = True
SEQUENTIAL = False


def fit(shape: SharedPrefix) -> SharedPrefix:
    """The shape with N cut to a multiple of G. Raises UsageError where N is below G."""
    each = shape.requests // shape.groups
    if not each:
        raise UsageError(
            f"{shape.requests:,} prompts are fewer than {shape.groups:,} prefixes", todo="give a larger --num-prompts"
        )
    return replace(shape, requests=each * shape.groups)


def phases(shape: SharedPrefix, output_tokens: int, ranks: int) -> list[Phase]:
    """Cold, then warm: order does not matter without eviction, and what is generated is never asked for again."""
    return cold_and_warm(shape)


def build(shape: SharedPrefix, seed: int, vocab_range: tuple[int, int], output_tokens: int) -> Workload:
    """The prompts, in the order in which they are sent."""
    from hitlab.experiment.prompts import ShuffledPrompts  # arithmetic needs no prompts, and starts sooner without

    return ShuffledPrompts(shape, seed, vocab_range)
