"""Two ways to lose the hits that look the same, and which of them comes back by itself."""

from dataclasses import replace

from hitlab.experiment.fit import with_auto_flood
from hitlab.experiment.lab import Axis, Lab, Reading, Server, Trial
from hitlab.experiment.plan import Experiment
from hitlab.experiment.shape import SharedPrefix

_SHAPE = SharedPrefix(64, 1000, 200)


def _flooded(server: Server) -> Experiment:
    """A flood that fills every rank's pool; of the lab page's size, where the pool's is not known."""
    flooded = Experiment(_SHAPE, "capacity")
    if server.capacity_tokens is None:
        longest_tokens = (server.max_model_tokens or flooded.flood_tokens + 1) - 1
        return replace(flooded, flood_tokens=min(flooded.flood_tokens, longest_tokens))
    return with_auto_flood(flooded, server.capacity_tokens, server.ranks, server.max_model_tokens)


def _trials(server: Server) -> list[Trial]:
    breaks = {
        "salt": (Experiment(_SHAPE, "salt"), "break", "repeat"),
        "capacity": (_flooded(server), "evicted", "recovery"),
    }
    trials: list[Trial] = []
    for name, (experiment, broken, again) in breaks.items():
        readings = (
            Reading("warm", ("warm",), name),
            Reading("broken", (broken,), name),
            Reading("next pass,\nno reset", (again,), name),
        )
        trials += [
            Trial(experiment, readings),
            Trial(Experiment(_SHAPE), (Reading("warm pass,\nafter a reset", ("warm",), name),)),
        ]
    return trials


LAB = Lab(
    title="Recovery: a broken key or a lost block",
    question="A salt in every request, or a flood that evicts the prefix: which of the two recovers without a reset?",
    predict=(
        "For both breaks write down four hit rates: warm, right after the break, the next pass with nothing changed, "
        "and a warm pass after a reset. Which one recovers by itself, and what does that say about where it failed?"
    ),
    picture=(
        "Both lines start at 82.7 % (83.3 % at page 1) and fall to 0 with the break. The evicted prefix is back in "
        "the next pass; the salted requests stay at 0 for good. A reset brings back neither: it only shows that the "
        "plain prefix still works. Opposite fixes: more memory for one, the same key for the other."
    ),
    source="lab page, sections 4.2, 4.3 and 6 (exercise 4)",
    axis=Axis("pass"),
    trials=_trials,
    pool_tokens=32_768,
)
