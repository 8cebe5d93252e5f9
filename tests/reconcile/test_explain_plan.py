"""`argosy operator explain NAME --plan` on the real API server, beside a running operator."""

import json
import subprocess

import pytest

from tests.reconcile.operators import ARGOSY, World

pytestmark = pytest.mark.cluster


def explained(world: World) -> dict:
    words = ("operator", "explain", "chat", "--plan", "-o", "json", "-n", world.namespace)
    text = subprocess.check_output([ARGOSY, *words, "--kubeconfig", world.kube.kubeconfig])
    return json.loads(text)


def test_beside_an_operator_at_rest_the_plan_is_empty(running: World) -> None:
    found = explained(running)
    assert found["actions"] == []
    assert found["steps"][-1]["reason"] == "NotPaused"


def test_without_an_operator_the_plan_names_what_is_missing_and_creates_nothing(
    running: World,
) -> None:
    (operator,) = running.operators
    operator.stop()
    running.kubectl("delete", "service", "chat")
    assert running.get("services", "chat") is None, "an operator is left and put it back"
    for _ in range(2):
        assert explained(running)["actions"] == ["Apply Service/chat"]
