"""Step: each role runs on the cheapest GPU type of the spec that has room.

Choices are annotations of ServingRoles: there they stay, and `shell.gather` renders the fleet
`as_chosen`. Users may edit ServingRoles, so nothing there is trusted: a type that the spec does not
list, or a time that cannot be read, counts as absent.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product

from argosy_law.prices import DAY_S, Types, cheapest
from argosy_operator.api.v1alpha1 import Role, RoleName, ServingDeployment, ServingDeploymentSpec
from argosy_operator.core.snapshot import names
from argosy_operator.core.snapshot.actions import AnnotateRole, Event, EventReason, key_of
from argosy_operator.core.snapshot.objects import ChildKey, Object, rfc3339, seconds
from argosy_operator.core.snapshot.pods import Pod
from argosy_operator.core.snapshot.snapshot import Snapshot
from argosy_operator.core.steps.draft import Draft, StepReason
from argosy_operator.core.steps.goals import by_law


@dataclass(frozen=True, slots=True)
class Noted:
    """What is noted about one role. Times are seconds since the epoch."""

    name: str = ""
    """The type that was chosen; "": none was, so that the role is on the first of its list."""
    at: float | None = None
    """When it was chosen."""
    full: Mapping[str, float] = field(default_factory=dict)
    """When the role left a type on which its pods found no node, by name of the type."""

    def shut(self, now: float) -> frozenset[str]:
        """Types without room, for a day. A time ahead of the clock does not count."""
        return frozenset(name for name, at in self.full.items() if 0 <= now - at < DAY_S)

    def left(self, name: str, now: float) -> Mapping[str, float]:
        """The types without room, with one more."""
        still = self.shut(now)
        return {of: at for of, at in self.full.items() if of in still} | {name: now}

    def annotations(self) -> dict[str, str]:
        """How it is written."""
        full = ",".join(f"{name}={rfc3339(at)}" for name, at in sorted(self.full.items()))
        return {
            names.GPU_TYPE: f"{self.name} {rfc3339(self.at or 0.0)}",
            names.GPU_TYPES_FULL: full,
        }


def noted(serving_role: Object | None, role: Role) -> Noted:
    """What the ServingRole says, as far as the spec lists it."""
    listed = role.gpu_types
    annotations = ((serving_role or {}).get("metadata") or {}).get("annotations") or {}
    name, _, time = annotations.get(names.GPU_TYPE, "").partition(" ")
    pairs = (part.partition("=") for part in annotations.get(names.GPU_TYPES_FULL, "").split(","))
    times = {of: seconds(at) for of, _, at in pairs if of in listed}
    full = {of: at for of, at in times.items() if at is not None}
    return Noted(name, seconds(time), full) if name in listed else Noted(full=full)


def as_chosen(fleet: ServingDeployment, children: Mapping[ChildKey, Object]) -> ServingDeployment:
    """The fleet as it runs: the chosen type is the first of each role's list, and its GPUs are
    those of the role. The fleet itself if no role has gpuTypes."""
    changed: dict[str, Role] = {}
    for name, role in fleet.spec.active_roles():
        if role.gpu_types:
            live = children.get(("ServingRole", names.serving_role(fleet.name, name)))
            changed[name] = _on(fleet.spec, role, noted(live, role).name)
    if not changed:
        return fleet
    roles = fleet.spec.roles.model_copy(update=changed)
    spec = fleet.spec.model_copy(update={"roles": roles})
    return fleet.model_copy(update={"spec": spec})


def _on(spec: ServingDeploymentSpec, role: Role, name: str) -> Role:
    types = sorted(role.gpu_types, key=lambda of: of != name)
    first = next(kind for kind in spec.gpu_types if kind.name == types[0])
    gpu = role.resources.gpu if first.gpu is None else first.gpu
    resources = role.resources.model_copy(update={"gpu": gpu})
    return role.model_copy(update={"gpu_types": tuple(types), "resources": resources})


@dataclass(frozen=True, slots=True)
class Typed:
    """The roles of a fleet with gpuTypes; of a role without, the name of its type is ""."""

    roles: Mapping[RoleName, Role]
    notes: Mapping[RoleName, Noted]

    @property
    def current(self) -> Types:
        return tuple(role.gpu_types[0] if role.gpu_types else "" for role in self.roles.values())

    def shut(self, now: float) -> frozenset[Types]:
        """All choices with a type that has no room."""
        without = {name: note.shut(now) for name, note in self.notes.items()}
        lists = [role.gpu_types or [""] for role in self.roles.values()]
        return frozenset(
            types
            for types in product(*lists)
            if any(of in without[name] for name, of in zip(self.roles, types, strict=True))
        )


def choose_gpu_types(snapshot: Snapshot, draft: Draft) -> Draft:
    """Leave a type that has no room; otherwise go to the cheapest, at most once a day."""
    spec = snapshot.fleet.spec
    roles = dict(spec.active_roles())
    if not any(role.gpu_types for role in roles.values()):
        return draft.step(StepReason.ANY_GPU, "no role has gpuTypes")
    live = snapshot.owned("ServingRole")
    notes = {
        name: noted(live.get(names.serving_role(snapshot.fleet.name, name)), role)
        for name, role in roles.items()
    }
    typed = Typed(roles, notes)
    for name in roles:
        waiting = _waiting(snapshot, name)
        if waiting is None or len(roles[name].gpu_types) < 2:
            continue
        left_s = waiting.created_at + spec.autoscaling.gpu_type_fallback.seconds - snapshot.now
        if left_s <= 0:
            return _leave(snapshot, draft, typed, name, waiting)
        draft = draft.within(left_s)
    return _cheapest(snapshot, draft, typed)


def _waiting(snapshot: Snapshot, role: RoleName) -> Pod | None:
    """The oldest pod of the role's type that finds no node."""
    pods = (p for p in snapshot.current(role) if p.alive and p.unschedulable is not None)
    return min(pods, key=lambda pod: (pod.created_at, pod.name), default=None)


def _leave(snapshot: Snapshot, draft: Draft, typed: Typed, role: RoleName, waiting: Pod) -> Draft:
    """To the cheapest type with room that was not found full within a day."""
    note, (own, *others) = typed.notes[role], typed.roles[role].gpu_types
    shut = note.shut(snapshot.now)
    usual = draft.memory.prices.usual
    at = list(typed.roles).index(role)

    def cost(name: str) -> float:
        types = (*typed.current[:at], name, *typed.current[at + 1 :])
        return usual.get(types, float("inf"))

    open_ = sorted((name for name in others if name not in shut), key=cost)
    if not open_:
        message = f"{role} stays on {own}: none of its gpuTypes has room"
        return draft.step(StepReason.NO_GPU_TYPE_HAS_ROOM, message)
    new = Noted(open_[0], snapshot.now, note.left(own, snapshot.now))
    why = (
        f"{role} goes on with GPU type {new.name}: pod {waiting.name} found no node with "
        f"{own} for {snapshot.now - waiting.created_at:.0f} s: {waiting.unschedulable}"
    )
    return _write(snapshot, draft, {role: new}, why, warning=True)


def _cheapest(snapshot: Snapshot, draft: Draft, typed: Typed) -> Draft:
    current, prices, now = typed.current, draft.memory.prices, snapshot.now
    spec, pairs = snapshot.fleet.spec, zip(typed.roles, current, strict=True)
    shown = ", ".join(f"{role} {name or 'any'}" for role, name in pairs)
    if draft.rolling or not by_law(spec) or spec.autoscaling.advisory:
        return draft.step(StepReason.GPU_TYPES_STAY, shown)
    times = [note.at for note in typed.notes.values() if note.at is not None]
    best = cheapest(prices, current, typed.shut(now), max(times, default=None), now)
    if best is None:
        return draft.step(StepReason.GPU_TYPES_STAY, shown)
    usual = prices.usual
    changed = {
        role: Noted(name, now, typed.notes[role].full)
        for role, name, old in zip(typed.roles, best, current, strict=True)
        if name != old
    }
    moves = ", ".join(f"{role} goes to GPU type {note.name}" for role, note in changed.items())
    why = f"{moves}: {usual[best]:.2f} instead of {usual[current]:.2f} per hour for the same SLO"
    return _write(snapshot, draft, changed, why)


def _write(
    snapshot: Snapshot,
    draft: Draft,
    changed: Mapping[RoleName, Noted],
    why: str,
    *,
    warning: bool = False,
) -> Draft:
    """Note the choices, where their ServingRoles exist. The next round follows at once."""
    live, keys = snapshot.owned("ServingRole"), set[str]()
    for role, note in changed.items():
        found = live.get(names.serving_role(snapshot.fleet.name, role))
        if found is None:
            return draft.step(StepReason.GPU_TYPES_STAY, f"{role} has no ServingRole yet")
        meta = found["metadata"]
        action = AnnotateRole(meta["name"], meta["uid"], note.annotations())
        draft, keys = draft.act(action), keys | {key_of(action)}
    event = Event(EventReason.GPU_TYPE, why, warning, frozenset(keys))
    return draft.event(event).within(0.0).step(StepReason.GPU_TYPES_CHANGE, why)
