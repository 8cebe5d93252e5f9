"""The budgets that fleets share, and what is left of them while GPUs are given out."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Literal

from argosy_operator.core.budgets.bid import Fleet

Whose = Literal["operator", "namespace"]
"""Which of the shared budgets a fleet lacks room in."""


@dataclass(frozen=True, slots=True)
class Budgets:
    """GPUs that fleets may hold together."""

    fleets: int | None = None
    """All fleets; None: no limit."""
    namespaces: Mapping[str, int] = field(default_factory=dict)
    """Those of a namespace; a namespace that is not named has no limit of its own."""

    def cover(self, fleet: Fleet) -> bool:
        """Whether any of them limits this fleet."""
        return self.fleets is not None or fleet[0] in self.namespaces


class Room:
    """What is left; below 0 where minimums exceed a budget."""

    def __init__(self, budgets: Budgets) -> None:
        self._fleets = inf if budgets.fleets is None else float(budgets.fleets)
        self._namespaces = {name: float(gpus) for name, gpus in budgets.namespaces.items()}

    def left(self, fleet: Fleet) -> float:
        """GPUs that the fleet could be given."""
        return min(self._fleets, self._namespaces.get(fleet[0], inf))

    def take(self, fleet: Fleet, gpus: int) -> None:
        self._fleets -= gpus
        if fleet[0] in self._namespaces:
            self._namespaces[fleet[0]] -= gpus

    def short(self, fleet: Fleet, gpus: int) -> Whose:
        """Whose budget has no room for so many GPUs of the fleet. The namespace's if both have
        none: in that of all fleets a larger gain finds room."""
        return "namespace" if self._namespaces.get(fleet[0], inf) < gpus else "operator"
