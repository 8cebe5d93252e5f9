"""The admin port's paths, as the kubelet, Prometheus and the operator read them."""

import json
from dataclasses import replace

from argosy_gateway.config import Slo
from argosy_gateway.pods.endpoints import Endpoint, Role, State
from argosy_gateway.routing.line import Waiting
from argosy_gateway.routing.roster import Route
from argosy_gateway.routing.strategies import RoutingRequest
from argosy_gateway.server.admin import admin_app
from tests.gateway.server.asked import asked, gateway_of

JSON = "application/json"


def pod(name, role=Role.COLOCATED, state=State.SERVING):
    return Endpoint(f"uid-{name}", name, "10.0.0.1", role, "r", state)


async def ask(gateway, path):
    answer = await asked(admin_app(gateway), path)
    assert answer.headers["content-length"] == str(len(answer.body))
    assert answer.headers.keys() == {"content-type", "content-length"}
    return answer.status, answer.headers["content-type"], answer.body


async def test_load_is_what_arrived_what_runs_what_waits_and_since_when_nothing_came():
    gateway = gateway_of(pod_name="gateway-7", queue="deadline", slo=Slo(1, 1))
    gateway.clock.now += 12.3456
    gateway.metrics.count_accepted("m")
    gateway.metrics.count_accepted("m")
    gateway.metrics.count_invalid()
    gateway.metrics.count_shed(role_mode="colocated", received_at=1000.0, now=1000.0)
    for tokens in (30, 12):
        request = RoutingRequest("", "m", True, tokens, b"")
        gateway.queue.dispatch.line.add(Waiting(request, gateway.clock(), 1.0))
    assert json.loads((await ask(gateway, "/load"))[2]) == {
        "pod": "gateway-7",
        "in_flight": 0,
        "idle_s": 12.346,
        "received": {"accepted": 2.0, "shed": 1.0},
        "waiting_prompt_tokens": 42,
        "outstanding_prompt_tokens": 0,
        "decoding": 0,
        "answered": dict.fromkeys(
            ("requests", "prompt_tokens", "prompt_tokens_squared", "output_tokens"), 0.0
        ),
        "on_pods": {},
    }
    gateway.relays |= {object(), object()}
    busy = json.loads((await ask(gateway, "/load"))[2])
    assert (busy["in_flight"], busy["idle_s"]) == (2, 0.0)
    plain = json.loads((await ask(gateway_of(), "/load"))[2])
    assert plain["waiting_prompt_tokens"] == 0
    assert plain["received"] == {"accepted": 0.0, "shed": 0.0}


def unready(reason):
    return 503, JSON, json.dumps({"ready": False, "reason": reason}).encode()


async def test_a_gateway_that_drains_is_unready():
    gateway = gateway_of()
    gateway.draining, gateway.directory.listed = True, False
    assert await ask(gateway, "/ready") == unready("draining")


async def test_a_gateway_is_unready_until_pods_were_listed():
    gateway = gateway_of()
    gateway.directory.listed = False
    assert await ask(gateway, "/ready") == unready("pods were not listed yet")


async def test_a_gateway_that_is_denied_for_more_than_a_minute_is_unready():
    gateway = gateway_of()
    gateway.directory.deny_access()
    gateway.clock.now += 60
    gateway.directory.deny_access()
    assert (await ask(gateway, "/ready"))[0] == 200
    gateway.clock.now += 0.6
    gateway.directory.deny_access()
    assert await ask(gateway, "/ready") == unready(
        "the API server refuses this gateway's account since 61 s"
    )
    gateway.directory.grant_access()
    assert (await ask(gateway, "/ready"))[0] == 200


async def test_pairs_whose_last_handover_failed_are_named_by_their_pods_with_their_times():
    gateway = gateway_of()
    assert await ask(gateway, "/pairs") == (200, JSON, b'{"failing": [], "handed_over": {}}')
    gateway.directory.replace([pod("p", Role.PREFILL), pod("d", Role.DECODE)])
    gateway.directory.pairs.count_failure("uid-p", "uid-d", "silent")
    gateway.clock.now += 10
    gateway.directory.pairs.count_failure("uid-p", "uid-d", "timeout")
    gateway.clock.now += 0.98765
    status, kind, body = await ask(gateway, "/pairs")
    assert (status, kind) == (200, JSON)
    row = {"prefill": "p", "decode": "d", "failures": 2, "reason": "timeout"}
    assert json.loads(body) == {
        "failing": [{**row, "since_s": 10.988, "last_s": 0.988}],
        "handed_over": {},
    }


async def test_metrics_show_the_pods_of_this_moment():
    gateway = gateway_of()
    gateway.directory.replace(
        [pod("a"), pod("b"), pod("c", Role.DECODE, State.DRAINING), pod("d", state=State.UNREADY)]
    )
    status, kind, body = await ask(gateway, "/metrics")
    assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
    lines = body.decode().splitlines()
    assert 'argosy_gateway_endpoints{role="colocated",state="serving"} 2.0' in lines
    assert 'argosy_gateway_endpoints{role="decode",state="draining"} 1.0' in lines
    assert 'argosy_gateway_endpoints{role="colocated",state="unready"} 1.0' in lines
    gateway.directory.replace([])
    _, _, body = await ask(gateway, "/metrics")
    assert 'argosy_gateway_endpoints{role="colocated",state="serving"} 0.0' in body.decode()


async def test_load_counts_the_requests_on_pods_that_have_no_admin_port():
    gateway = gateway_of()
    theirs = Endpoint("u1", "p1", "10.0.0.1", Role.COLOCATED, "r", State.SERVING, engine="vllm")
    leaves = replace(theirs, uid="u2", name="p2", state=State.DRAINING)
    ours = replace(theirs, uid="u3", name="p3", engine="argosy")
    gateway.directory.replace([theirs, leaves, ours])
    for pod in (theirs, leaves, leaves, ours):
        gateway.in_flight.reserve(Route(pod), 10)
    assert json.loads((await ask(gateway, "/load"))[2])["on_pods"] == {
        "u1": {"requests": 1, "left": False},
        "u2": {"requests": 2, "left": True},
    }
