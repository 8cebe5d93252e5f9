"""Shedding by the predicted TTFT: off unless a factor is set; it sheds before the queue grows."""

import asyncio
import gc
import itertools
import math
import random

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy_gateway.config import Slo
from argosy_gateway.pods.endpoints import Endpoint, Role, State
from argosy_gateway.routing.estimates import FleetPace, TokensPerChar, predict_ttft_s
from argosy_gateway.routing.load import PodLoad, Reservation
from argosy_gateway.routing.roster import Group, Route
from tests.engine.processes import sim_engines
from tests.gateway.engines import Engine, endpoint_of, front

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


async def test_nothing_is_shed_before_the_pace_is_known():
    async with front(Engine("a"), slo=SLO, shed_ttft_factor=1.0) as f, client(f) as c:
        assert (await c.post("/v1/completions", json=prompt(100_000))).status_code == 200


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


@pytest.mark.slow
async def test_a_burst_upon_a_real_engine_is_cut_to_what_can_meet_the_target():
    """A new prompt of 1,900 tokens takes the engine 0.24 s: 30 at once are 7 s of work."""

    def post(number):
        body = {"model": "m", "prompt": [number] * 1900, "max_tokens": 1}
        return c.post("/v1/completions", json=body)

    with sim_engines("colocated") as (engine,):
        async with front(slo=Slo(1.0, 1.0), shed_ttft_factor=1.0) as f, client(f) as c:
            f.state.directory.replace([endpoint_of(engine)])
            for number in range(20):
                assert (await post(number)).status_code == 200
            answers = await asyncio.gather(*(post(number) for number in range(20, 50)))
    assert {answer.status_code for answer in answers} == {200, 429}
    refused = [answer for answer in answers if answer.status_code == 429]
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)


async def test_a_request_that_has_ended_leaves_no_prediction_behind():
    """At one token an hour its first token is predicted for years from now."""
    async with front(Engine("a"), slo=SLO) as f, client(f) as c:
        teach(f.state, tokens_per_s=1 / 3600)
        assert (await c.post("/v1/completions", json=prompt(1000))).status_code == 200
        await f.settled()
        gc.collect()
        # `isinstance` would ask lazy objects of other libraries for their class.
        left = [thing for thing in gc.get_objects() if type(thing) is Reservation]
        assert not [x for x in left if x._in_flight is f.state.in_flight]


def test_the_pace_counts_time_once_in_any_order_of_the_answers():
    rng, pace = random.Random(3), FleetPace()
    prompts = [(began, began + length) for began in range(300) for length in (1.0, 1.5, 2.0)]
    for began, first in sorted(prompts, key=lambda p: p[1] + rng.uniform(0, 10)):
        pace.observe("a", 100, began=began, first=first)
    assert pace.tokens_per_s() == pytest.approx(3 * 100, rel=0.25)  # three begin each second


def test_the_pace_remembers_no_more_than_it_needs():
    pace = FleetPace()
    for number in range(3000):
        pace.observe(f"pod-{number % 1500}", 1, began=2.0 * number, first=2.0 * number + 1)
    assert len(pace._spans) <= 1000
    for number in range(3000):
        pace.observe("a", 1, began=2.0 * number, first=2.0 * number + 1)
    assert max(map(len, pace._spans.values())) <= 64


@pytest.mark.slow
async def test_unstreamed_answers_teach_the_pace_of_prompts_not_of_whole_answers():
    """An answer of 150 tokens takes the engine 2.5 s at least; its prompt takes 20 ms."""
    body = {"model": "m", "prompt": "one two three", "max_tokens": 150}
    with sim_engines("colocated") as (engine,):
        async with front(slo=Slo(2.0, 1.0), shed_ttft_factor=1.0) as f, client(f) as c:
            f.state.directory.replace([endpoint_of(engine)])
            for _ in range(3):  # the pace is known in the third round
                calls = (c.post("/v1/completions", json=body) for _ in range(12))
                answers = await asyncio.gather(*calls)
                assert {answer.status_code for answer in answers} == {200}


def test_tokens_are_estimated_at_a_quarter_of_the_characters_until_answers_show_more():
    ratio = TokensPerChar()
    assert [ratio.estimate(chars) for chars in (0, 1, 40, 400)] == [1, 1, 10, 100]
    ratio.learn(chars=63, tokens=63)
    assert ratio.estimate(400) == 100, "a short prompt is mostly the chat template"
    ratio.learn(chars=64, tokens=64)
    assert ratio.estimate(4000) == 1300, "a tenth of the way from a quarter to one"
    ratio.learn(chars=1000, tokens=0)
    assert ratio.estimate(4000) == 1170


def test_the_pace_is_known_after_twenty_prompts():
    pace = FleetPace()
    for number in range(20):
        assert pace.tokens_per_s() is None
        pace.observe("a", 50, began=float(number), first=number + 0.5)
    assert pace.tokens_per_s() == pytest.approx(100)


def test_prompts_that_took_no_time_give_no_pace():
    pace = FleetPace()
    for _ in range(30):
        pace.observe("a", 50, began=1.0, first=1.0)
    assert pace.tokens_per_s() is None
    pace.observe("a", 50, began=1.0, first=1.5)
    assert pace.tokens_per_s() > 1000


def test_an_old_pace_fades_with_the_busy_time():
    pace = FleetPace()
    for number in range(20):
        pace.observe("a", 100, began=float(number), first=number + 1.0)
    assert pace.tokens_per_s() == pytest.approx(100)
    for number in range(20, 60):
        pace.observe("a", 300, began=float(number), first=number + 1.0)
    kept = (1 - math.exp(-1)) * math.exp(-2) / (1 - math.exp(-3))
    assert pace.tokens_per_s() == pytest.approx(100 * kept + 300 * (1 - kept))


@pytest.mark.parametrize(
    ("spans", "busy_s"),
    [
        ([(0, 2), (1, 3)], 3),
        ([(0, 2), (2, 3)], 3),
        ([(2, 3), (0, 2)], 3),
        ([(0, 1), (2, 3)], 2),
        ([(0, 1), (2, 3), (1, 2)], 3),
        ([(0, 3), (1, 2)], 3),
        ([(1, 2), (0, 3)], 3),
        ([(0, 1), (4, 5), (2, 3), (0.5, 4.5)], 5),
    ],
)
def test_the_busy_time_of_a_pod_is_what_its_prompts_cover_together(spans, busy_s):
    pace = FleetPace()
    for began, first in spans:
        pace.observe("a", 0, began=began * 1e-6, first=first * 1e-6)  # too short to fade
        pace.observe("b", 0, began=began * 1e-6, first=first * 1e-6)
    for number in range(20):
        pace.observe("c", 1, began=1.0 + number, first=1.0 + number)
    assert pace.tokens_per_s() == pytest.approx(20 / (2 * busy_s * 1e-6), rel=1e-4)


@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 20)), min_size=1, max_size=64))
def test_each_second_in_which_a_pod_is_busy_counts_once(prompts):
    pace, counted_s, busy = FleetPace(), 0.0, set()
    for began, length in prompts:
        counted_s += pace._add("a", began, began + length)
        busy |= {(began + n, began + n + 1) for n in range(length)}
        assert counted_s == len(busy)
        assert pace._spans["a"] == sorted(pace._spans["a"])
        assert all(a[1] < b[0] for a, b in itertools.pairwise(pace._spans["a"]))


@pytest.mark.parametrize(("pods", "counted_s"), [(999, 10), (1000, 20)])
def test_a_thousand_pods_are_remembered(pods, counted_s):
    pace = FleetPace()
    pace.observe("a", 0, began=0.0, first=10e-6)
    for number in range(pods):
        pace.observe(f"pod-{number}", 0, began=0.0, first=0.0)
    pace.observe("a", 20, began=0.0, first=10e-6)
    assert pace.tokens_per_s() == pytest.approx(20 / (counted_s * 1e-6), rel=1e-4)


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
