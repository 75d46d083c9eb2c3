"""Prompts that share a prefix in each group and have a suffix of their own, groups in turn.

Source: lab page, section 3.
"""

from hitlab.experiment.plan import unbroken
from hitlab.experiment.prompts import GroupedPrompts
from hitlab.experiment.shape import Phase, SharedPrefix

SUMMARY = "G prefixes used in turn, a fresh suffix in every request"
BREAKABLE = True


def fit(shape: SharedPrefix) -> SharedPrefix:
    """Any shape will do."""
    return shape


def phases(shape: SharedPrefix, output_tokens: int, ranks: int) -> list[Phase]:
    """Cold, then warm."""
    return unbroken(shape)


def build(shape: SharedPrefix, seed: int, vocab_range: tuple[int, int], output_tokens: int) -> GroupedPrompts:
    """The prompts."""
    return GroupedPrompts(shape, seed, vocab_range)
