"""Who sets the number of gateways: the spec, a HorizontalPodAutoscaler of ours, or another scaler.

The cluster has no CPU metrics, so what is seen of the autoscaler is its range.
"""

import time

import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.long]
EXTERNAL = {"policy": "External"}
HPA = "horizontalpodautoscalers"
GATEWAYS = "serving.argosy.dev/fleet=chat,serving.argosy.dev/role=gateway"


def gateway(world):
    return world.get("deployments", "chat-gateway")


def replicas(world):
    return gateway(world)["spec"]["replicas"]


def uids(world):
    pods = world.kube.get(f"/api/v1/namespaces/{world.namespace}/pods", labelSelector=GATEWAYS)
    return {pod["metadata"]["uid"] for pod in pods["items"]}


def scale(world, number):
    """As KEDA, an HPA and a person do: through the scale subresource."""
    world.kubectl("scale", "deployment/chat-gateway", f"--replicas={number}")


def rolled_out(world):
    """What a pipeline waits for after an edit."""
    world.kubectl("wait", "sd/chat", "--for=condition=RolledOut", "--timeout=60s")


def says(world, reason):
    return world.until(
        reason,
        lambda: (c := world.condition("GatewayScalingActive")).get("reason") == reason and c,
        60,
    )


def test_a_number_that_the_spec_says_is_put_back_and_the_event_says_how_to_keep_another(running):
    scale(running, 3)
    running.until("1 replica", lambda: replicas(running) == 1)
    told = running.until("the Event", lambda: running.events("PutBack"))
    assert "spec.replicas of Deployment chat-gateway" in told[0]
    assert "spec.routing.autoscaling.policy: External" in told[0]


def test_the_number_of_another_scaler_stays_and_its_changes_are_no_rollout(running):
    running.patch(routing={"autoscaling": EXTERNAL})
    rolled_out(running)
    assert replicas(running) == 1
    before = uids(running)
    for number in (3, 2):
        scale(running, number)
        running.until_at_rest()
        assert replicas(running) == number
        assert running.condition("RolledOut")["status"] == "True"
    running.patch(autoscaling={"interval": "17s"})  # a new generation is applied
    rolled_out(running)
    running.until_at_rest()
    assert replicas(running) == 2
    assert before <= uids(running)
    assert running.events("PutBack") == []
    assert says(running, "ExternalOwner")["status"] == "False"


def test_a_range_holds_without_metrics_and_the_fleet_says_what_is_missing(running):
    running.patch(routing={"autoscaling": {"min": 2, "max": 4}})
    running.until("2 gateways", lambda: replicas(running) == 2, 60)
    rolled_out(running)
    said = says(running, "AutoscalerBlind")
    assert "chat-gateway" in said["message"]
    assert "metrics-server" in said["message"]
    assert running.condition("Stalled")["status"] == "False"
    assert running.condition("Ready")["status"] == "True"
    spec = running.get(HPA, "chat-gateway")["spec"]
    assert (spec["minReplicas"], spec["maxReplicas"]) == (2, 4)
    assert spec["metrics"][0]["containerResource"]["target"]["averageValue"] == "700m"
    writes = running.operators[0].metric("argosy_operator_writes_total")
    time.sleep(3)
    assert running.operators[0].metric("argosy_operator_writes_total") == writes
    scale(running, 6)
    running.until("4 gateways", lambda: replicas(running) == 4, 60)
    running.kubectl("delete", "hpa", "chat-gateway")
    running.until("it is made again", lambda: running.get(HPA, "chat-gateway"))
    running.patch(routing={"replicas": 1, "autoscaling": None})
    running.until("1 gateway", lambda: replicas(running) == 1)
    running.until("the end of it", lambda: running.get(HPA, "chat-gateway") is None)
    rolled_out(running)
