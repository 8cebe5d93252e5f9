"""The objects that a new fleet gets: the operator's own first plan, with nothing in the cluster."""

from collections.abc import Mapping
from typing import Any

from argosy_operator.api.v1alpha1 import ServingDeployment
from argosy_operator.core.fleet.actions import Apply, Create
from argosy_operator.core.fleet.memory import LoopMemory
from argosy_operator.core.fleet.objects import Object
from argosy_operator.core.fleet.snapshot import Clock
from argosy_operator.core.plan import plan
from argosy_operator.render.images import Images
from argosy_operator.shell.gather import Observed, compose


def children(value: Mapping[str, Any], images: Images, namespace: str) -> list[Object]:
    """The objects of one valid manifest, in the order in which the operator makes them.

    Owner references are left out, because the fleet has no uid yet. So is what needs the cluster's
    keys: the ConfigMap of who may call engines.
    """
    meta = {"namespace": namespace, **value["metadata"]}
    given = {key: part for key, part in value.items() if key != "status"}
    fleet = ServingDeployment.model_validate(given | {"metadata": meta})
    memory = LoopMemory(decide_at=float("inf"))
    snapshot = compose(fleet, images, Observed({}, (), {}), memory, Clock(0.0, 0.0))
    made = (a.obj for a in plan(snapshot).actions if isinstance(a, Apply | Create))
    return [_without_owner(obj) for obj in made]


def _without_owner(obj: Object) -> Object:
    kept = {key: part for key, part in obj["metadata"].items() if key != "ownerReferences"}
    return {**obj, "metadata": kept}
