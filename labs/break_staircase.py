"""Where in the prefix a changed token stands, and what it costs."""

from hitlab.experiment.lab import Axis, Lab, Reading, Server, Trial
from hitlab.experiment.plan import Experiment
from hitlab.experiment.shape import BreakOptions, SharedPrefix

_SHAPE = SharedPrefix(64, 1000, 200)
_EXERCISE = (0, 16, 32, 400, 992, 999)


def _trial(index: int, dense: bool = False) -> Trial:
    remark = "exercise 3" if index in _EXERCISE else ""
    return Trial(
        Experiment(_SHAPE, "token", BreakOptions(at=index)), (Reading(index, ("break",), remark=remark),), dense
    )


def _trials(server: Server) -> list[Trial]:
    """The exercise's six, then the first steps closely, and one step in the middle."""
    span = server.step_tokens
    close = {step * span + off for step in range(5) for off in (0, span // 2, span - 1)}
    middle = {500 // span * span + off for off in (-1, 0)}
    indices = sorted(index for index in {*_EXERCISE, *close, *middle} if 0 <= index < _SHAPE.prefix_tokens)
    return [_trial(index, dense=index not in _EXERCISE) for index in indices]


def _line(server: Server) -> list[Trial]:
    return [_trial(index) for index in range(_SHAPE.prefix_tokens)]


LAB = Lab(
    title="Break one token: a staircase or a line",
    question="Each request has one token of the shared prefix changed, at index i. How much still hits?",
    predict=(
        "Work out the hit rate of a pass from an empty cache with the token at 0, 16, 32, 400, 992 and 999 changed: "
        "63 requests of 64 find B*floor(i/B) tokens each. Draw the curve for vLLM at B=16, for SGLang at page 1 and "
        "again at page 16. Could you tell whose curve is whose?"
    ),
    picture=(
        "At B=16 a staircase with a step at every block boundary, for block keys are chained and a changed token "
        "takes its block and all that follow. At page 1 a straight line. At page 16 SGLang draws vLLM's staircase: "
        "the difference was the unit, not the algorithm. 0 at index 0, 32.8125 % at 400 in all three."
    ),
    source="lab page, sections 4.1 and 6 (exercise 3)",
    axis=Axis("index of the changed token"),
    trials=_trials,
    line=_line,
    closer=lambda server: (0, 4.5 * server.step_tokens),
    block_tokens=(None, 16),
)
