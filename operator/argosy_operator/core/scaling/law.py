"""The protocol of a scaling law, and the laws that there are by name.

The operator runs `decide`. The simulator runs any of `LAWS`, so that the same load can be tried
with ours and with others.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from argosy_operator.core.scaling.decide import decide
from argosy_operator.core.scaling.decision import Decision
from argosy_operator.core.scaling.goals import Goals
from argosy_operator.core.scaling.observe import Observations
from argosy_operator.core.scaling.rivals.table import RIVALS
from argosy_operator.core.scaling.state import ScalingState

State = TypeVar("State")


class Law(Protocol[State]):
    """Decides how many replicas each role has.

    Pure: equal arguments give equal answers, and arguments are not changed. Every target is within
    the `min` and `max` of its role. `State` is what the law remembers; `record` can write it.
    """

    @property
    def start(self) -> State:
        """The state before the first decision."""
        ...

    def decide(
        self, state: State, observations: Observations, goals: Goals, now: float
    ) -> tuple[State, Decision]:
        """The state after this decision, and the decision. `now`: seconds, the metrics' clock."""
        ...


@dataclass(frozen=True, slots=True)
class Goodput:
    """Our law: the fewest replicas whose predicted share of requests within the SLO suffices."""

    start: ScalingState = field(default_factory=ScalingState)

    def decide(
        self, state: ScalingState, observations: Observations, goals: Goals, now: float
    ) -> tuple[ScalingState, Decision]:
        return decide(state, observations, goals, now)


LAWS: Mapping[str, Law[Any]] = {"goodput": Goodput(), **RIVALS}
