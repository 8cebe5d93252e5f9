"""Shedding by the predicted TTFT: off unless a factor is set, and then before the queue grows."""

import asyncio

import httpx

from argosy_gateway.endpoints import Endpoint, Role, State
from argosy_gateway.pick import Claim, Route
from argosy_gateway.verdicts import Slo
from tests.engine.processes import sim_engines
from tests.gateway.engines import Engine, front

SLO = Slo(ttft_s=0.5, tpot_s=1.0)


def client(f):
    return httpx.AsyncClient(base_url=f.url, timeout=60, verify=False)


def ask(chars):
    return {"model": "m", "prompt": "x" * chars}


def teach(fleet, *, tokens_per_s):
    """Twenty prompts of a second each, at this pace."""
    for second in range(20):
        fleet.pace.begin("a", float(second))
        fleet.pace.first_token("a", tokens_per_s, second + 1.0)


async def test_a_prompt_that_would_miss_its_ttft_is_shed_and_a_shorter_one_is_not():
    """At 100 tokens a second and 4 characters a token the limit of 0.5 s is 200 characters."""
    async with front(Engine("a"), slo=SLO, shed_ttft_factor=1.0) as f, client(f) as c:
        teach(f.fleet, tokens_per_s=100)
        refused = await c.post("/v1/completions", json=ask(1000))
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "overloaded"
        assert (refused.headers["retry-after"], refused.headers["retry-after-ms"]) == ("2", "2000")
        assert (await c.post("/v1/completions", json=ask(60))).status_code == 200
        assert f.count("argosy_requests_received_total", outcome="shed") == 1


async def test_nothing_is_shed_before_the_pace_is_known():
    async with front(Engine("a"), slo=SLO, shed_ttft_factor=1.0) as f, client(f) as c:
        assert (await c.post("/v1/completions", json=ask(100_000))).status_code == 200


async def test_what_waits_on_the_pod_counts_and_the_factor_says_how_much_is_too_much():
    engine = Engine("a")
    for factor, status in ((1.0, 429), (5.0, 200), (0.0, 200)):
        async with front(engine, slo=SLO, shed_ttft_factor=factor) as f, client(f) as c:
            teach(f.fleet, tokens_per_s=100)
            ahead = Claim(f.fleet.book, Route(engine.endpoint()), 200)
            assert (await c.post("/v1/completions", json=ask(40))).status_code == status
            ahead.end()
            assert (await c.post("/v1/completions", json=ask(40))).status_code == 200


async def test_a_burst_upon_a_real_engine_is_cut_to_what_can_meet_the_target():
    """A new prompt of 1,900 tokens takes the engine 0.24 s: 30 at once are 7 s of work."""

    def post(number):
        body = {"model": "m", "prompt": [number] * 1900, "max_tokens": 1}
        return c.post("/v1/completions", json=body)

    with sim_engines("colocated") as (engine,):
        pod = Endpoint(
            engine.name, engine.name, "127.0.0.1", Role.COLOCATED, "0a0a0a0a", State.SERVING,
            port=engine.api, kv_port=engine.kv,
        )  # fmt: skip
        async with front(slo=Slo(1.0, 1.0), shed_ttft_factor=1.0) as f, client(f) as c:
            f.fleet.directory.replace([pod])
            for number in range(20):
                assert (await post(number)).status_code == 200
            answers = await asyncio.gather(*(post(number) for number in range(20, 50)))
    assert {answer.status_code for answer in answers} == {200, 429}
    refused = [answer for answer in answers if answer.status_code == 429]
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)
