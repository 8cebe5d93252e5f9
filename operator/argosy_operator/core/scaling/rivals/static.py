"""The law that does not scale: replicas stay at `replicas.min`, as with `policy: None`."""

from dataclasses import dataclass, replace

from argosy_operator.core.scaling import explain
from argosy_operator.core.scaling.decision import Decision
from argosy_operator.core.scaling.goals import Goals
from argosy_operator.core.scaling.observe import Observations


@dataclass(frozen=True, slots=True)
class Static:
    """Keeps the declared replicas. Implements `law.Law`."""

    start: None = None
    """It remembers nothing."""

    def decide(
        self, state: None, observations: Observations, goals: Goals, now: float
    ) -> tuple[None, Decision]:
        return state, explain.at_minimum(observations, replace(goals, policy="None"), now)
