"""The search for the highest rate, in virtual time and against a simulated engine."""

import asyncio
import json
import math
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy_bench.ports import free_ports
from argosy_measure import goodput
from argosy_measure.bisection import Found, Judge, Probe, search
from argosy_measure.client import Answer, Request
from argosy_measure.command import MET, MISSED, NO_SERVER, WRONG
from argosy_measure.load import Length, Shape
from argosy_measure.score import Limits, Row
from argosy_measure.target import Target
from tests.support.virtual import run, timed

rates = st.floats(0.01, 1000)


@given(limit=rates, start=rates, precision=st.floats(0.01, 0.5))
@timed
async def test_the_search_ends_at_the_limit_of_a_server_wherever_it_starts(limit, start, precision):
    async def probe(rate: float) -> Probe:
        return Probe(rate, 0.9, 200 if rate <= limit else 0, 200, 1.0)

    found = await search(probe, start, precision)
    rates = [one.rate for one in found.probes]
    assert len(rates) == len(set(rates)) <= 24
    assert found.low == found.rate <= limit < found.high
    if start / 32 <= limit <= start * 2**10:
        assert found.high <= found.rate * (1 + precision) * (1 + 1e-9)


@given(st.integers(0, 10_000))
@timed
async def test_what_is_certain_holds_the_true_rate_and_what_is_not_is_said(seed):
    random, true = Random(seed), 10.0

    async def probe(rate: float) -> Probe:
        # Within the limits: 0.9 at the true rate, and less the faster.
        share = 1 / (1 + math.exp(8 * (rate / true - 1)) / 9)
        return Probe(rate, 0.9, sum(random.random() < share for _ in range(200)), 200, 1.0)

    found = await search(probe, 3.0, 0.05)
    assert found.low <= found.rate or found.undecided
    # At 0.5 and 1.6 of it the share is 0.998 and 0.07: no 200 requests are mistaken there.
    assert 0.5 * true <= found.rate <= 1.6 * true
    assert found.low < 1.6 * true
    assert found.high > 0.5 * true


@timed
async def test_a_server_that_meets_the_goal_at_no_rate_is_said_to_have_none():
    async def probe(rate: float) -> Probe:
        return Probe(rate, 0.9, 0, 50, 1.0)

    found = await search(probe, 8.0, 0.05)
    assert (found.rate, found.low, len(found.probes)) == (0, 0, 7)


@given(limit=rates, start=rates, most=rates)
@timed
async def test_no_rate_above_the_most_is_probed(limit, start, most):
    async def probe(rate: float) -> Probe:
        return Probe(rate, 0.9, 200 if rate <= limit else 0, 200, 1.0)

    found = await search(probe, start, 0.05, most)
    assert max(one.rate for one in found.probes) <= most
    if limit > most and found.high == math.inf and len(found.probes) < 24:
        assert found.rate == most


def test_a_few_requests_decide_nothing():
    assert [Probe(1.0, 0.9, 0, of, 1.0).verdict for of in (0, 1, 19, 20)] == [
        None,
        None,
        None,
        False,
    ]


LIMITS = Limits(1.0, 0.1, 0.9)


@given(st.lists(st.tuples(st.floats(0, 3), st.booleans()), min_size=1, max_size=30), st.randoms())
def test_requests_are_judged_in_the_order_of_sending_whatever_order_they_end_in(sent, random):
    judge, at_s = Judge(LIMITS, count_from_s=5.0), 0.0
    rows = []
    for number, (gap_s, meets) in enumerate(sent):
        at_s += gap_s
        judge.note_sent(Request("a", 11, at_s, str(number)), at_s)
        rows.append(Row(at_s, at_s + 1, 0.5 if meets else 1.5, 0.05, 11, id=str(number)))
    ended = random.sample(rows, len(rows) // 2)
    for row in ended:
        judge.note_ended(row)
    judge.judge(0.0)
    first = next((row for row in rows if row not in ended), None)
    counted = [row for row in rows if row.at_s >= 5 and (first is None or row.at_s < first.at_s)]
    ties = [row for row in rows if first is not None and row.at_s == first.at_s]
    assert len(counted) <= judge.of <= len(counted) + len(ties)
    # All that are still in flight when none of them can meet the limits have missed them.
    assert judge.judge(at_s + 2.1)
    assert judge.of == sum(row.at_s >= 5 for row in rows)
    assert judge.met == sum(row.at_s >= 5 and row.meets(LIMITS) for row in ended)


def served(places: int, takes_s: float) -> Callable[[Request], Awaitable[Answer]]:
    """Make a server of this many places, where each answer takes so long."""
    free = asyncio.Semaphore(places)

    async def send(request: Request) -> Answer:
        clock = asyncio.get_running_loop().time
        answer = Answer(request, clock(), status=200, tokens=2)
        async with free:
            await asyncio.sleep(takes_s)
        answer.events, answer.ended = [clock(), clock()], clock()
        return answer

    return send


@pytest.mark.parametrize(("places", "takes_s"), [(1, 0.1), (8, 0.5), (30, 0.9)])
def test_the_goodput_of_a_queue_is_found_below_its_capacity(places, takes_s):
    async def find() -> Found:
        shape = Shape(Length(1), Length(2))
        to = Target("http://x", "m", served(places, takes_s), LIMITS, 0)

        async def probe(rate: float) -> Probe:
            return await goodput.run_probe(to, shape, rate, max(60, 120 / rate), f"at {rate}")

        return await search(probe, 1.0, 0.05)

    found, capacity = run(find()), places / takes_s
    assert 0.6 * capacity <= found.rate <= 1.1 * capacity
    assert found.low <= found.rate <= found.high <= 2 * capacity
    hopeless = [probe for probe in found.probes if probe.rate > 1.5 * capacity]
    assert all(probe.seconds < 59 for probe in hopeless)
    # The queue of a rate that seems to do may still be growing.
    assert all(p.seconds > 0.9 * max(60, 120 / p.rate) for p in found.probes if p.verdict)


def command(*words: str) -> int:
    try:
        return goodput.main(list(words))
    except SystemExit as left:
        return int(left.code)


SHORT = ("--prompt-tokens", "8", "--output-tokens", "2")


def test_a_server_that_answers_no_request_in_time_has_no_goodput(engine_url, tmp_path: Path):
    out = tmp_path / "a.json"
    words = ("--ttft", "1ms", "--tpot", "1ms", "--json", str(out))
    assert command(engine_url, *SHORT, *words) == MISSED
    figures = json.loads(out.read_text())
    assert figures["goodput_per_s"] == 0


def test_a_rate_that_is_met_is_found_and_divided_by_the_gpus(engine_url, tmp_path: Path):
    out = tmp_path / "a.json"
    words = ("--ttft", "30s", "--tpot", "30s", "--start", "25", "--most", "50", "--probe", "1s")
    assert command(engine_url, *SHORT, *words, "--gpus", "4", "--json", str(out)) == MET
    figures = json.loads(out.read_text())
    assert [probe["rate"] for probe in figures["probes"]] == [25, 50]
    assert (figures["goodput_per_s"], figures["low_per_s"], figures["high_per_s"]) == (50, 50, None)
    assert figures["goodput_per_s_per_gpu"] == 12.5


def test_a_server_that_is_down_and_wrong_input_have_exits_of_their_own():
    url = f"http://127.0.0.1:{free_ports(1)[0]}"
    assert command(url, "--ttft", "1s", "--tpot", "1s") == NO_SERVER
    assert command(url, "--ttft", "1s", "--tpot", "1s", "--model", "m") == NO_SERVER
    assert command(url, "--ttft", "1", "--tpot", "1s") == WRONG
    assert command(url, "--ttft", "1s") == WRONG
