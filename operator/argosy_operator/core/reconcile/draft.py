"""The plan while it is being made: what the steps of the chain hand on to each other."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from argosy_operator.api.v1alpha1 import RoleName
from argosy_operator.core.fleet.actions import Action
from argosy_operator.core.fleet.events import Event
from argosy_operator.core.fleet.memory import LoopMemory
from argosy_operator.core.fleet.objects import ChildKey
from argosy_operator.core.fleet.pods import Pod
from argosy_operator.core.reconcile.steps import Step, StepReason
from argosy_operator.core.scaling.decision import Decision

LOOK_AGAIN_S = 300.0
"""How long a fleet rests if no step asks for less. Watches report changes much sooner; this catches
what a watch missed."""


@dataclass(frozen=True, slots=True)
class Draft:
    """Every step returns a new one: with its actions and events, and with a `Step`."""

    memory: LoopMemory
    """What the next round will know."""
    actions: tuple[Action, ...] = ()
    """In the order in which they are carried out."""
    events: tuple[Event, ...] = ()
    steps: tuple[Step, ...] = ()
    """What each step reported, in the order of the chain."""
    running: str = ""
    """Name of the step that runs now."""
    final: bool = False
    """The remaining steps of the chain have nothing to do."""
    wake_s: float = LOOK_AGAIN_S
    """The next round comes after so many seconds at the latest."""
    foreign: tuple[ChildKey, ...] = ()
    """Objects of other owners that have the name of a child."""
    model: Mapping[str, object] | None = None
    """The model that was fetched, as status writes it, if this round found it out."""
    targets: Mapping[RoleName, int] = field(default_factory=dict)
    """Wanted pods per role."""
    decision: Decision | None = None
    """What the scaling law decided in this round; None if it did not run, or changed nothing
    between two runs."""
    record: Mapping[str, object] | None = None
    """The inputs of that decision, from which it can be repeated. None if replicas stay."""
    scaled: bool = False
    """The decision changes replicas."""
    figures_due: bool = False
    """Status may update what users got, even if only the numbers changed."""
    rolling: bool = False
    """Deployments of old revisions exist beside the current one."""
    settled: frozenset[RoleName] = frozenset()
    """Roles whose Deployments stay as they are in this round, because a pod goes from one to the
    other."""
    held: Mapping[RoleName, int] = field(default_factory=dict)
    """What a role's Deployment gets instead of its target, because a pod is to be flipped to it."""
    leaving: tuple[Pod, ...] = ()
    """Pods that were chosen for removal, now or earlier."""

    def act(self, *actions: Action) -> "Draft":
        return replace(self, actions=self.actions + actions)

    def event(self, *events: Event) -> "Draft":
        return replace(self, events=self.events + events)

    def within(self, wake_s: float) -> "Draft":
        return replace(self, wake_s=min(self.wake_s, wake_s))

    def step(self, reason: StepReason, message: str) -> "Draft":
        """Report the step that runs now. Every step calls it once, when it returns."""
        return replace(self, steps=(*self.steps, Step(self.running, reason, message)))
