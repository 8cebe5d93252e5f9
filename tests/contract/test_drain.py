"""The operator's drain orders, as the engine's admin port takes them; the gateway's own end."""

from types import SimpleNamespace

import httpx

from argosy_engine.server.admin import Admin
from argosy_engine.server.drain import LONGEST_LEASE_S, Drain
from argosy_gateway import cli as gateway_cli
from argosy_gateway.relay.handover import nixl
from argosy_operator.adapters.engines import HttpEngines
from argosy_operator.core.steps.drain import DRAIN_LEASE_S, RENEW_BELOW_S
from argosy_operator.render import engines, gateway
from tests.render.fleets import IMAGES, fleet


async def test_a_drain_order_is_a_lease_that_the_operator_reads_back_and_can_end() -> None:
    loop = SimpleNamespace(draining=False)
    drain = Drain(
        running=lambda: 2,
        leases=lambda: 1,
        switch=lambda on: setattr(loop, "draining", on),
        timeout_s=60,
    )
    http = HttpEngines()
    await http.close()
    transport = httpx.ASGITransport(Admin(drain=drain).app())
    http._http = httpx.AsyncClient(transport=transport)
    assert await http.drain("10.0.0.1", ("ns", "chat"), "uid-1")
    load = await http.load("10.0.0.1", ("ns", "chat"), "uid-1")
    assert load is not None
    assert (load.draining, load.running, load.leases) == (True, 2, 1)
    assert load.expires_in_s is not None
    assert RENEW_BELOW_S < load.expires_in_s <= DRAIN_LEASE_S <= LONGEST_LEASE_S
    assert await http.take_work_again("10.0.0.1", ("ns", "chat"), "uid-1")
    assert not loop.draining
    load = await http.load("10.0.0.1", ("ns", "chat"), "uid-1")
    assert load is not None
    assert load.expires_in_s is None
    await http.close()


def test_a_gateway_that_ends_takes_connections_until_its_probe_has_told_so() -> None:
    """Where all gateways end at once, kube-proxy sends clients to those that end and are ready."""
    front = next(o for o in gateway.objects(fleet(), IMAGES) if o["kind"] == "Deployment")
    pod = front["spec"]["template"]["spec"]
    probe = pod["containers"][0]["readinessProbe"]
    told_s = probe["periodSeconds"] * probe["failureThreshold"]
    words = ["run", "--fleet", "f", "--namespace", "n", "--served-name", "m"]
    lag_s = gateway_cli.parse(words).drain_lag_s
    assert lag_s >= told_s + 2  # the kubelet's status, the EndpointSlice, the proxies' rules
    least = fleet(drain={"timeout": "2s"}, kvTransfer={"timeout": "500ms"})
    front = next(o for o in gateway.objects(least, IMAGES) if o["kind"] == "Deployment")
    grace_s = front["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert grace_s > gateway.DEREGISTER_S + lag_s + 2


def test_the_gateway_knows_how_long_vllm_keeps_kv():
    """With a longer lease than the pods have, an answer could hold another user's KV."""
    assert nixl.LEASE_S == engines.LEASE_S
