"""Step: each role runs on the GPU type that is cheapest, or on one that has room.

A choice is written to the ServingRoles. The next round renders pods of that type, which is another
revision: they start beside the old pods, and these go when the new ones serve. So a choice that
finds no room costs nothing but time, and the way back is the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

from argosy_operator.api.v1alpha1 import Role, RoleName
from argosy_operator.core.fleet import names
from argosy_operator.core.fleet.actions import AnnotateRole, key_of
from argosy_operator.core.fleet.events import Event, EventReason
from argosy_operator.core.fleet.pods import Pod
from argosy_operator.core.fleet.snapshot import Snapshot
from argosy_operator.core.gpu_types.noted import Noted, noted
from argosy_operator.core.reconcile.draft import Draft
from argosy_operator.core.reconcile.steps import StepReason
from argosy_operator.core.reconcile.targets.spec import by_law
from argosy_operator.core.scaling.prices import Types, cheapest


@dataclass(frozen=True, slots=True)
class Typed:
    """The roles of a fleet with gpuTypes; of a role without, the name of its type is ""."""

    roles: Mapping[RoleName, Role]
    notes: Mapping[RoleName, Noted]

    @property
    def current(self) -> Types:
        return tuple(role.gpu_type.name if role.gpu_type else "" for role in self.roles.values())

    def shut(self, now: float) -> frozenset[Types]:
        """All choices with a type that has no room."""
        without = {name: note.shut(now) for name, note in self.notes.items()}
        lists = [[kind.name for kind in role.gpu_types] or [""] for role in self.roles.values()]
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

    open_ = sorted((kind.name for kind in others if kind.name not in shut), key=cost)
    if not open_:
        message = f"{role} stays on {own.name}: none of its gpuTypes has room"
        return draft.step(StepReason.NO_GPU_TYPE_HAS_ROOM, message)
    new = Noted(open_[0], snapshot.now, note.left(own.name, snapshot.now))
    why = (
        f"{role} goes on with GPU type {new.name}: pod {waiting.name} found no node with "
        f"{own.name} for {snapshot.now - waiting.created_at:.0f} s: {waiting.unschedulable}"
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
