"""Two installs that are told to look after the same fleet, before a real API server."""

import time

import pytest

from argosy_operator.shell.installs import LAPSE_S, LATER_S
from local.demo.kube import condition
from tests.reconcile.operators import WRITES

pytestmark = pytest.mark.cluster
IMAGES = (
    "--engine-image",
    "elsewhere.example/engine:2",
    "--gateway-image",
    "elsewhere.example/g:2",
)
SETTLED_S = 12
"""A fight of two installs was measured: 66 writes in 25 s."""


@pytest.mark.timeout(400)
def test_of_two_installs_one_stays_still_and_status_names_both_until_the_first_one_ends(running):
    first, namespace = running.operators[0], running.namespace
    running.until_at_rest()
    second = running.operator("two", "--lease-name", "another", *IMAGES)

    def named():
        return condition(running.fleet(), "InstallConflict").get("status") == "True"

    running.until("InstallConflict", named)
    message = condition(running.fleet(), "InstallConflict")["message"]
    assert f"{namespace}/argosy-operator" in message
    assert f"{namespace}/another" in message
    before, fleet = first.metric(WRITES), running.fleet()
    time.sleep(SETTLED_S)
    assert second.metric(WRITES) == 1  # its entry in the fleet's status
    assert first.metric(WRITES) - before <= 1
    assert running.fleet()["status"] == fleet["status"]
    assert second.metric("argosy_operator_fleets_of_other_installs") == 1
    running.patch(roles={"colocated": {"replicas": {"min": 2}}})
    running.until("the first one works on", lambda: running.engines()[0]["spec"]["replicas"] == 2)
    first.kill()

    def taken():
        return running.fleet()["status"]["operator"]["lease"] == f"{namespace}/another"

    running.until("the second one takes over", taken, LAPSE_S + LATER_S + 15)
    running.until("no conflict any more", lambda: not named())
    running.until_ready()
    assert [d["spec"]["replicas"] for d in running.engines()] == [2]
