"""What a cache salt for each tenant costs, though all of them send the same prefix."""

from hitlab.experiment.lab import Axis, Lab, Reading, Server, Trial
from hitlab.experiment.plan import Experiment
from hitlab.experiment.shape import SharedPrefix

_REQUESTS = 64
_TENANTS = (1, 2, 4, 8, 16, 32, 64)


def _trials(server: Server) -> list[Trial]:
    salted = [
        Trial(
            Experiment(SharedPrefix(_REQUESTS, 1000, 200, tenants), workload="tenants"),
            (Reading(tenants, series="a salt for each tenant"),),
            dense=tenants not in (1, 8, 64),
        )
        for tenants in _TENANTS
    ]
    shared = [
        Trial(
            Experiment(SharedPrefix(_REQUESTS, 1000, 200)),
            (Reading(tenants, series="no salts"),),
            dense=tenants not in (1, 64),
        )
        for tenants in _TENANTS[::2]
    ]
    return salted + shared


LAB = Lab(
    title="Tenants: what isolation costs",
    question="64 requests of K tenants share one system prompt. What does it cost to give each tenant its own salt?",
    predict=(
        "Each tenant is cold once, on every rank: (N - K*D) requests of N hit. Work out K=1, 8 and 64, and draw the "
        "curve beside the flat one of tenants who share. Each salt also stores the prefix anew: how many copies fit?"
    ),
    picture=(
        "From 81.375 % (82.0312 % at page 1) with one tenant down to 0 where every request has a tenant of its own; "
        "without salts it is flat. Counters can't tell this from a bug: a correct, common isolation looks exactly "
        "like a broken key."
    ),
    source="lab page, section 4.2",
    axis=Axis("tenants K", log=True),
    trials=_trials,
)
