"""GPUs go where they bring the most good requests: against brute force, with weights, over time."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import product

from hypothesis import example, given, settings
from hypothesis import strategies as st

from argosy_operator.core.budgets import (
    MARGIN,
    Bid,
    Budgets,
    Cap,
    Fleet,
    Room,
    Share,
    allocate,
    shares,
)

A, B, C = ("ns", "a"), ("ns", "b"), ("ns", "c")
Worth = tuple[tuple[int, float], ...]
FOREVER = float("inf")


def given_to(
    bids: Mapping[Fleet, Bid],
    budgets: Budgets,
    before: Mapping[Fleet, Share] | None = None,
    now: float = 0.0,
) -> dict[Fleet, int]:
    """GPUs of each fleet."""
    return {f: s.gpus for f, s in shares(bids, Room(budgets), before or {}, now).items()}


def good(bids: Mapping[Fleet, Bid], gpus: Mapping[Fleet, int]) -> float:
    return sum(bid.good(gpus[fleet]) for fleet, bid in bids.items())


def fits(budgets: Budgets, gpus: Mapping[Fleet, int]) -> bool:
    if budgets.fleets is not None and sum(gpus.values()) > budgets.fleets:
        return False
    return all(
        sum(n for (namespace, _), n in gpus.items() if namespace == name) <= most
        for name, most in budgets.namespaces.items()
    )


def best(bids: Mapping[Fleet, Bid], budgets: Budgets) -> float:
    """The most weighted good requests of all ways to give out GPUs that fit."""
    ways = product(*([at for at, _ in bid.worth] for bid in bids.values()))
    chosen = (dict(zip(bids, way, strict=True)) for way in ways)
    return max(good(bids, gpus) for gpus in chosen if fits(budgets, gpus))


def in_order(least: int, gains: list[float], step: int, weight: float, held: int) -> Bid:
    """A fleet whose every further `step` GPUs bring less than the ones before."""
    worth = [(least, 0.0)]
    for gain in sorted(gains, reverse=True):
        worth.append((worth[-1][0] + step, worth[-1][1] + gain))
    most = worth[-1][0]
    return Bid(least, most, min(held, most), step, tuple(worth), weight)


@st.composite
def any_worth(draw: st.DrawFn) -> Bid:
    """Good requests that grow with GPUs in any way: flat first, then all at once, for example."""
    least = draw(st.integers(0, 3))
    steps = draw(st.lists(st.tuples(st.integers(1, 5), st.floats(0.01, 9.0)), max_size=5))
    worth = [(least, draw(st.floats(0, 3)))]
    for gpus, more in steps:
        worth.append((worth[-1][0] + gpus, worth[-1][1] + more))
    weight, held = draw(st.sampled_from((50.0, 100.0, 300.0))), draw(st.integers(0, 20))
    return Bid(least, worth[-1][0], held, 1, tuple(worth), weight)


FLEETS = [("x", "a"), ("x", "b"), ("y", "c")]
GAINS = st.lists(st.floats(0.01, 9.0), max_size=5)
WEIGHTS = st.sampled_from((50.0, 100.0, 300.0))
ONE_BY_ONE = st.dictionaries(
    st.sampled_from(FLEETS),
    st.builds(in_order, st.integers(0, 3), GAINS, st.just(1), WEIGHTS, st.just(0)),
    min_size=1,
)
ANY = st.dictionaries(st.sampled_from(FLEETS), any_worth(), min_size=1)
BUDGETS = st.builds(
    Budgets,
    st.none() | st.integers(9, 30),
    st.dictionaries(st.sampled_from("xy"), st.integers(6, 16)),
)


@given(ONE_BY_ONE, BUDGETS)
@settings(deadline=None)
def test_where_each_gpu_brings_less_than_the_one_before_no_other_way_is_better(
    bids: Mapping[Fleet, Bid], budgets: Budgets
) -> None:
    """Also within budgets of namespaces: minimums fit in all of them."""
    found = given_to(bids, budgets)
    assert fits(budgets, found)
    assert good(bids, found) >= best(bids, budgets) - 1e-3


@given(ANY, BUDGETS)
@settings(deadline=None)
def test_otherwise_the_best_way_is_better_by_one_step_for_each_budget_at_most(
    bids: Mapping[Fleet, Bid], budgets: Budgets
) -> None:
    found = given_to(bids, budgets)
    assert fits(budgets, found)
    step = max(bid.good(bid.wanted) - bid.good(bid.least) for bid in bids.values())
    limits = len(budgets.namespaces) + (budgets.fleets is not None)
    assert good(bids, found) >= best(bids, budgets) - limits * step - 1e-3


@given(ANY, BUDGETS, st.integers(1, 6))
@settings(deadline=None)
def test_a_larger_budget_never_costs_a_good_request_where_gpus_go_one_by_one(
    bids: Mapping[Fleet, Bid], budgets: Budgets, more: int
) -> None:
    bids = {
        fleet: in_order(bid.least, [bid.good(at) for at, _ in bid.worth], 1, 1.0, 0)
        for fleet, bid in bids.items()
    }
    larger = replace(budgets, fleets=None if budgets.fleets is None else budgets.fleets + more)
    before, after = given_to(bids, budgets), given_to(bids, larger)
    assert good(bids, after) >= good(bids, before) - 1e-3


@given(ONE_BY_ONE, BUDGETS, st.sampled_from((1.1, 2.0, 10.0)))
@settings(deadline=None)
def test_a_larger_weight_never_takes_a_gpu_from_its_fleet(
    bids: dict[Fleet, Bid], budgets: Budgets, factor: float
) -> None:
    fleet = min(bids)
    heavier = bids | {fleet: replace(bids[fleet], weight=factor * bids[fleet].weight)}
    assert given_to(heavier, budgets)[fleet] >= given_to(bids, budgets)[fleet]


_STEEP = {
    A: Bid(0, 4, 3, 1, ((0, 0), (2, 5), (4, 14)), 50.0),
    B: Bid(0, 4, 0, 1, ((0, 0), (1, 1), (2, 2), (3, 7), (4, 16)), 50.0),
}
"""Each one's last GPUs bring the most: who has more comes first, and gets them."""


@example(_STEEP, Budgets(None, {"ns": 6}))
@given(ANY, BUDGETS)
@settings(deadline=None)
def test_what_was_given_stays_given_while_nothing_changes(
    bids: Mapping[Fleet, Bid], budgets: Budgets
) -> None:
    first = shares(bids, Room(budgets), {}, 0.0)
    assert given_to(bids, budgets, first, now=1e6) == {f: s.gpus for f, s in first.items()}


@given(ONE_BY_ONE, BUDGETS, st.data())
@settings(deadline=None)
def test_no_gpu_moves_because_gains_are_measured_a_little_differently(
    bids: Mapping[Fleet, Bid], budgets: Budgets, data: st.DataObject
) -> None:
    first = shares(bids, Room(budgets), {}, 0.0)
    noisy = {
        fleet: replace(bid, weight=bid.weight * data.draw(st.floats(1.0, 1 + MARGIN - 0.01)))
        for fleet, bid in bids.items()
    }
    assert given_to(noisy, budgets, first, now=1e6) == {f: s.gpus for f, s in first.items()}


def line(gain: float, most: int = 8, **more: float) -> Bid:
    """Each of `most` GPUs brings as many good requests."""
    worth = tuple((n, gain * n) for n in range(most + 1))
    return replace(Bid(0, most, 0, 1, worth), **more)  # type: ignore[arg-type]


def test_a_fleet_loses_gpus_only_to_a_gain_that_is_larger_by_a_fifth() -> None:
    had = {A: Share(8, -FOREVER), B: Share(0, -FOREVER)}
    keeps = {A: line(1.0), B: line(1.19)}
    loses = {A: line(1.0), B: line(1.21)}
    assert given_to(keeps, Budgets(8), had) == {A: 8, B: 0}
    assert given_to(loses, Budgets(8), had) == {A: 0, B: 8}
    assert given_to(keeps, Budgets(8)) == {A: 0, B: 8}, "without a past the larger gain has them"


def test_what_a_fleet_was_given_stays_with_it_for_its_hold() -> None:
    bids = {A: line(1.0, hold_s=300.0), B: line(9.0)}
    first = {A: Share(5, raised_at=100.0), B: Share(3, -FOREVER)}
    assert given_to(bids, Budgets(8), first, now=399.9) == {A: 5, B: 3}
    assert given_to(bids, Budgets(8), first, now=400.0) == {A: 0, B: 8}


def test_a_hold_keeps_no_more_than_is_wanted_and_no_more_than_there_is() -> None:
    held = {A: Share(5, raised_at=0.0), B: Share(5, raised_at=0.0)}
    bids = {A: line(1.0, most=3, hold_s=300.0), B: line(1.0, hold_s=300.0)}
    assert given_to(bids, Budgets(10), held) == {A: 3, B: 7}
    wider = {A: line(1.0, hold_s=300.0), B: line(1.0, hold_s=300.0)}
    assert given_to(wider, Budgets(6), held) == {A: 3, B: 3}


def test_only_a_raise_begins_a_hold() -> None:
    bids = {A: line(2.0, most=4), B: line(1.0)}
    first = shares(bids, Room(Budgets(8)), {}, now=10.0)
    assert first == {A: Share(4, 10.0), B: Share(4, 10.0)}
    later = shares(bids | {A: line(2.0, most=5)}, Room(Budgets(8)), first, now=20.0)
    assert later == {A: Share(5, 20.0), B: Share(3, 10.0)}


def test_a_fleet_that_is_new_had_what_it_holds() -> None:
    """After a restart of the operator: the shares of before are in no memory."""
    bids = {A: line(1.0, held=8), B: line(1.1)}
    assert given_to(bids, Budgets(8)) == {A: 8, B: 0}


def test_two_more_replicas_at_once_where_one_alone_gains_nothing() -> None:
    """Prefill and decode are each the other's bottleneck; the pair is still worth most per GPU."""
    pair = Bid(2, 4, 2, 1, ((2, 0.0), (4, 6.0)))
    bids = {A: pair, B: Bid(0, 2, 0, 1, ((0, 0.0), (1, 2.0), (2, 4.0)))}
    assert given_to(bids, Budgets(4)) == {A: 4, B: 0}
    assert given_to(bids, Budgets(3)) == {A: 2, B: 1}, "the pair does not fit"


def test_a_step_that_does_not_fit_leaves_its_room_to_a_smaller_one() -> None:
    bids = {A: Bid(0, 8, 0, 4, ((0, 0.0), (8, 80.0))), B: line(1.0, most=3)}
    assert given_to(bids, Budgets(7)) == {A: 4, B: 3}, "what brings nothing is shared evenly"
    partly = {A: Bid(0, 8, 0, 4, ((0, 0.0), (4, 4.0), (8, 80.0))), B: line(0.5, most=3)}
    assert given_to(partly, Budgets(7)) == {A: 4, B: 3}


def test_replicas_that_bring_nothing_are_shared_evenly_after_those_that_do() -> None:
    flat = Bid(1, 9, 1, 1, ((1, 5.0),))
    bids = {A: flat, B: flat, C: line(1.0, most=4)}
    assert given_to(bids, Budgets(10)) == {A: 3, B: 3, C: 4}
    assert given_to(bids, Budgets(5)) == {A: 1, B: 1, C: 3}


def test_a_namespace_has_its_budget_within_that_of_all() -> None:
    x, y = ("x", "a"), ("y", "b")
    bids = {x: line(9.0), y: line(1.0)}
    for budgets, caps in (
        (Budgets(None, {"x": 3}), {x: Cap(3, "namespace"), y: Cap(8, "namespace")}),
        (Budgets(10, {"x": 3}), {x: Cap(3, "namespace"), y: Cap(7, "operator")}),
        (Budgets(2, {"x": 3}), {x: Cap(2, "operator"), y: Cap(0, "operator")}),
    ):
        found, _ = allocate(bids, budgets)
        assert found[x] == caps[x], budgets
        assert found[y].gpus == caps[y].gpus, budgets
    assert not Budgets(None, {"x": 3}).cover(y)
    assert Budgets(None, {"x": 3}).cover(x)
    assert Budgets(5).cover(y)


def test_a_fleet_that_waits_for_gpus_is_told_whose_budget_they_are_of() -> None:
    x, z = ("x", "a"), ("x", "z")
    bids = {x: line(9.0, most=4), z: replace(line(1.0, most=4), held=4)}
    caps, _ = allocate(bids, Budgets(100, {"x": 4}))
    assert caps[x] == Cap(0, "namespace")
    assert caps[z] == Cap(0, "namespace"), "it drains, and x has what it gives back"
