"""Pods that carry our labels and are not ours; pods whose numbers cannot be read."""

from typing import Any

import pytest

from argosy_operator.core.plan import plan
from argosy_operator.core.snapshot.objects import quantity
from argosy_operator.core.snapshot.pods import pod_of
from argosy_operator.core.snapshot.snapshot import Clock, LoopMemory, Snapshot
from argosy_operator.core.status.compose import status_of
from argosy_operator.shell.gather import Sources, gather
from tests.support.model import IMAGES, Model, fleet

REVISION = Model(fleet()).snapshot().revision
NAME = f"chat-colocated-{REVISION}"


def labels(role: str = "colocated") -> dict[str, str]:
    return {
        "serving.argosy.dev/fleet": "chat",
        "serving.argosy.dev/role": role,
        "serving.argosy.dev/revision": REVISION,
    }


def thing(kind: str, name: str, *owner: str, **more: Any) -> dict[str, Any]:
    """An object whose controller is the one of this kind and with this uid."""
    refs = [{"kind": owner[0], "uid": owner[1], "name": "x", "controller": True}] if owner else []
    meta = {"name": name, "uid": f"uid-{name}", "labels": labels(), "ownerReferences": refs}
    return {"kind": kind, "metadata": meta, **more}


def pod(name: str, *owner: str, gpus: str | None = None) -> dict[str, Any]:
    limits = {"nvidia.com/gpu": gpus} if gpus else {}
    spec = {"nodeName": "n", "containers": [{"name": "engine", "resources": {"limits": limits}}]}
    ready = [{"type": "Ready", "status": "True"}]
    status = {"phase": "Running", "podIP": "10.0.0.9", "conditions": ready}
    return thing("Pod", name, *owner, spec=spec, status=status)


class Namespace:
    """Lists what it was given."""

    def __init__(self, *objects: dict[str, Any]) -> None:
        self.objects = objects

    async def list(self, kind: str, namespace: str | None, selector: str = "") -> Any:
        return [obj for obj in self.objects if obj["kind"] == kind]

    async def get(self, kind: str, namespace: str, name: str) -> Any:
        return next((o for o in await self.list(kind, None) if o["metadata"]["name"] == name), None)


async def seen(*others: dict[str, Any]) -> Snapshot:
    """A fleet of one Deployment with one ReplicaSet, and these objects."""
    spec = {"replicas": 1}
    deployment = thing("Deployment", NAME, "ServingDeployment", "fleet-1", spec=spec)
    deployment["metadata"]["resourceVersion"] = "1"
    foreign = thing("Deployment", "other", "ServingDeployment", "fleet-2", spec=spec)
    sets = (
        thing("ReplicaSet", f"{NAME}-7c9", "Deployment", f"uid-{NAME}"),
        thing("ReplicaSet", "other-7c9", "Deployment", "uid-other"),
        thing("ReplicaSet", "bare"),
    )
    namespace = Namespace(deployment, foreign, *sets, *others)
    sources = Sources(namespace, None, None, IMAGES)  # type: ignore[arg-type]
    return await gather(sources, fleet(), LoopMemory(), Clock(1e6, 50.0))


OURS = pod("ours", "ReplicaSet", f"uid-{NAME}-7c9", gpus="2")


@pytest.mark.parametrize(
    "stranger",
    [
        pod("bare"),
        pod("of-another-fleet", "ReplicaSet", "uid-other-7c9"),
        pod("of-a-bare-set", "ReplicaSet", "uid-bare"),
        pod("of-a-set-that-is-not-there", "ReplicaSet", "uid-gone"),
        pod("of-a-job", "Job", f"uid-{NAME}-7c9"),
        pod("with-a-thousand", gpus="1k"),
    ],
    ids=lambda pod: pod["metadata"]["name"],
)
async def test_only_pods_of_our_deployments_are_counted_and_marked(stranger: Any) -> None:
    s = await seen(OURS, stranger)
    assert [pod.name for pod in s.pods] == ["ours"]
    p = plan(s)
    assert status_of(s, p.draft, ()).columns.prefill == "1/1"


def of_gateway(kind: str, owner: str, created: str, **more: Any) -> dict[str, Any]:
    obj = thing(kind, "chat-gateway", "ServingDeployment", owner, **more)
    obj["metadata"]["creationTimestamp"] = created
    return obj


DEPLOYMENT = ("Deployment", "chat-gateway")
OLD, NEW = "2026-01-02T03:00:00Z", "2026-01-02T04:00:00Z"


@pytest.mark.parametrize(
    ("account", "deployment", "named"),
    [
        ("fleet-1", "fleet-1", "uid-chat-gateway"),
        ("fleet-1", "of-another", None),
        ("of-another", "fleet-1", None),
        ("of-another", "of-another", None),
    ],
)
async def test_the_gateways_pods_name_no_account_on_account_of_a_strangers_object(
    account: str, deployment: str, named: str | None
) -> None:
    """A stranger's Deployment under the gateway's name is not read: its spec may hold anything."""
    template = {"template": {"metadata": {}}} if deployment == "fleet-1" else {}
    s = await seen(
        of_gateway("ServiceAccount", account, NEW),
        of_gateway("Deployment", deployment, OLD, spec=template),
    )
    wanted = next(o for o in s.wanted if (o["kind"], o["metadata"]["name"]) == DEPLOYMENT)
    annotations = wanted["spec"]["template"]["metadata"]["annotations"]
    assert annotations.get("serving.argosy.dev/account") == named


async def test_a_strangers_deployment_sets_no_drain_timeout_of_an_engine() -> None:
    """Under our name, it carries the annotation from which ours would keep its own."""
    stranger = thing("Deployment", NAME, "ServingDeployment", "of-another", spec={})
    stranger["metadata"]["annotations"] = {"serving.argosy.dev/drain-timeout-s": "7"}
    ours, its = (await seen()).engines["colocated"], (await seen(stranger)).engines["colocated"]
    drain = "serving.argosy.dev/drain-timeout-s"
    assert its["metadata"]["annotations"][drain] == ours["metadata"]["annotations"][drain]
    grace = [d["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] for d in (ours, its)]
    assert grace[0] == grace[1]


async def test_a_number_that_cannot_be_read_is_a_condition_and_ends_no_round() -> None:
    s = await seen(pod("ours", "ReplicaSet", f"uid-{NAME}-7c9", gpus="many"))
    status = status_of(s, plan(s).draft, ())
    said = next(c for c in status.conditions if c.type == "CapacityLimited")
    assert (said.status, said.reason) == ("Unknown", "UnreadableNumber")
    assert "nvidia.com/gpu: many" in said.message
    assert "pod ours" in said.message


@pytest.mark.parametrize("cost", ["\N{SUPERSCRIPT TWO}", "-", "1e3", "--1", "9" * 40, ""])
@pytest.mark.parametrize(
    "began", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "\N{SUPERSCRIPT TWO}"]
)
def test_what_people_write_on_a_pod_ends_no_round(cost: str, began: str) -> None:
    raw = pod("ours")
    raw["metadata"]["annotations"] = {
        "controller.kubernetes.io/pod-deletion-cost": cost,
        "serving.argosy.dev/drain": began,
    }
    read = pod_of(raw)
    assert read.cost == 0
    assert read.draining
    assert read.drain_at is None


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1", 1), ("1k", 1000), ("1e3", 1000), ("2E3", 2000), ("1.5Ki", 1536), ("100m", 0.1),
        ("1E", 1e18), ("0.5", 0.5), ("+3", 3), (".5", 0.5), ("5.", 5), (7, 7), ("1u", 1e-6),
        ("", None), ("many", None), ("\N{SUPERSCRIPT TWO}", None), ("1kk", None), ("1 k", None),
        ("1e", None), ("1e9999999", None), (None, None), (True, None), ("NaN", None),
    ],
)  # fmt: skip
def test_quantities_are_read_as_kubernetes_writes_them(text: Any, number: float | None) -> None:
    read = quantity(text)
    assert read is None if number is None else float(read or 0) == pytest.approx(number)
