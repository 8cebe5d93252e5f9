"""Shedding by the predicted TTFT: off unless a factor is set; it sheds before the queue grows."""

import httpx
import pytest

from argosy_gateway.config import Slo
from argosy_gateway.pods.endpoints import Endpoint, Role, State
from argosy_gateway.routing.estimates import FleetPace, TokensPerChar, predict_ttft_s
from argosy_gateway.routing.load import PodLoad, Reservation
from argosy_gateway.routing.roster import Group, Route
from tests.gateway.engines import Engine, front

SLO = Slo(ttft_s=0.5, tpot_s=1.0)


def client(f):
    return httpx.AsyncClient(base_url=f.url, timeout=60, verify=False)


def prompt(chars):
    return {"model": "m", "prompt": "x" * chars}


def teach(fleet, *, tokens_per_s):
    """Twenty prompts of a second each, at this pace."""
    for second in range(20):
        fleet.pace.observe("a", tokens_per_s, began=float(second), first=second + 1.0)


async def test_a_prompt_that_would_miss_its_ttft_is_shed_and_a_shorter_one_is_not():
    """At 100 tokens a second and 4 characters a token the limit of 0.5 s is 200 characters."""
    async with front(Engine("a"), slo=SLO, shed_ttft_factor=1.0) as f, client(f) as c:
        teach(f.state, tokens_per_s=100)
        refused = await c.post("/v1/completions", json=prompt(1000))
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "overloaded"
        assert (refused.headers["retry-after"], refused.headers["retry-after-ms"]) == ("2", "2000")
        assert (await c.post("/v1/completions", json=prompt(60))).status_code == 200
        assert f.count("argosy_requests_received_total", outcome="shed") == 1


@pytest.mark.slow
async def test_what_waits_on_the_pod_counts_against_factor_times_the_limit():
    engine = Engine("a")
    for factor, status in ((1.0, 429), (5.0, 200), (0.0, 200)):
        async with front(engine, slo=SLO, shed_ttft_factor=factor) as f, client(f) as c:
            teach(f.state, tokens_per_s=100)
            ahead = Reservation(f.state.in_flight, Route(engine.endpoint()), 200)
            assert (await c.post("/v1/completions", json=prompt(40))).status_code == status
            ahead.end()
            assert (await c.post("/v1/completions", json=prompt(40))).status_code == 200


def test_tokens_are_estimated_at_a_quarter_of_the_characters_until_answers_show_more():
    ratio = TokensPerChar()
    assert [ratio.estimate(chars) for chars in (0, 1, 40, 400)] == [1, 1, 10, 100]
    ratio.learn(chars=63, tokens=63)
    assert ratio.estimate(400) == 100, "a short prompt is mostly the chat template"
    ratio.learn(chars=64, tokens=64)
    assert ratio.estimate(4000) == 1300, "a tenth of the way from a quarter to one"
    ratio.learn(chars=1000, tokens=0)
    assert ratio.estimate(4000) == 1170


def test_the_predicted_ttft_is_that_of_the_pod_with_the_fewest_tokens_ahead():
    def pod(name, role):
        return Endpoint(name, name, "x", role, "r", State.SERVING)

    pace = FleetPace()
    heads = (pod("c1", Role.COLOCATED), pod("c2", Role.COLOCATED))
    pairs = Group((pod("d", Role.DECODE),), (pod("p", Role.PREFILL),))
    loads = {"c1": PodLoad(1, 300, 1), "c2": PodLoad(1, 200, 1), "p": PodLoad(1, 100, 1)}

    def predicted(*groups):
        return predict_ttft_s(groups, loads, tokens=50, pace=pace)

    assert predicted(Group(heads)) is None
    for number in range(20):
        pace.observe("c1", 100, began=float(number), first=number + 1.0)
    assert predicted(Group(heads)) == pytest.approx(2.5)
    assert predicted(Group(heads), pairs) == pytest.approx(1.5), "the decode pod computes nothing"
    del loads["c1"]
    assert predicted(Group(heads)) == pytest.approx(0.5)
    assert predicted() is None
