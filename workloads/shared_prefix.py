"""Prompts that share a prefix in each group and have a suffix of their own, groups in turn.

Source: lab page, section 3.
"""

from hitlab.experiment.shape import Phase, SharedPrefix, cold_and_warm
from hitlab.experiment.steps import Workload

SUMMARY = "G prefixes used in turn, a fresh suffix in every request"
BREAKABLE = True
SEQUENTIAL = False


def fit(shape: SharedPrefix) -> SharedPrefix:
    """The shape, unchanged."""
    return shape


def phases(shape: SharedPrefix, output_tokens: int, ranks: int) -> list[Phase]:
    """Cold, then warm."""
    return cold_and_warm(shape)


def build(shape: SharedPrefix, seed: int, vocab_range: tuple[int, int], output_tokens: int) -> Workload:
    """The prompts, in the order in which they are sent."""
    from hitlab.experiment.prompts import GroupedPrompts  # arithmetic needs no prompts, and starts sooner without

    return GroupedPrompts(shape, seed, vocab_range)
