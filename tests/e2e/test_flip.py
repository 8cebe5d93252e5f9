"""A prefill pod becomes a decode pod on the real cluster and back, under traffic."""

import time
from datetime import UTC, datetime

import pytest

from tests.e2e.installed import GROUP, traffic

pytestmark = pytest.mark.cluster

DRAIN, FLIPPED = "serving.argosy.dev/drain", "serving.argosy.dev/flipped"
APART_S = 30  # docs/explanation/autoscaling.md: the least time between two flips
ROLES = {
    role: {"replicas": {"min": 1, "max": 3}, "resources": {"gpu": 0}}
    for role in ("prefill", "decode", "colocated")
}


def scale(argosy, fleet, **numbers):
    """As the scaling law does: fewer before more. A role that grows first starts a pod at once.

    The requests follow each other within milliseconds. An empty pod ends soon after its role wants
    fewer, and between two runs of kubectl there is time enough for that.
    """
    now = {role: len(argosy.pods(fleet, role)) for role in numbers}
    for role, number in sorted(numbers.items(), key=lambda item: item[1] - now[item[0]]):
        at = f"{GROUP}/namespaces/{argosy.namespace}/servingroles/{fleet}-{role}/scale"
        argosy.kube.http.patch(
            at,
            json={"spec": {"replicas": number}},
            headers={"Content-Type": "application/merge-patch+json"},
            timeout=30,
        ).raise_for_status()


def serving(argosy, fleet, role):
    """Ready pods of a role that do not drain, by uid."""
    return {
        pod["metadata"]["uid"]: pod
        for pod in argosy.pods(fleet, role)
        if DRAIN not in pod["metadata"].get("annotations", {})
        and any(
            (condition["type"], condition["status"]) == ("Ready", "True")
            for condition in pod["status"].get("conditions", ())
        )
    }


def both(argosy, fleet):
    return serving(argosy, fleet, "prefill"), serving(argosy, fleet, "decode")


def sizes(argosy, fleet):
    """Serving pods of both roles, if there are no others."""
    prefills, decodes = both(argosy, fleet)
    every = len(argosy.pods(fleet, "prefill")) + len(argosy.pods(fleet, "decode"))
    return (len(prefills), len(decodes)) if every == len(prefills) + len(decodes) else None


@pytest.fixture(scope="module")
def flipping(argosy):
    """Two prefill pods and one decode pod that may change their roles."""
    autoscaling = {"policy": "External", "roleFlip": True, "scaleDown": {"stabilization": "1s"}}
    argosy.apply("flipping", mode="disaggregated", roles=ROLES, autoscaling=autoscaling)
    argosy.until_ready("flipping")
    scale(argosy, "flipping", prefill=2)
    argosy.until("two prefill pods", lambda: sizes(argosy, "flipping") == (2, 1))
    yield "flipping"
    argosy.kubectl("delete", "sd", "flipping", "--wait=false")


def flipped_at(pod):
    """As the operator wrote it; "" for a pod that was never flipped."""
    return pod["metadata"].get("annotations", {}).get(FLIPPED, "")


def flipped_pod(argosy, fleet):
    """The pod that was flipped last."""
    found = (*argosy.pods(fleet, "prefill"), *argosy.pods(fleet, "decode"))
    return max(found, key=flipped_at)


def until_the_next_flip_may_come(argosy, fleet):
    """At once if there was none before."""
    if at := flipped_at(flipped_pod(argosy, fleet)):
        due = datetime.fromisoformat(at).timestamp() + APART_S + 1
        argosy.until("the next flip", lambda: datetime.now(UTC).timestamp() > due, 60)


def test_a_pod_goes_from_prefill_to_decode_and_back_under_traffic(argosy, flipping):
    before = both(argosy, flipping)
    uids = before[0].keys() | before[1].keys()
    with traffic(argosy.url(flipping), flipping, per_s=6, tokens=60) as outcomes:
        for prefill, decode in ((1, 2), (2, 1)):
            until_the_next_flip_may_come(argosy, flipping)
            began = time.monotonic()
            scale(argosy, flipping, prefill=prefill, decode=decode)
            want = (prefill, decode)
            argosy.until(f"{want}", lambda want=want: sizes(argosy, flipping) == want, 60)
            print(f"to {want}: {time.monotonic() - began:.1f} s")
            now = both(argosy, flipping)
            assert now[0].keys() | now[1].keys() == uids
            assert flipped_at(flipped_pod(argosy, flipping))
        time.sleep(3)  # requests reach the pod in its role of before
    assert set(outcomes) == {"ok"}, outcomes
    pod = flipped_pod(argosy, flipping)  # another one than before, if that had more to do
    (status,) = pod["status"]["containerStatuses"]
    assert status["restartCount"] == 0
    (owner,) = pod["metadata"]["ownerReferences"]
    assert f"{flipping}-prefill-" in owner["name"]
