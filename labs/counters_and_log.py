"""What a reset does to counters, and why only a difference of two scrapes is a measurement."""

from hitlab.experiment.lab import Axis, Lab, Reading, Server, Trial
from hitlab.experiment.plan import Experiment
from hitlab.experiment.shape import BreakOptions, SharedPrefix

_SHAPE = SharedPrefix(64, 1000, 200)
_PASS = ("cold", "warm")
_SINCE_START = {
    "a pass": _PASS,
    "reset, then\na broken pass": (*_PASS, "break"),
    "the broken\npass again": (*_PASS, "break", "repeat"),
}
_ALONE = dict(zip(_SINCE_START, (_PASS, ("break",), ("repeat",)), strict=True))


def _trials(server: Server) -> list[Trial]:
    readings = [
        Reading(name, phases, series)
        for series, passes in (("differences of scrapes", _ALONE), ("counters as they stand", _SINCE_START))
        for name, phases in passes.items()
    ]
    return [Trial(Experiment(_SHAPE, "token", BreakOptions(at=400)), tuple(readings))]


LAB = Lab(
    title="Counters and log over a reset",
    question="A pass, a reset, then two passes with token 400 broken. What do counters say, divided and differenced?",
    predict=(
        "Does the reset set the counters back to zero? And the rate in the engine's log? Write down, for each pass, "
        "the hit rate by the difference of two scrapes and by dividing the counters as they stand."
    ),
    picture=(
        "Differences show each pass as it is: 81.375 % (82.0312 % at page 1), then 32.8125 %, then 33.3333 %. The "
        "counters as they stand never fell at the reset, so their ratio drags the first pass along and shows a "
        "collapse as a slow decline. vLLM's logged rate restarts with the reset, but is a window over 1,000 requests; "
        "SGLang's log counts the tokens of every batch. Add --log FILE to read the log beside the counters."
    ),
    source="lab page, sections 2 and 6 (exercise 5)",
    axis=Axis("pass"),
    trials=_trials,
)
