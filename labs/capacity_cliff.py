"""What happens when the prefixes in use no longer fit the pool, by a little."""

from hitlab.lab import Axis, Lab, Reading, Server, Trial
from hitlab.plan import Experiment
from hitlab.types import SharedPrefix

_PASSES = 3
_PREFIXES_IN_POOL = 32
_UNKNOWN_POOL_TOKENS = 16_384  # where the server does not say how much it holds


def _trials(server: Server) -> list[Trial]:
    """Prefixes of whole blocks, one token of suffix: what stays of a prompt is exactly its prefix."""
    capacity_tokens = server.capacity_tokens or _UNKNOWN_POOL_TOKENS
    longest = min(capacity_tokens // _PREFIXES_IN_POOL, (server.max_model_tokens or capacity_tokens) - 2)
    prefix_tokens = max(1, longest // server.block_tokens) * server.block_tokens
    fit = capacity_tokens / prefix_tokens
    wanted = {round(fit * share / 100): share % 10 != 0 for share in range(80, 125, 3)}
    wanted |= {round(fit * share / 100): False for share in (80, 99, 103, 117)}
    return [
        Trial(
            Experiment(SharedPrefix(_PASSES * groups, prefix_tokens, 1, groups)),
            (Reading(round(groups * prefix_tokens / capacity_tokens, 4), ("warm",)),),
            dense,
        )
        for groups, dense in sorted(wanted.items())
        if groups
    ]


LAB = Lab(
    title="The capacity cliff",
    question="G prefixes are used in turn. What happens to the hits when together they outgrow the pool by a little?",
    predict=(
        "An LRU cache that goes round more prefixes than it holds evicts each one just before it is needed. Draw the "
        "share of hits from 0.8 to 1.2 times the pool. Does it fall in proportion, or at once?"
    ),
    picture=(
        "All of the hits up to a footprint of 1.0, then a cliff: on a real vLLM 100 % at 0.99, 35 % at 1.03 and "
        "nothing at 1.17. The slope in between is there because vLLM frees a prompt's tail first and so evicts "
        "prefixes piece by piece. What stays, 1 or 2 %, is one request: a run's first prefix is sent twice in a row. "
        "The dashed closed form knows no eviction and stays at 100 %."
    ),
    source="lab page, section 4.3; measured on vLLM 0.32.0",
    axis=Axis("footprint of all prefixes", "pools"),
    trials=_trials,
    share_of_possible=True,
    pool_tokens=16_384,
)
