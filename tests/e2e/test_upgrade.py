"""What replaces pods on purpose loses no request: revisions, gateways, `helm upgrade`."""

import pytest

from local.demo.kube import is_ready
from local.demo.places.place import helm_install
from tests.e2e.installed import FLEET, SYSTEM, traffic
from tests.e2e.restarts import patch

pytestmark = pytest.mark.cluster
ENGINES = ("prefill", "decode")


@pytest.fixture(scope="module")
def busy(argosy):
    """A split fleet with one pod a role and one gateway: no other pod can help out."""
    argosy.apply("busy", mode="disaggregated")
    argosy.until_ready("busy")
    yield "busy"
    argosy.kubectl("delete", "sd", "busy", "--wait=false")


@pytest.fixture
def unhurt(argosy, busy):
    """Traffic around the test; at its end no request is lost or refused."""
    with traffic(argosy.url(busy), busy, per_s=5, tokens=40) as outcomes:
        yield busy
    assert len(outcomes) > 10  # two seconds of traffic; replacing a gateway takes about three
    assert set(outcomes) == {"ok"}, outcomes


def uids(argosy, fleet, *roles):
    """Of the pods that stay."""
    return {pod["metadata"]["uid"] for role in roles for pod in argosy.pods(fleet, role)}


def all_uids(argosy, fleet):
    """With those of the pods that are being deleted and still answer."""
    path = f"/api/v1/namespaces/{argosy.namespace}/pods"
    found = argosy.kube.get(path, labelSelector=f"{FLEET}={fleet}")
    return {pod["metadata"]["uid"] for pod in found["items"]}


def engines_at_work(argosy, fleet):
    """Uids of engine pods that have their resources: one that has ended gave them back, and its
    object stays for a moment."""
    path = f"/api/v1/namespaces/{argosy.namespace}/pods"
    found = argosy.kube.get(path, labelSelector=f"{FLEET}={fleet},serving.argosy.dev/role!=gateway")
    ended = ("Succeeded", "Failed")
    return {p["metadata"]["uid"] for p in found["items"] if p["status"]["phase"] not in ended}


def images(argosy, fleet):
    return {pod["spec"]["containers"][0]["image"] for pod in argosy.pods(fleet)}


def until_only_new(argosy, fleet, old, *roles):
    """Until there is one pod of each role, and none of the `old` ones is left. The fleet is Ready
    all the time: an old pod goes when the new one serves. Loss alone would not show that, because
    gateways queue requests, and Services use pods that are being deleted when there are no others.
    """

    def replaced():
        assert argosy.condition(fleet, "Ready")["status"] == "True", argosy.conditions(fleet)
        now = uids(argosy, fleet, *roles)
        if len(now) != len(roles) or all_uids(argosy, fleet) & old:
            return False
        return is_ready(argosy.fleet(fleet))

    argosy.until(f"new pods of {roles}", replaced, 90)


def with_images(tag, *names):
    """The chart's setting of the images, by default all three, to those of another release."""
    names = names or ("operator", "engine", "gateway")
    return "--set-string", ",".join(f"images.{name}.tag={tag}" for name in names)


def operators(argosy):
    return set(argosy.operator_pods())


def restart_operators(argosy, *how):
    """All of them at once; others come."""
    pods = argosy.operator_pods()
    argosy.kube.kubectl("-n", SYSTEM, "delete", "pod", *pods, "--wait=false", *how)


def test_a_new_revision_replaces_both_roles_and_loses_nothing(argosy, unhurt):
    old, gateway = uids(argosy, unhurt, *ENGINES), uids(argosy, unhurt, "gateway")
    patch(argosy, unhurt, engine={"maxNumSeqs": 64})
    until_only_new(argosy, unhurt, old, *ENGINES)
    assert uids(argosy, unhurt, "gateway") == gateway


def test_two_pairs_change_places_without_a_surge_and_lose_nothing(argosy):
    two = {"replicas": {"min": 2, "max": 2}, "resources": {"gpu": 0}}
    argosy.apply(
        "paced",
        mode="disaggregated",
        roles=dict.fromkeys(ENGINES, two),
        rollout={"maxSurgeGPUs": 0},
    )
    argosy.until_ready("paced")
    argosy.until("four pods", lambda: len(uids(argosy, "paced", *ENGINES)) == 4)
    old, most, waited = uids(argosy, "paced", *ENGINES), 0, set()

    def replaced():
        nonlocal most
        now = engines_at_work(argosy, "paced")
        most = max(most, len(now))
        assert argosy.condition("paced", "Ready")["status"] == "True", argosy.conditions("paced")
        status = argosy.fleet("paced")["status"]
        waited.add(status.get("rollout", {}).get("state"))
        return len(now) == 4 and not now & old and "rollout" not in status

    with traffic(argosy.url("paced"), "paced", per_s=5, tokens=40) as outcomes:
        patch(argosy, "paced", engine={"maxNumSeqs": 64})
        argosy.until("two new pairs", replaced, 120)
    argosy.kubectl("delete", "sd", "paced", "--wait=false")
    assert most == 4
    assert {"OldPodsLeave", "NewPodsStart"} <= waited
    assert set(outcomes) == {"ok"}, outcomes


def test_the_only_gateway_is_replaced_and_nothing_is_lost(argosy, unhurt):
    old, engines = uids(argosy, unhurt, "gateway"), uids(argosy, unhurt, *ENGINES)
    patch(argosy, unhurt, routing={"template": {"metadata": {"labels": {"team": "a"}}}})
    until_only_new(argosy, unhurt, old, "gateway")
    assert uids(argosy, unhurt, *ENGINES) == engines


def test_helm_upgrade_of_the_operator_restarts_no_engine_and_no_gateway(
    argosy, unhurt, install_chart
):
    pods, old = uids(argosy, unhurt, "gateway", *ENGINES), operators(argosy)
    install_chart("--set", "operator.kubeAPI.qps=90")
    argosy.until("new operators", lambda: not operators(argosy) & old)
    patch(argosy, unhurt, roles={"prefill": {"replicas": {"max": 3}}})  # which replaces no pod
    argosy.until_ready(unhurt)  # as the new operator says, for this generation
    assert uids(argosy, unhurt, "gateway", *ENGINES) == pods


@pytest.mark.long
def test_an_upgrade_and_the_way_back_replace_no_pod(argosy, unhurt, record_property):
    """All three images change, and change back."""
    everything = ("gateway", *ENGINES)
    old, images_before = uids(argosy, unhurt, *everything), images(argosy, unhurt)
    for tag in ("next", None):
        before = operators(argosy)
        helm_install(argosy.kube, *(with_images(tag) if tag else ()))
        argosy.until("new operators", lambda before=before: not operators(argosy) & before)
        patch(argosy, unhurt, roles={"prefill": {"replicas": {"max": 5 if tag else 4}}})
        argosy.until_ready(unhurt)  # as the new operator says, for this generation
    replaced = old - uids(argosy, unhurt, *everything)
    record_property("pods_restarted_by_operator_upgrade", len(replaced))
    assert not replaced
    assert images(argosy, unhurt) == images_before


def test_helm_upgrade_to_new_images_replaces_no_pod_until_the_fleet_follows(argosy, unhurt):
    everything = ("gateway", *ENGINES)
    old = uids(argosy, unhurt, *everything)
    helm_install(argosy.kube, *with_images("next", "engine", "gateway"))
    argosy.until(
        "the newer images as a line of the status",
        lambda: {"engine", "gateway"} == set(argosy.fleet(unhurt)["status"].get("newerImages", {})),
    )
    assert uids(argosy, unhurt, *everything) == old
    patch(argosy, unhurt, imageUpdates="Follow")
    argosy.until("pods of the new revision", lambda: len(uids(argosy, unhurt, *ENGINES)) > 2)
    restart_operators(argosy)
    argosy.until_condition(unhurt, "Draining", "PodsLeaving", 60)
    restart_operators(argosy, "--grace-period=0", "--force")  # as a node that loses power
    until_only_new(argosy, unhurt, old, *everything)
    assert {image.rpartition(":")[2] for image in images(argosy, unhurt)} == {"next"}
