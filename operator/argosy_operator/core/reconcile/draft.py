"""The plan while it is being made: what the steps hand on to each other."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from argosy_operator.api.v1alpha1 import RoleName
from argosy_operator.core.fleet.actions import Action
from argosy_operator.core.fleet.events import Event
from argosy_operator.core.fleet.memory import LoopMemory
from argosy_operator.core.fleet.pods import Pod
from argosy_operator.core.scaling.decision import Decision

LOOK_AGAIN_S = 300.0


@dataclass(frozen=True, slots=True)
class Draft:
    """`foreign`: (kind, name) of objects that hold one of our names. `targets`: wanted pods per
    role. `decision`, `record`: what the scaling law said in this round and its inputs. `rolling`:
    old pods still serve beside new ones. `leaving`: chosen victims. `trace`: what each step said.
    `final`: the remaining steps have nothing to do. `wake_s`: look again at the latest in."""

    memory: LoopMemory
    actions: tuple[Action, ...] = ()
    events: tuple[Event, ...] = ()
    foreign: tuple[tuple[str, str], ...] = ()
    targets: Mapping[RoleName, int] = field(default_factory=dict)
    decision: Decision | None = None
    record: Mapping[str, object] | None = None
    scaled: bool = False
    figures_due: bool = False
    """Status may update what users got, though only the numbers moved."""
    rolling: bool = False
    leaving: tuple[Pod, ...] = ()
    trace: tuple[tuple[str, str], ...] = ()
    final: bool = False
    wake_s: float = LOOK_AGAIN_S

    def act(self, *actions: Action) -> "Draft":
        return replace(self, actions=self.actions + actions)

    def event(self, *events: Event) -> "Draft":
        return replace(self, events=self.events + events)

    def within(self, wake_s: float) -> "Draft":
        return replace(self, wake_s=min(self.wake_s, wake_s))
