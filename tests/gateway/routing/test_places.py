"""Decode pods get no more sequences than keep the TPOT limit."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from argosy_gateway.routing.estimates import Places
from tests.gateway.routing.decoding import Pairs, chats

LIMIT_S = 0.050


def observe(places, sequences, tpot_s, now=0.0, uid="d0"):
    places.observe(uid, sequences=sequences, tpot_s=tpot_s, now=now)


def most(places, uid="d0"):
    """How many sequences the pod may have; None for no bound."""
    return next((n for n in range(10_000) if not places.has_room(uid, n)), None)


def test_a_pod_that_was_never_too_slow_has_no_bound():
    places = Places(LIMIT_S)
    assert most(places) is None
    for sequences in (1, 50, 200):
        observe(places, sequences, LIMIT_S)
    assert most(places) is None


def test_a_pod_that_is_too_slow_gets_fewer_and_another_one_is_not_touched():
    places = Places(LIMIT_S)
    observe(places, 100, 0.059)
    assert most(places) == 80  # 100 · 0.95 · 50 / 59 is 80.5
    assert most(places, "d1") is None


def test_a_pod_that_would_be_too_slow_without_any_sequence_is_not_bound():
    places = Places(LIMIT_S)
    observe(places, 100, 0.100)
    observe(places, 40, 0.090, now=1.0)  # by a line through both 83 ms are left without any
    assert most(places) is None


def test_after_a_stall_the_next_report_gives_the_sequences_back():
    places = Places(LIMIT_S)
    observe(places, 20, 3.0)
    assert most(places) == 10
    observe(places, 20, 0.016)
    assert most(places) == 59  # 20 · 47.5 / 16 is 59.4


@example(0.04, 0.00010000000000000002, 101)
@given(st.floats(0.001, 0.040), st.floats(0.0001, 0.01), st.integers(60, 500))
def test_the_bound_comes_to_the_number_that_keeps_the_limit_from_above(base_s, each_s, start):
    """Whatever a step takes: the pod always has as many sequences as it may."""
    places, fits = Places(LIMIT_S), (0.95 * LIMIT_S - base_s) / each_s
    sequences = start
    for now in range(200):
        observe(places, sequences, base_s + each_s * sequences, now)
        if base_s + each_s * start <= LIMIT_S:
            assert most(places) is None
            return
        assert most(places) >= min(int(fits), sequences // 2)
        sequences = min(sequences, most(places))
    assert sequences <= max(1, fits + 1e-6)  # 75 steps are 74.99999999999999 in doubles


@given(st.floats(0.051, 1.0), st.integers(2, 500))
def test_where_sequences_are_not_the_cause_the_bound_is_lifted_for_a_minute(base_s, start):
    places, sequences = Places(LIMIT_S), start
    for now in range(20):
        observe(places, sequences, base_s, now)
        if most(places) is None:
            break
        sequences = min(sequences, most(places))
    assert sequences <= start / 2
    observe(places, start, base_s, now + 59.9)
    assert most(places) is None
    observe(places, start, base_s, now + 60)
    assert most(places) is not None


# A fleet in virtual time. With 37.5 sequences a step of a pod takes 0.95 of the limit.

OUTPUT = 200
FITS = 37.5
RATE = 2 * FITS / (OUTPUT * 0.95 * LIMIT_S)
"""Requests per second of two decode pods that both have as many sequences as they may."""


def within(asked, begin, end):
    """Requests per second that met both limits, of those that came meanwhile; and the share of
    those that were served that met TPOT."""
    met = [
        one
        for one in asked
        if begin <= one.at < end
        and one.tokens == one.output
        and one.first_at - one.at <= one.ttft_limit_s
        and one.tpot_s <= LIMIT_S
    ]
    ended = [one for one in asked if one.tokens == one.output and begin <= one.first_at < end]
    kept = sum(one.tpot_s <= LIMIT_S for one in ended)
    return len(met) / (end - begin), kept / max(1, len(ended))


@pytest.mark.parametrize("gateways", [1, 2])
def test_at_ten_times_the_load_short_prompts_with_long_answers_keep_both_limits(gateways):
    found = {}
    for limit_s in (LIMIT_S, None):
        world = Pairs(tpot_limit_s=limit_s, gateways=gateways)
        asked = world.play(chats(10 * RATE, 90, prompt=100, output=OUTPUT), until=150)
        found[limit_s] = within(asked, 15, 75)
    goodput, kept = found[LIMIT_S]
    assert kept >= 0.95
    assert goodput >= 0.8 * RATE
    assert found[None] == (0, 0)
