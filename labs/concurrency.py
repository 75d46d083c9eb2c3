"""Whether requests that arrive together find what none of them has stored yet."""

from hitlab.experiment.lab import Axis, Lab, Reading, Server, Trial
from hitlab.experiment.plan import Experiment
from hitlab.experiment.shape import SharedPrefix

_SHAPE = SharedPrefix(64, 1000, 200)
_AT_ONCE = (1, 2, 4, 8, 16, 32, 64)
_KEY = (1, 8, 64)


def _trials(server: Server) -> list[Trial]:
    apart = [
        Trial(
            Experiment(_SHAPE, "burst", concurrency=at_once),
            (Reading(at_once, ("burst",), "connections"),),
            dense=at_once not in _KEY,
        )
        for at_once in _AT_ONCE
    ]
    together = [
        Trial(
            Experiment(_SHAPE, "burst", prompts_per_post=at_once),
            (Reading(at_once, ("burst",), "in one POST"),),
            dense=at_once not in _KEY,
        )
        for at_once in _AT_ONCE[1:]
    ]
    return apart + together


LAB = Lab(
    title="Concurrency: a cold start of many",
    question="64 requests with one prefix meet an empty cache, 1, 8 or 64 at once. How many of them are cold?",
    predict=(
        "Until the first request is prefilled there is nothing to hit. Guess the hit rate of 64 requests one after "
        "another, of 64 at once on as many connections, and of one POST that carries all 64; for both engines."
    ),
    picture=(
        "On vLLM a flat line: a block can be found as soon as it is scheduled. On SGLang requests prefilled in one "
        "batch miss each other, so points fall below the line: one POST of 64 at page 1 was measured at 78.125 %, and "
        "74.8438 % with the overlap scheduler, which admits a second batch before the first is stored. A batch holds "
        "so many tokens, so the loss stops growing; on connections it depends on how they arrive. The line is the "
        "model's, one request after another: points below it are the finding, and the exit status is 3. An emulated "
        "engine prefills in no time, so there prompts in one POST overlap and connections hardly do."
    ),
    source="lab page, section 5 (requests overlapped), corrected by measurement",
    axis=Axis("requests at once", log=True),
    trials=_trials,
    finds_fewer_hits=True,
)
