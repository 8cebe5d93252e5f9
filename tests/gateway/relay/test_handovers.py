"""Prefill pods that a decode engine names as failed are named after the others, and told on."""

import asyncio
from dataclasses import replace

import pytest

from argosy_gateway.pods.endpoints import Role
from argosy_gateway.pods.health import HEALTHY
from tests.gateway.direct import direct
from tests.gateway.engines import Engine

ASK = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
FAILED = "argosy_gateway_handovers_failed_total"
WHOLE = {"choices": [{"message": {"content": "one"}}]}


def addresses(call):
    return call.headers["x-argosy-prefill"].split(",")


def handing_over(bad):
    """A decode engine that gets no KV from the addresses in `bad`, and names them."""

    async def behaviour(call):
        failed = [address for address in addresses(call) if address in bad]
        failed = failed[: len(failed) if addresses(call)[0] in bad else 0]
        served = next((a for a in addresses(call) if a not in bad), None)
        headers = {"x_argosy_failed_prefills": ",".join(f"{a}=timeout" for a in failed)}
        if served:
            headers["x_argosy_prefill_pod"] = f"p{served.rsplit(':', 1)[1]}"
        await call.status(200, WHOLE, **{k: v for k, v in headers.items() if v})

    return behaviour


def prefill(number):
    """A pod of which only its KV address is used."""
    endpoint = Engine(f"p{number}", role=Role.PREFILL).endpoint()
    return replace(endpoint, kv_port=number)


@pytest.fixture
async def fleet():
    """Two decode pods and three prefill pods, whose KV ports are 1, 2 and 3."""
    decodes = [Engine(f"d{n}", handing_over(set()), Role.DECODE) for n in range(2)]
    async with direct(*decodes) as gateway:
        pods = [e.endpoint() for e in decodes] + [prefill(n) for n in (1, 2, 3)]
        gateway.state.directory.replace(pods)
        yield gateway, decodes


async def test_the_next_request_names_a_prefill_pod_that_failed_last(fleet):
    gateway, decodes = fleet
    for decode in decodes:
        decode.behaviour = handing_over({"127.0.0.1:1"})
    for _ in range(30):
        assert (await gateway.answered(ASK)).status == 200
    calls = [call for decode in decodes for call in decode.calls]
    first = [addresses(call)[0] for call in calls]
    assert first.count("127.0.0.1:1") <= 2, "once for each decode pod"
    assert all(len(addresses(call)) == 3 for call in calls), "it is still named"
    failed = gateway.count(FAILED, reason="silent")
    assert failed == first.count("127.0.0.1:1")
    assert all(gateway.state.directory.health.rank(d.name) == HEALTHY for d in decodes)


async def test_a_prefill_pod_whose_time_is_over_is_tried_by_one_request_at_a_time():
    asked = asyncio.Event()

    async def silent(call):
        asked.set()
        await asyncio.sleep(60)

    decode = Engine("d", silent, Role.DECODE)
    async with direct(decode) as gateway:
        gateway.state.directory.replace([decode.endpoint(), prefill(1)])
        pairs = gateway.state.directory.pairs
        pairs.count_failure("p1", "d", "silent")
        gateway.advance(2.0)
        assert not pairs.avoids("p1", "d")
        client = gateway.ask(ASK)
        await asked.wait()
        assert pairs.avoids("p1", "d")
        await client.leave()


async def test_a_decode_pod_that_gets_kv_from_none_is_asked_after_the_other(fleet):
    gateway, (bad, good) = fleet
    bad.behaviour = handing_over({f"127.0.0.1:{n}" for n in (1, 2, 3)})
    for _ in range(30):
        assert (await gateway.answered(ASK)).status == 200
    assert len(bad.calls) == 2
    assert gateway.state.directory.health.rank(bad.name) > HEALTHY
    assert gateway.state.directory.health.rank(good.name) == HEALTHY


def refusing(bad):
    """A decode engine with `onFailure: fail`: 503 if the first address is in `bad`."""

    async def behaviour(call):
        if addresses(call)[0] not in bad:
            await call.status(200, WHOLE)
            return
        error = {"error": {"code": "kv_transfer_failed", "message": "retry"}}
        named = ",".join(f"{address}=timeout" for address in addresses(call) if address in bad)
        await call.status(503, error, x_argosy_failed_prefills=named)

    return behaviour


async def test_with_on_failure_fail_a_handover_that_fails_is_no_failure_of_the_decode_pod(fleet):
    gateway, decodes = fleet
    health = gateway.state.directory.health
    for decode in decodes:
        decode.behaviour = refusing({"127.0.0.1:1"})
    for _ in range(30):
        await gateway.answered(ASK)
    assert gateway.count(FAILED, reason="silent") >= 1
    assert not any(health.failed_recently(decode.name) for decode in decodes)


# Prompts that decode pods compute themselves.
