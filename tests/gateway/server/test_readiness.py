"""/ready says whether requests can be served, without flapping while a fleet scales from zero."""

from dataclasses import replace

import pytest

from argosy_gateway.pods.endpoints import Endpoint, Role, State
from argosy_gateway.server.admin import why_unready
from tests.gateway.direct import direct

POD = Endpoint("a", "a", "10.0.0.1", Role.COLOCATED, "r", State.SERVING)
STARTING = replace(POD, state=State.UNREADY)


@pytest.fixture
async def gateway():
    async with direct(queue_timeout_s=30.0) as gateway:
        yield gateway


async def test_without_a_pod_that_serves_it_turns_unready_after_the_time_in_the_queue(gateway):
    directory = gateway.state.directory
    directory.replace([POD])
    assert why_unready(gateway.state) is None
    directory.put(STARTING)
    gateway.state.sweep()
    gateway.advance(30.0)
    assert why_unready(gateway.state) is None
    gateway.advance(0.5)
    assert why_unready(gateway.state) == "no engine pod can serve since 30 s"
    directory.put(POD)
    assert why_unready(gateway.state) is None, "at once"
    directory.put(STARTING)
    assert why_unready(gateway.state) is None, "the time begins anew"


async def test_a_fleet_that_has_not_served_yet_or_has_no_pods_stays_ready(gateway):
    directory = gateway.state.directory
    for pods in ([], [STARTING], []):
        directory.replace(pods)
        for _ in range(5):
            gateway.state.sweep()
            gateway.advance(60)
            assert why_unready(gateway.state) is None
            assert gateway.state.unserved_s() == 0


async def test_scaling_to_zero_and_back_does_not_make_it_unready(gateway):
    directory = gateway.state.directory
    for pods in ([POD], [replace(POD, state=State.DRAINING)], [], [STARTING]):
        directory.replace(pods)
        gateway.state.sweep()
        gateway.advance(20)
    gateway.advance(600)
    assert why_unready(gateway.state) is None


async def test_pods_that_all_drain_for_long_leave_it_ready(gateway):
    """The fleet goes to zero, and what a request needs is called back."""
    directory = gateway.state.directory
    directory.replace([POD])
    gateway.state.sweep()
    directory.put(replace(POD, state=State.DRAINING))
    gateway.state.sweep()
    gateway.advance(600)
    assert why_unready(gateway.state) is None
    directory.put(STARTING)
    gateway.state.sweep()
    gateway.advance(600)
    assert why_unready(gateway.state) is None, "it has not served since"
