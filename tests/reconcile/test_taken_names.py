"""Objects of others under the names of a fleet's children, made before the fleet: left as they are,
named in status, and once they are gone the fleet goes on by itself."""

import json
import re
from typing import Any

import pytest
import yaml

from local.demo.kube import condition
from tests.reconcile.conftest import FLEET
from tests.reconcile.operators import World

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(300)]

LABEL = "serving.argosy.dev/fleet"
LABELS = {"app": "stranger"}
POD = {"metadata": {"labels": LABELS}, "spec": {"containers": [{"name": "main", "image": "x:1"}]}}
JOB = POD | {"spec": {**POD["spec"], "restartPolicy": "Never"}}
STORAGE = {"resources": {"requests": {"storage": "1Gi"}}, "storageClassName": ""}
HUB = {"env": [{"name": "HF_ENDPOINT", "value": "http://127.0.0.1:1"}], "size": "1Gi"}
FETCHED = {"model": {"uri": "hf://org/tiny@main", "fetch": HUB}}
CHILDREN = (
    "deployments,services,serviceaccounts,roles,rolebindings,poddisruptionbudgets,configmaps,"
    "networkpolicies,servingroles,persistentvolumeclaims,jobs"
)

STRANGERS: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "service": ("v1", "Service", "", {"spec": {"ports": [{"port": 80}]}}),
    "deployment": (
        "apps/v1",
        "Deployment",
        "-gateway",
        {"spec": {"replicas": 0, "selector": {"matchLabels": LABELS}, "template": POD}},
    ),
    "account": ("v1", "ServiceAccount", "-gateway", {}),
    "settings": ("v1", "ConfigMap", "-gateway", {"data": {"mine": "yes"}}),
    "budget": (
        "policy/v1",
        "PodDisruptionBudget",
        "-gateway",
        {"spec": {"maxUnavailable": 1, "selector": {"matchLabels": LABELS}}},
    ),
    "claim": (
        "v1",
        "PersistentVolumeClaim",
        "-model",
        {"spec": {"accessModes": ["ReadWriteMany"], **STORAGE}},
    ),
    "job": ("batch/v1", "Job", "-fetch", {"spec": {"suspend": True, "template": JOB}}),
}
"""By the name of a fleet: what another owner made under the name of one of its children."""
FETCHING = ("claim", "job", "fetched")
"""Fleets whose model is fetched; the last one meets no stranger, nor does the fleet `free`."""


def stranger(fleet: str) -> dict[str, Any]:
    version, kind, suffix, more = STRANGERS[fleet]
    return {"apiVersion": version, "kind": kind, "metadata": {"name": fleet + suffix}, **more}


SERVING = ("service", "account", "settings")
"""Fleets whose gateway serves at the end. Those of the others find no node, which is quicker."""


def parked(name: str) -> dict[str, Any]:
    """Without engine pods, which would only make the test slower."""
    none = {"roles": {"colocated": {"replicas": {"min": 0, "max": 0}, "resources": {"gpu": 0}}}}
    nowhere = (
        {}
        if name in SERVING
        else {"template": {"spec": {"nodeSelector": {"example.com/node": "none"}}}}
    )
    spec = {**FLEET["spec"], **none, **nowhere, **(FETCHED if name in FETCHING else {})}
    return FLEET | {"metadata": {"name": name}, "spec": spec}


def said(world: World, fleet: str, kind: str) -> dict[str, Any]:
    return condition(world.get("servingdeployments", fleet) or {"metadata": {}}, kind)


def live(world: World, fleet: str) -> dict[str, Any]:
    _, kind, suffix, _ = STRANGERS[fleet]
    found = world.kubectl("get", kind, fleet + suffix, "-o", "json", "--show-managed-fields")
    parsed: dict[str, Any] = json.loads(found)
    return parsed


def of_user(obj: dict[str, Any]) -> dict[str, Any]:
    """The object without what Kubernetes' own controllers write."""
    meta = {k: v for k, v in obj["metadata"].items() if k in ("uid", "labels", "ownerReferences")}
    writers = sorted({entry["manager"] for entry in obj["metadata"]["managedFields"]})
    assert "argosy" not in writers
    return meta | {key: obj.get(key) for key in ("spec", "data")}


def children(world: World) -> dict[str, set[tuple[str, str]]]:
    """By fleet: kind, and name without the fleet's and without a revision, of what it owns."""
    items = json.loads(world.kubectl("get", CHILDREN, "-l", LABEL, "-o", "json"))["items"]
    found: dict[str, set[tuple[str, str]]] = {}
    for meta, kind in ((item["metadata"], item["kind"]) for item in items):
        fleet = meta["labels"][LABEL]
        if [owner["name"] for owner in meta.get("ownerReferences", ())] == [fleet]:
            name = re.sub("-[0-9a-f]{8}$", "", meta["name"].removeprefix(fleet))
            found.setdefault(fleet, set()).add((kind, name))
    return found


def test_strangers_keep_their_objects_and_fleets_go_on_once_these_are_gone(world: World) -> None:
    world.kubectl("apply", "-f", "-", given=yaml.safe_dump_all(map(stranger, STRANGERS)))
    before = {fleet: of_user(live(world, fleet)) for fleet in STRANGERS}
    fleets = (*STRANGERS, "free", "fetched")
    world.kubectl("apply", "-f", "-", given=yaml.safe_dump_all(map(parked, fleets)))
    world.operator()

    for fleet, (_, kind, suffix, _) in STRANGERS.items():
        taken = lambda f=fleet: said(world, f, "NameConflict").get("status") == "True"  # noqa: E731
        world.until(f"{fleet}: the name is taken", taken, 60)
        for name in ("NameConflict", "Stalled"):
            message = said(world, fleet, name)["message"]
            assert f"{kind}/{fleet}{suffix} already exists with another owner" in message
            assert "Delete it, or create the fleet under another name" in message
        assert said(world, fleet, "RolledOut")["status"] == "False"

    # Nothing else is lost: all other children are there, but for the Job of a claim that is taken.
    for fleet in ("free", "fetched"):
        seen = lambda f=fleet: said(world, f, "NameConflict").get("status") == "False"  # noqa: E731
        world.until(f"{fleet}: has had a round", seen, 60)
    all_of = children(world)
    whole = {name: all_of["fetched" if name in FETCHING else "free"] for name in STRANGERS}
    assert ("Job", "-fetch") in whole["job"]
    assert len(whole["service"]) > 8
    for fleet, (_, kind, suffix, _) in STRANGERS.items():
        lacks = {(kind, suffix)} | ({("Job", "-fetch")} if fleet == "claim" else set())
        assert all_of[fleet] == whole[fleet] - lacks, fleet
        assert of_user(live(world, fleet)) == before[fleet]

    for fleet, (_, kind, suffix, _) in STRANGERS.items():
        world.kubectl("delete", kind, fleet + suffix, "--wait=false")
    again = lambda: {f: of for f, of in children(world).items() if f in whole} == whole  # noqa: E731
    world.until("all children are there", again, 90)
    for fleet in STRANGERS:
        free = lambda f=fleet: said(world, f, "NameConflict")["status"] == "False"  # noqa: E731
        world.until(f"{fleet}: status says so", free, 60)
    for fleet in SERVING:
        done = lambda f=fleet: said(world, f, "RolledOut")["status"] == "True"  # noqa: E731
        world.until(f"{fleet}: its gateway serves", done, 60)
