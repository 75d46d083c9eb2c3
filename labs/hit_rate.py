"""How many requests it takes until the cold first one no longer shows."""

from hitlab.experiment.lab import Axis, Lab, Reading, Server, Trial
from hitlab.experiment.plan import Experiment
from hitlab.experiment.shape import SharedPrefix

_REQUESTS = (1, 2, 4, 8, 16, 32, 64)


def _trials(server: Server) -> list[Trial]:
    return [
        Trial(
            Experiment(SharedPrefix(requests, 1000, 200)),
            (Reading(requests, remark="the worked case" if requests == _REQUESTS[-1] else ""),),
            dense=requests not in (1, 8, 64),
        )
        for requests in _REQUESTS
    ]


LAB = Lab(
    title="The hit rate of a shared prefix",
    question="64 requests share 1,000 tokens and have 200 of their own. What is the hit rate, and why not 83.3 %?",
    predict=(
        "Work out (N-1) * B*floor(P/B) / (N*(P+S)) for N=64, P=1000, S=200, at B=16 and at B=1. Say how much of "
        "the gap to P/(P+S) is the cold first request, and how much is the rounding to whole blocks."
    ),
    picture=(
        "A curve that rises from 0 with the first request and flattens below P/(P+S): 81.375 % at N=64 and B=16, "
        "82.0312 % at B=1. The small constant distance between the two lines is 8 tokens a request, stranded in a "
        "partial block."
    ),
    source="lab page, section 3",
    axis=Axis("requests N", log=True),
    trials=_trials,
    block_tokens=(None, 16),
)
