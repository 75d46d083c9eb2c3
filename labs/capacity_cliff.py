"""What happens when the prefixes in use no longer fit the pool, by a little."""

from hitlab.experiment.lab import Axis, Lab, Reading, Server, Trial
from hitlab.experiment.plan import Experiment
from hitlab.experiment.shape import SharedPrefix

_PASSES = 4
_PREFIXES = 8  # or more, where they would be longer than the server takes
_UNKNOWN_POOL_TOKENS = 16_384  # where the server does not say how much it holds
_MEASURED = (80, 99, 103, 117)  # percent of the pool
_SWEPT = sorted({*range(80, 125, 4), *range(99, 113, 2), *_MEASURED})


def _trials(server: Server) -> list[Trial]:
    """Prefixes of whole blocks, one token of suffix: what stays of a prompt is exactly its prefix."""
    capacity_tokens = server.capacity_tokens or _UNKNOWN_POOL_TOKENS
    longest = (server.max_model_tokens or capacity_tokens) - 2
    groups = max(_PREFIXES, -(-_SWEPT[-1] * capacity_tokens // (100 * longest)))
    pool_blocks = capacity_tokens / server.block_tokens
    found: dict[int, bool] = {}
    for percent in _SWEPT:
        prefix_blocks = max(1, round(pool_blocks * percent / 100 / groups))
        found[prefix_blocks] = found.get(prefix_blocks, True) and percent not in _MEASURED
    return [
        Trial(
            Experiment(SharedPrefix(_PASSES * groups, blocks * server.block_tokens, 1, groups)),
            (Reading(round(groups * blocks / pool_blocks, 4), ("warm",)),),
            dense,
        )
        for blocks, dense in sorted(found.items())
    ]


LAB = Lab(
    title="The capacity cliff",
    question="Prefixes are used in turn. What happens to the hits when together they outgrow the pool by a little?",
    predict=(
        "An LRU cache that goes round more prefixes than it holds evicts each one just before it is needed. Draw the "
        "share of hits from 0.8 to 1.2 times the pool. Does it fall in proportion, or at once?"
    ),
    picture=(
        "All of the hits up to a footprint of 1.0, then a cliff. vLLM frees a prompt's tail first and so loses "
        "prefixes piece by piece: a steep slope that ends where about one whole prefix is too much (on a real vLLM, "
        "with other lengths, 100 % at 0.99, 35 % at 1.03 and nothing at 1.17). SGLang evicts a prefix whole: no slope. "
        "The dashed closed form knows no eviction and stays at 100 %."
    ),
    source="lab page, section 4.3; measured on vLLM 0.32.0",
    axis=Axis("footprint of all prefixes", "pools"),
    trials=_trials,
    share_of_possible=True,
    pool_tokens=16_384,
)
