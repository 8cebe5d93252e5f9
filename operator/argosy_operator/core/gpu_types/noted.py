"""The GPU types that were chosen, as annotations of ServingRoles: there they stay.

`shell.gather` renders the fleet `as_chosen`; `step` reads and writes what is noted. Users may edit
ServingRoles, so nothing there is trusted: a type that the spec does not list, or a time that cannot
be read, counts as absent.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from argosy_operator.api.fields import Cost
from argosy_operator.api.v1alpha1 import Role, RoleName, ServingDeployment
from argosy_operator.core.fleet import names
from argosy_operator.core.fleet.objects import ChildKey, Object, rfc3339, seconds
from argosy_operator.core.scaling.prices import DAY_S


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
    listed = {kind.name for kind in role.gpu_types}
    annotations = ((serving_role or {}).get("metadata") or {}).get("annotations") or {}
    name, _, time = annotations.get(names.GPU_TYPE, "").partition(" ")
    pairs = (part.partition("=") for part in annotations.get(names.GPU_TYPES_FULL, "").split(","))
    times = {of: seconds(at) for of, _, at in pairs if of in listed}
    full = {of: at for of, at in times.items() if at is not None}
    return Noted(name, seconds(time), full) if name in listed else Noted(full=full)


def as_chosen(fleet: ServingDeployment, children: Mapping[ChildKey, Object]) -> ServingDeployment:
    """The fleet as it runs: the chosen type is the first of each role's list, and its cost and GPUs
    are those of the role. The fleet itself if no role has gpuTypes."""
    changed: dict[RoleName, Role] = {}
    for name, role in fleet.spec.active_roles():
        if role.gpu_types:
            live = children.get(("ServingRole", names.serving_role(fleet.name, name)))
            changed[name] = _on(role, noted(live, role).name)
    if not changed:
        return fleet
    roles = fleet.spec.roles.model_copy(update={str(name): role for name, role in changed.items()})
    spec = fleet.spec.model_copy(update={"roles": roles})
    return fleet.model_copy(update={"spec": spec})


def _on(role: Role, name: str) -> Role:
    types = sorted(role.gpu_types, key=lambda kind: kind.name != name)
    first = types[0]
    gpu = role.resources.gpu if first.gpu is None else first.gpu
    return role.model_copy(
        update={
            "gpu_types": tuple(types),
            "gpu_cost_per_hour": Cost(first.cost_per_hour),
            "resources": role.resources.model_copy(update={"gpu": gpu}),
        }
    )
