"""A leader that cannot watch its kinds: the real kopf on the real API server; CRDs come and go.

Each test takes the CRDs away, and puts back what was there.
"""

from collections.abc import Iterator
from contextlib import suppress

import httpx
import pytest
import yaml

from local.demo.errors import CommandError
from tests.reconcile.conftest import CRDS, FLEET, NAMES
from tests.reconcile.operators import Operator, World

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(300)]

LEADER, AGE = "argosy_operator_leader", "argosy_operator_watch_age_seconds"


@pytest.fixture
def crds(world: World) -> Iterator[World]:
    """The world, whose CRDs are there again afterwards."""
    yield world
    world.kube.apply_crds(CRDS)


def delete_crds(world: World) -> None:
    world.kube.kubectl("delete", "crd", *NAMES, "--ignore-not-found", "--timeout=60s")


def ready(operator: Operator) -> tuple[bool, str]:
    with suppress(httpx.HTTPError):
        answer = httpx.get(f"http://127.0.0.1:{operator.port}/ready", timeout=5, trust_env=False)
        return answer.is_success, answer.text
    return False, ""


def serves(world: World, operator: Operator) -> None:
    """It leads, and reconciles a fleet that is made now."""
    world.until("it leads", lambda: operator.metric(LEADER) == 1, 60)
    with suppress(CommandError):
        world.kubectl("delete", "sd", "chat", "--ignore-not-found")
    world.kubectl("apply", "-f", "-", given=yaml.safe_dump(FLEET))
    world.until("the fleet is seen", lambda: world.fleet().get("status", {}).get("conditions"), 60)


def test_an_operator_that_starts_before_its_crds_waits_unready_and_then_serves(crds: World) -> None:
    delete_crds(crds)
    operator = crds.operator()
    crds.until("it says what is missing", lambda: NAMES[0] in ready(operator)[1], 60)
    assert NAMES[1] in ready(operator)[1]
    assert not ready(operator)[0]
    assert operator.healthy(), "a restart brings no CRD"
    assert crds.get("leases", "argosy-operator") is None
    crds.kube.apply_crds(CRDS)
    serves(crds, operator)
    assert ready(operator)[0]


def test_a_leader_whose_crds_are_deleted_lets_go_and_serves_again_when_they_are_back(
    crds: World,
) -> None:
    operator = crds.operator()
    serves(crds, operator)
    crds.until("each kind is watched", lambda: operator.metric(AGE) > 0)
    delete_crds(crds)
    crds.until("it ends by itself", lambda: operator.process.poll() is not None, 25)
    assert operator.process.returncode == 1

    again = crds.operator()
    crds.until("it says what is missing", lambda: NAMES[0] in ready(again)[1], 60)
    assert not ready(again)[0]
    crds.kube.apply_crds(CRDS)
    serves(crds, again)
