"""What a fleet costs on each GPU type, as trying all replicas would say, and what is chosen."""

from dataclasses import replace
from itertools import pairwise, product
from math import inf

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from argosy_law.estimate import capacity
from argosy_law.goals import SLO, Goals, Inputs, Profile, RoleGoal
from argosy_law.observe import Observations
from argosy_law.prices import (
    DAY_S,
    ENOUGH_SLOTS,
    FIRST_SLOTS,
    SLOT_S,
    Offer,
    Prices,
    cheapest,
    costs,
    with_costs,
)
from argosy_law.signals import lengths
from argosy_law.size.pools import BELOW_REACHABLE, Limits, Model, model_of
from argosy_law.state import Lengths, ScalingState
from argosy_operator.api.v1alpha1 import RoleName
from tests.scaling import known
from tests.scaling.known import LLAMA, START, USUAL

SLOW = Profile(20e-3, 0.3e-3, 33e-3, 0.8e-3, 3e-7, kv_tokens=100_000)
MEASURED = ScalingState(lengths=Lengths(prompt=1000.0, variation=1.5, output=200.0))
MOST = 60
"""Replicas up to which everything is tried."""


def seen(law: Goals) -> Inputs:
    have = {role.role: 1 for role in law.roles}
    metrics = known.metrics(START, 5.0, have)
    assert law.slo is not None
    return Inputs(Observations(metrics, known.supply(have)), law, law.slo, START)


def tried(offers: tuple[tuple[RoleName, Offer], ...], law: Goals, slo: SLO, rate: float) -> float:
    """The lowest cost with which these types meet the goal within the bounds, by trying all."""
    work = lengths.work(MEASURED.lengths, seen(law).metrics)
    limits = Limits(slo.ttft_s, slo.tpot_s, slo.attainment, order=law.serving.order)
    models = list[Model]()
    for role, offer in offers:
        assert offer.profile is not None
        begun = capacity.begin(role, offer.profile, slo)
        replica = capacity.replica(begun, offer.profile.kv_tokens, law.serving)
        models.append(model_of(role, replica, work, limits))
    reach = 1.0
    for model in models:
        reach *= model.reachable
    if reach < slo.attainment:
        return inf
    wanted = min(slo.attainment, reach - BELOW_REACHABLE)
    bounds = [range(role.min, min(role.max, MOST) + 1) for role in law.roles]
    met = [
        {n: model.attainment(n, rate) for n in numbers}
        for model, numbers in zip(models, bounds, strict=True)
    ]
    best = inf
    for counts in product(*bounds):
        share, cost, gpus = 1.0, 0.0, 0
        for (_, offer), of, n in zip(offers, met, counts, strict=True):
            share, cost, gpus = (
                share * of[n],
                cost + offer.gpus * offer.cost * n,
                gpus + offer.gpus * n,
            )
        if share >= wanted and (law.gpus is None or gpus <= law.gpus):
            best = min(best, cost)
    return best


def offer(name: str, gpus: int, cost: float, profile: Profile | None = LLAMA) -> Offer:
    return Offer(name, gpus, cost, profile)


BOUNDS = st.tuples(st.integers(1, 4), st.integers(4, 40))
OFFERS = st.tuples(
    st.builds(offer, st.just("a"), st.sampled_from((1, 4)), st.sampled_from((1.0, 4.1))),
    st.builds(
        offer, st.just("b"), st.sampled_from((1, 2)), st.sampled_from((0.5, 1.5)), st.just(SLOW)
    ),
)


@settings(max_examples=60, deadline=None)
@given(
    bounds=st.tuples(BOUNDS, BOUNDS),
    prefill=OFFERS,
    decode=OFFERS,
    rate=st.sampled_from((0.5, 3.0, 8.0, 20.0)),
    slo=st.sampled_from((SLO(1.0, 0.04), SLO(0.6, 0.06), SLO(0.3, 0.04), SLO(2.0, 0.034))),
)
@example(  # decode may have four: prefill makes up for it
    bounds=((1, 40), (1, 7)),
    prefill=(offer("a", 1, 1.0), offer("b", 1, 0.5, SLOW)),
    decode=(offer("a", 1, 4.1), offer("b", 1, 1.5, SLOW)),
    rate=8.0,
    slo=SLO(1.0, 0.04),
)
def test_a_choice_costs_what_trying_all_numbers_of_replicas_says(
    bounds: tuple[tuple[int, int], tuple[int, int]],
    prefill: tuple[Offer, Offer],
    decode: tuple[Offer, Offer],
    rate: float,
    slo: SLO,
) -> None:
    roles = tuple(RoleGoal(r, *within) for r, within in zip(known.POOLS, bounds, strict=True))
    law = replace(known.goals(slo), roles=roles)
    found = costs(MEASURED, seen(law), {"prefill": prefill, "decode": decode}, rate)
    assert set(found) == {("a", "a"), ("a", "b"), ("b", "a"), ("b", "b")}
    for p, d in product(prefill, decode):
        least = tried((("prefill", p), ("decode", d)), law, slo, rate)
        assert found[p.name, d.name] == pytest.approx(least, rel=1e-9)


@pytest.mark.parametrize("budget", [2, 4, 6, 1000])
def test_a_choice_that_does_not_fit_the_gpu_budget_cannot_be_had(budget: int) -> None:
    law = replace(known.goals(roles=("colocated",)), gpu_budget=budget)
    offers = (offer("a", 1, 4.0), offer("b", 2, 0.1))
    found = costs(MEASURED, seen(law), {"colocated": offers}, 3.0)
    for one in offers:
        assert found[(one.name,)] == tried((("colocated", one),), law, USUAL, 3.0)


# --- a day ----------------------------------------------------------------------------------------

A, B = ("a",), ("b",)
T0 = 100 * DAY_S


def after(slots: int, a: float = 10.0, b: float = 5.0, first: float = T0) -> Prices:
    """The prices after so many slots in which the types cost this."""
    prices = Prices()
    for i in range(slots):
        prices = with_costs(prices, {A: a, B: b}, first + i * SLOT_S)
    return prices


def test_the_first_choice_needs_an_hour_of_load() -> None:
    assert cheapest(after(FIRST_SLOTS - 1), A, frozenset(), None, T0) is None
    assert cheapest(after(FIRST_SLOTS), A, frozenset(), None, T0) == B


def test_a_later_choice_needs_a_day_of_load_and_a_day_since_the_last_one() -> None:
    full = after(ENOUGH_SLOTS)
    assert cheapest(full, A, frozenset(), T0, T0 + DAY_S - 1) is None
    assert cheapest(full, A, frozenset(), T0, T0 + DAY_S) == B
    assert cheapest(after(ENOUGH_SLOTS - 1), A, frozenset(), T0, T0 + DAY_S) is None


def test_a_type_that_cannot_do_it_is_left_and_never_chosen() -> None:
    assert cheapest(after(8, a=inf, b=99.0), A, frozenset(), None, T0) == B
    assert cheapest(after(8, a=10.0, b=inf), A, frozenset(), None, T0) is None
    assert cheapest(after(8, a=inf, b=inf), A, frozenset(), None, T0) is None


def test_the_peaks_of_a_day_do_not_count() -> None:
    """Of 96 slots the four dearest: that much of a day a type may be too small."""
    for peaks, usual in ((4, 10.0), (5, inf)):
        prices = after(96 - peaks)
        for i in range(96 - peaks, 96):
            prices = with_costs(prices, {A: inf, B: 5.0}, T0 + i * SLOT_S)
        assert len(prices.slots) == 96
        assert prices.usual[A] == usual


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.floats(1.0, 100.0), st.floats(1.0, 100.0)), min_size=1, max_size=60))
def test_a_fleet_never_changes_its_type_twice_within_a_day(
    days: list[tuple[float, float]],
) -> None:
    """Whatever the costs do, hour by hour."""
    prices, current, chosen = Prices(), A, list[float]()
    for hour, (a, b) in enumerate(days):
        for quarter in range(4):
            now = T0 + hour * 3600.0 + quarter * SLOT_S
            prices = with_costs(prices, {A: a, B: b}, now)
            best = cheapest(prices, current, frozenset(), chosen[-1] if chosen else None, now)
            if best is not None:
                current, chosen = best, [*chosen, now]
    assert all(later - earlier >= DAY_S for earlier, later in pairwise(chosen))
