"""SGLang's `generated-shared-prefix` benchmark, with exact token ids in place of generated text.

Its options here: --gsp-num-groups is --groups, --gsp-prompts-per-group is --per-group, --gsp-system-prompt-len is
--prefix-len, --gsp-question-len is --suffix-len, --gsp-output-len is --output-len. The benchmark joins system prompt
and question by two line feeds; here nothing stands between them. The order is shuffled, as without --gsp-ordered.
"""

from hitlab.errors import UsageError
from hitlab.experiment.shape import Phase, SharedPrefix, cold_and_warm
from hitlab.experiment.steps import Workload

SUMMARY = "SGLang's benchmark: so many questions for each of G system prompts, shuffled"
BREAKABLE = True
SEQUENTIAL = False


def fit(shape: SharedPrefix) -> SharedPrefix:
    """The shape, unchanged: every group has N/G prompts. Raises UsageError where N is no multiple of G."""
    if shape.requests % shape.groups:
        raise UsageError(
            f"{shape.requests:,} requests are no multiple of {shape.groups:,} groups",
            todo="give `requests_per_group` in place of `requests`",
        )
    return shape


def phases(shape: SharedPrefix, output_tokens: int, ranks: int) -> list[Phase]:
    """Cold, then warm: order does not matter without eviction, and what is generated is never asked for again."""
    return cold_and_warm(shape)


def build(shape: SharedPrefix, seed: int, vocab_range: tuple[int, int], output_tokens: int) -> Workload:
    """The prompts, in the order in which they are sent."""
    from hitlab.experiment.prompts import ShuffledPrompts  # arithmetic needs no prompts, and starts sooner without

    return ShuffledPrompts(shape, seed, vocab_range)
