"""Fleets that another version of the API stored: a second version of it, and rules that came later.

Each test changes the CRD of the real API server, and puts it back.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from local.demo.errors import CommandError
from local.demo.kube import condition
from tests.e2e.installed import complete
from tests.reconcile.conftest import FLEET, NAMES
from tests.reconcile.operators import World

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(300)]

CRD = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{NAMES[0]}"
RULES = "x-kubernetes-validations"
OLD, NEW = "v1alpha1", "v1alpha2"
TWO = {"colocated": {"replicas": {"min": 2}}}


def until(world: World, what: str, holds: Callable[[], Any], timeout_s: float = 40) -> Any:
    """As World.until. A CRD that has just changed answers 429 for a moment."""

    def calm() -> Any:
        try:
            return holds()
        except httpx.HTTPStatusError as error:
            if error.response.status_code not in (429, 503):
                raise
            return None

    return world.until(what, calm, timeout_s)


def merge(world: World, path: str, patch: dict[str, Any]) -> Any:
    """By HTTP, as everything while the second version is served: kubectl would keep on disk that
    there is one, and ask for it when it is gone."""
    kind = {"Content-Type": "application/merge-patch+json"}
    answer = world.kube.http.patch(path, headers=kind, json=patch, timeout=60)
    answer.raise_for_status()
    return answer.json()


@contextmanager
def crd(world: World) -> Iterator[Callable[..., None]]:
    """Gives a function that sets the CRD's versions; those of before are back after the block."""
    before = (world.kube.get(CRD) or {})["spec"]["versions"]

    def put(*versions: dict[str, Any]) -> None:
        merge(world, CRD, {"spec": {"versions": list(versions)}})

    def no_fleets() -> bool:
        """A version that objects may be stored in cannot be taken away."""
        fleets = path(world, OLD)
        world.kube.http.delete(fleets, timeout=60).raise_for_status()
        return (world.kube.get(fleets) or {})["items"] == []

    try:
        yield put
    finally:
        until(world, "no fleet is left", no_fleets)
        (only,) = before
        others = [v for v in world.kube.get(CRD)["spec"]["versions"] if v["name"] != OLD]
        put(only, *(other | {"storage": False} for other in others))
        merge(world, f"{CRD}/status", {"status": {"storedVersions": [OLD]}})
        put(only)


def version(world: World, change: Callable[[dict[str, Any]], None] | None = None) -> dict[str, Any]:
    """The CRD's version, with a change of its schema of `spec`."""
    (found,) = (v for v in world.kube.get(CRD)["spec"]["versions"] if v["name"] == OLD)
    changed = copy.deepcopy(found)
    if change is not None:
        change(changed["schema"]["openAPIV3Schema"]["properties"]["spec"])
    return changed


def path(world: World, of: str, name: str = "") -> str:
    group = f"/apis/serving.argosy.dev/{of}/namespaces/{world.namespace}/servingdeployments"
    return f"{group}/{name}" if name else group


def refusal(world: World, **spec: Any) -> str:
    """What the API server says of a new fleet that is `FLEET` but for this; "" if it takes it."""
    obj = FLEET | {"metadata": {"name": "next"}, "spec": {**FLEET["spec"], **spec}}
    answer = world.kube.http.post(path(world, OLD), json=obj, params={"dryRun": "All"})
    return answer.text if answer.status_code == 422 else ""


def serving(world: World) -> int:
    return int((world.fleet()["status"]["roles"]["colocated"])["ready"])


def looser(spec: dict[str, Any]) -> None:
    """Before there were rules between fields."""
    del spec[RULES]


BROKEN = {"drain": {"timeout": "30s"}}
SAYS = "raise drain.timeout"


def test_a_fleet_whose_spec_the_operator_cannot_read_goes_on_serving(running: World) -> None:
    """A later operator has the rule, too. It changes nothing, says so, and Ready stays true."""
    with crd(running) as put:
        now = version(running)
        put(version(running, looser))

        def stored() -> bool:
            kind = {"Content-Type": "application/merge-patch+json"}
            chat = path(running, OLD, "chat")
            return running.kube.http.patch(chat, headers=kind, json={"spec": BROKEN}).is_success

        until(running, "a spec of before the rule is stored", stored)
        put(now)
        until(running, "the rule is back", lambda: SAYS in refusal(running, **BROKEN))
        until(running, "status says so", lambda: stalled(running) == "InvalidSpec")
        assert SAYS in running.condition("Stalled")["message"]
        assert running.condition("RolledOut")["status"] == "False"
        ready = running.condition("Ready")
        assert (ready["status"], ready["reason"]) == ("True", "InvalidSpec")
        assert running.fleet()["status"]["columns"]["reason"] == "InvalidSpec"
        assert complete(running.url(), "chat").status_code == 200

        running.kubectl("annotate", "sd", "chat", "example.com/team=red")
        with pytest.raises(CommandError, match=SAYS):
            running.patch(progressDeadline="5m")

        running.kubectl("scale", "deployment/chat-gateway", "--replicas=0")
        until(
            running, "Ready follows the pods", lambda: ready_is(running, "False", "GatewayNotReady")
        )
        running.kubectl("scale", "deployment/chat-gateway", "--replicas=1")
        until(running, "and again", lambda: ready_is(running, "True", "InvalidSpec"), 40)

        running.patch(drain={"timeout": "90s"}, roles=TWO)
        until(running, "the operator goes on", lambda: serving(running) == 2, 40)
        assert running.condition("Stalled")["status"] == "False"
        assert ready_is(running, "True", "AsSpecified")


def stalled(world: World) -> str:
    found = condition(world.fleet(), "Stalled")
    return str(found["reason"]) if found.get("status") == "True" else ""


def ready_is(world: World, status: str, reason: str) -> bool:
    found = world.condition("Ready")
    return (found["status"], found["reason"]) == (status, reason)
