"""An admission webhook that fails for one kind, before a real API server."""

from collections.abc import Iterator

import pytest
import yaml

from local.demo.errors import CommandError
from local.demo.kube import condition
from tests.reconcile.operators import World

pytestmark = pytest.mark.cluster


@pytest.fixture
def broken_webhook(world: World) -> Iterator[None]:
    """Every write of a disruption budget of the namespace asks a Service that does not exist."""
    name = f"broken-{world.namespace}"
    webhook = {
        "name": "budgets.example.com",
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": world.namespace}},
        "clientConfig": {"service": {"name": "nothing", "namespace": world.namespace}},
        "rules": [
            {
                "apiGroups": ["policy"],
                "apiVersions": ["v1"],
                "operations": ["CREATE", "UPDATE"],
                "resources": ["poddisruptionbudgets"],
            }
        ],
    }
    config = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": name},
        "webhooks": [webhook],
    }
    world.kubectl("apply", "-f", "-", given=yaml.safe_dump(config))

    def in_force() -> bool:
        try:
            world.kubectl("create", "pdb", "probe", "--selector=a=b", "--max-unavailable=1")
        except CommandError as error:
            return "budgets.example.com" in str(error)
        world.kubectl("delete", "pdb", "probe")
        return False

    world.until("the webhook is asked", in_force)
    yield
    world.kubectl("delete", "validatingwebhookconfiguration", name)


def test_a_webhook_that_fails_on_budgets_stops_no_scaling(running, broken_webhook):
    running.kubectl("delete", "pdb", "--all")
    running.patch(roles={"colocated": {"replicas": {"min": 2}}})
    running.until("2 replicas", lambda: running.engines()[0]["spec"]["replicas"] == 2)

    def told():
        said = condition(running.fleet(), "Reconciling")
        # The two budgets are deleted one after the other, so a round may miss only the first.
        both = "PodDisruptionBudget/chat-gateway" in said.get("message", "")
        return said if said.get("reason") == "WriteFailed" and both else None

    said = running.until("the condition", told)
    assert said["status"] == "True"
    assert "budgets.example.com" in said["message"]
    assert not [note for note in running.events("CreatedAgain") if "Budget" in note]
    running.until_ready()
