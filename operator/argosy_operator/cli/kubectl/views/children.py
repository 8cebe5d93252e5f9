"""The objects that a new fleet gets: the operator's own first plan, with nothing in the cluster."""

from collections.abc import Mapping, Sequence
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


def unprinted(value: Mapping[str, Any], made: Sequence[Object]) -> str | None:
    """Why the engines of the manifest are not among its objects; None if they are."""
    if all(obj["kind"] != "Job" for obj in made):
        return None
    name, uri = value["metadata"]["name"], value["spec"]["model"]["uri"]
    return (
        f"{name}: its engine Deployments are not printed. The operator makes them once the Job has "
        f"fetched {uri}, because the commit that it finds is part of their revision"
    )


def _without_owner(obj: Object) -> Object:
    kept = {key: part for key, part in obj["metadata"].items() if key != "ownerReferences"}
    return {**obj, "metadata": kept}
