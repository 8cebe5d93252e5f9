"""Whose each verdict is, and whose the failures that another pod made good."""

import httpx
import pytest

from argosy_gateway.config import Slo
from argosy_gateway.pods.endpoints import Role, State
from argosy_gateway.relay.metrics import REVISION_KEPT_S
from tests.gateway.engines import Call, Engine, close_early, drain, fail, front

PATH = "/v1/chat/completions"
ASK = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
VERDICTS, FAULTS = "argosy_slo_requests_total", "argosy_gateway_faults_total"
SLO = {"slo": Slo(ttft_s=60, tpot_s=60)}


def verdicts(f) -> dict[tuple[str, str], float]:
    """Requests by revision and whether they met the limit on their first token."""
    found: dict[tuple[str, str], float] = {}
    for family in f.state.metrics.registry.collect():
        for one in family.samples:
            if one.name == VERDICTS and one.value:
                key = one.labels["revision"], one.labels["ttft"]
                found[key] = found.get(key, 0) + one.value
    return found


def faults(f) -> dict[str, float]:
    return {
        one.labels["revision"]: one.value
        for family in f.state.metrics.registry.collect()
        for one in family.samples
        if one.name == FAULTS and one.value
    }


async def asked(f, times: int = 1, **more: object) -> list[int]:
    async with httpx.AsyncClient(base_url=f.url, timeout=10, verify=False) as web:
        found = [(await web.post(PATH, json=ASK | more)).status_code for _ in range(times)]
    await f.settled()
    return found


async def test_a_verdict_names_the_revision_that_answered():
    async with front(Engine("a", revision="r1"), **SLO) as f:
        assert await asked(f, 3) == [200] * 3
        assert verdicts(f) == {("r1", "ok"): 3}
        assert faults(f) == {}


async def test_a_request_that_no_pod_was_asked_for_is_of_no_revision():
    async with front(queue_timeout_s=0.05, **SLO) as f:
        assert await asked(f) == [503]
        assert verdicts(f) == {("", "miss"): 1}


@pytest.mark.parametrize("behaviour", [fail, close_early])
async def test_a_failure_that_another_revision_made_good_is_a_fault_of_the_first(behaviour):
    async with front(Engine("a", behaviour, revision="r1"), Engine("b", revision="r2"), **SLO) as f:
        assert await asked(f, 6) == [200] * 6
        assert verdicts(f) == {("r2", "ok"): 6}
        assert faults(f).keys() == {"r1"}
        assert faults(f)["r1"] == f.count("argosy_gateway_retries_total")


async def test_a_fault_that_a_pod_of_the_same_revision_made_good_is_one_too():
    async with front(Engine("a", fail), Engine("b"), **SLO) as f:
        assert await asked(f, 4) == [200] * 4
        assert faults(f) == {"aaaaaaaa": f.count("argosy_gateway_retries_total")}


async def test_a_lost_request_is_one_miss_and_not_a_fault_besides():
    async with front(Engine("a", fail, revision="r1"), **SLO) as f:
        assert await asked(f) == [500]
        assert (verdicts(f), faults(f)) == ({("r1", "miss"): 1}, {})


async def test_a_pod_that_drains_or_is_full_has_no_fault():
    async def full(call: Call) -> None:
        await call.status(429, {"error": {"message": "full"}})

    for behaviour in (drain, full):
        engines = Engine("a", behaviour, revision="r1"), Engine("b", revision="r2")
        async with front(*engines, **SLO) as f:
            assert await asked(f, 4) == [200] * 4
            assert (verdicts(f), faults(f)) == ({("r2", "ok"): 4}, {})


async def test_a_prefill_pod_that_hands_nothing_over_is_a_fault_of_its_revision():
    async def alone(call: Call) -> None:
        failed = f"{call.headers['x-argosy-prefill'].split(',')[0]}=timeout"
        body = {"choices": [{"message": {"content": "one"}}]}
        await call.status(200, body, x_argosy_failed_prefills=failed)

    pair = Engine("p", role=Role.PREFILL), Engine("d", alone, Role.DECODE)
    async with front(*pair, **SLO) as f:
        assert await asked(f, 2) == [200] * 2
        assert verdicts(f) == {("aaaaaaaa", "ok"): 2}
        assert faults(f) == {"aaaaaaaa": 2}


async def test_the_series_of_a_revision_begin_with_its_pods_and_end_after_them():
    """rate() over a series that appears with its first event misses that event."""
    engine = Engine("a", revision="r1")
    async with front(engine, **SLO) as f:

        async def known() -> set[str]:
            async with httpx.AsyncClient(base_url=f.admin_url, verify=False) as web:
                text = (await web.get("/metrics")).text
            return {r for r in ("r1", "r2") if f'{FAULTS}{{revision="{r}"}} 0.0' in text}

        assert await known() == {"r1"}
        f.state.directory.replace([Engine("b", revision="r2").endpoint(State.UNREADY)])
        f.advance(REVISION_KEPT_S - 1)
        assert await known() == {"r1", "r2"}
        f.advance(2)
        assert await known() == {"r2"}
        assert f.count(VERDICTS, revision="r1") == 0
        labels = {
            one.labels["revision"]
            for family in f.state.metrics.registry.collect()
            for one in family.samples
            if one.name == VERDICTS
        }
        assert labels == {"", "r2"}
