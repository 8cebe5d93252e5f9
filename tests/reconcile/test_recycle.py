"""A pod with the mark of `recycle_pods` is replaced by real controllers, under traffic.

Who sets the mark, and when, is tested in tests/core/steps. A person may set it, too.
"""

from datetime import UTC, datetime

import pytest
import yaml

from argosy_operator.core.snapshot import names
from local.demo.kube import await_answer
from tests.e2e.installed import traffic
from tests.reconcile.conftest import FLEET

pytestmark = [pytest.mark.cluster, pytest.mark.long]


def pods(world, role):
    """Pods of a role that are not being deleted: uid → name and whether it is ready."""
    found = world.kube.get(
        f"/api/v1/namespaces/{world.namespace}/pods", labelSelector=f"{names.ROLE}={role}"
    )
    return {
        pod["metadata"]["uid"]: (pod["metadata"]["name"], _ready(pod))
        for pod in found["items"]
        if "deletionTimestamp" not in pod["metadata"]
    }


def _ready(pod):
    conditions = pod["status"].get("conditions", ())
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def replaced(world, role, before):
    """Two ready pods of the role, none of them one of `before`."""
    now = pods(world, role)
    return len(now) == 2 and all(ready for _, ready in now.values()) and not before & set(now)


def test_a_marked_pod_goes_after_another_one_serves_and_no_request_is_lost(world, cluster):
    two = {"colocated": {"replicas": {"min": 2, "max": 4}, "resources": {"gpu": 0}}}
    # This operator has no account, so engines take no order of it: a drain lasts its whole time.
    short = {"drain": {"timeout": "3s"}, "kvTransfer": {"timeout": "500ms"}}
    world.operator()
    fleet = {**FLEET, "spec": {**FLEET["spec"], "roles": two, **short}}
    world.kubectl("apply", "-f", "-", given=yaml.safe_dump(fleet))
    world.until("2 engines", lambda: replaced(world, "colocated", set()), 60)
    world.until_ready()
    before = pods(world, "colocated")
    chosen = min(before)
    note = f"{names.RECYCLED}=2026-01-01T00:00:00Z 3"
    world.kubectl("annotate", "servingrole", "chat-colocated", note)
    url = f"http://127.0.0.1:{cluster.host_port('chat', 80, world.namespace)}"
    fewest = []
    with traffic(await_answer(url), "chat", per_s=5, tokens=4) as outcomes:
        mark = f"{names.RECYCLE}={datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
        world.kubectl("annotate", "pod", before[chosen][0], mark)

        def gone():
            now = pods(world, "colocated")
            fewest.append(sum(ready for _, ready in now.values()))
            return chosen not in now and replaced(world, "colocated", {chosen})

        world.until("another engine", gone, 60)
    assert len(outcomes) > 10
    assert set(outcomes) == {"ok"}, outcomes
    assert min(fewest) >= 2, "the other one served first"
    kept = set(before) - {chosen}
    assert kept < set(pods(world, "colocated"))
    path = f"/apis/serving.argosy.dev/v1alpha1/namespaces/{world.namespace}/servingroles"
    role = world.kube.get(f"{path}/chat-colocated")
    assert role["metadata"]["annotations"][names.RECYCLED] == "2026-01-01T00:00:00Z 3"
