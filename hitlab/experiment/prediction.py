"""What the closed form says of a whole experiment: its headline number, its phases, and what the rest is lost to."""

from dataclasses import dataclass

from hitlab.experiment.closed_form import UnbrokenPrediction, check_shape, phase_tally, predict_unbroken, total
from hitlab.experiment.plan import Experiment, plan
from hitlab.experiment.shape import Phase, scored
from hitlab.tokens import Tally


@dataclass(frozen=True, slots=True)
class PhasePrediction:
    """One phase, and the tokens that it should look up and hit."""

    phase: Phase
    tally: Tally

    @property
    def name(self) -> str:
        """As results call the phase."""
        return self.phase.name

    @property
    def requests(self) -> int:
        """Requests of the phase."""
        return self.phase.requests

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens of all its requests."""
        return self.tally.queried_tokens

    @property
    def hit_tokens(self) -> int:
        """Prompt tokens that should be found in the cache."""
        return self.tally.hit_tokens

    @property
    def hit_rate(self) -> float | None:
        """Hit tokens over prompt tokens, 0 to 1; None of a phase of no tokens."""
        return self.tally.hit_rate


@dataclass(frozen=True, slots=True)
class Prediction:
    """A whole experiment by the closed form, as if nothing were ever evicted.

    The numbers are those of the phases that make the headline, `scored`: the broken pass, or all requests where
    nothing is broken.
    """

    experiment: Experiment  # as its workload can send it
    block_tokens: int
    ranks: int
    phases: tuple[PhasePrediction, ...]
    unbroken: UnbrokenPrediction  # the same prompts without a break, and what they lose of P/(P+S)

    @property
    def scored(self) -> tuple[str, ...]:
        """Names of the phases that make the headline number."""
        return tuple(phase.name for phase in scored(each.phase for each in self.phases))

    @property
    def tally(self) -> Tally:
        """Tokens looked up and found in the scored phases."""
        return total(each.tally for each in self.phases if each.name in self.scored)

    @property
    def hit_tokens(self) -> int:
        """Prompt tokens that should be found in the cache."""
        return self.tally.hit_tokens

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens of all scored requests."""
        return self.tally.queried_tokens

    @property
    def hit_rate(self) -> float | None:
        """Hit tokens over prompt tokens, 0 to 1; None of no tokens."""
        return self.tally.hit_rate

    @property
    def one_prefix(self) -> bool:
        """Whether all prompts of a group share one prefix, whose losses `unbroken` tells; not so in a conversation."""
        return all(each.phase.prompt_tokens is None for each in self.phases)


def predict(experiment: Experiment, block_tokens: int, ranks: int = 1) -> Prediction:
    """The closed form of an experiment on a server with blocks of so many tokens and so many data-parallel ranks.

    >>> from hitlab.experiment.shape import SharedPrefix
    >>> predict(Experiment(SharedPrefix(64, 1000, 200)), block_tokens=16).hit_tokens
    62496

    Raises UsageError where the numbers describe no workload, or one that can't be broken or sent in this way.
    """
    check_shape(experiment.shape, block_tokens, ranks)
    planned = plan(experiment, ranks)
    shape = planned.experiment.shape
    phases = tuple(PhasePrediction(phase, phase_tally(phase, shape, block_tokens, ranks)) for phase in planned.phases)
    unbroken = predict_unbroken(shape, block_tokens, ranks)
    return Prediction(planned.experiment, block_tokens, ranks, phases, unbroken)
