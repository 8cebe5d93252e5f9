"""A GPU budget between fleets: fair, never below a minimum, and never handed out twice."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy_law.decision import Decision, RoleTarget, Rule
from argosy_law.observe import RoleMetrics
from argosy_operator.core import budgets as allocation
from argosy_operator.core.budgets import Bid, Budgets, Fleet
from argosy_operator.core.plan import plan
from argosy_operator.core.snapshot import names
from argosy_operator.core.snapshot.snapshot import Snapshot
from argosy_operator.core.steps.targets import bid_of, gpus_held, gpus_targeted
from argosy_operator.shell.boards import LEARN_S, BudgetBoard
from tests.scaling.test_decide import metrics
from tests.support.model import Model, converged, fleet

A, B, C = ("ns", "a"), ("ns", "b"), ("ns", "c")


def bid(least: int, beyond: int, held: int, unit: int) -> Bid:
    return Bid(least, least + beyond, held, unit)


def allocate(bids: Mapping[Fleet, Bid], budget: int) -> dict[Fleet, int]:
    """GPUs that each fleet may hold, for one budget of all."""
    caps, _ = allocation.allocate(bids, Budgets(budget))
    return {fleet: cap.gpus for fleet, cap in caps.items()}


def cap(board: BudgetBoard, fleet: Fleet, targeted: int) -> int | None:
    found = board.cap(fleet, targeted)
    return None if found is None else found.gpus


NUMBERS = st.integers(0, 40)
BIDS = st.dictionaries(
    st.sampled_from([(namespace, name) for namespace in "xy" for name in "abcdef"]),
    st.builds(bid, NUMBERS, NUMBERS, NUMBERS, st.sampled_from((1, 2, 4, 8))),
    max_size=8,
)
BUDGETS = st.integers(0, 300)


def test_the_example_of_the_docstring() -> None:
    bids = {A: Bid(1, 8, held=6), B: Bid(1, 6, held=4)}
    assert allocate(bids, 10) == {A: 5, B: 4}
    assert allocate(bids | {A: Bid(1, 8, held=5)}, 10) == {A: 5, B: 5}


def test_gpus_that_make_no_whole_replica_go_to_a_fleet_that_can_use_them() -> None:
    bids = {A: Bid(8, 24, held=8, unit=8), B: Bid(1, 20, held=1)}
    assert allocate(bids, 20) == {A: 8, B: 12}
    assert allocate(bids, 24) == {A: 16, B: 8}


@given(BIDS, BUDGETS)
def test_no_fleet_is_capped_below_its_minimum_nor_above_its_need(
    bids: Mapping[Fleet, Bid], budget: int
) -> None:
    caps = allocate(bids, budget)
    assert caps.keys() == bids.keys()
    assert all(bid.least <= caps[key] <= bid.wanted for key, bid in bids.items())


@given(BIDS, BUDGETS)
def test_caps_sum_up_to_the_budget_at_most_where_the_minimums_do(
    bids: Mapping[Fleet, Bid], budget: int
) -> None:
    least = sum(bid.least for bid in bids.values())
    assert sum(allocate(bids, budget).values()) <= max(budget, least)


@given(BIDS, BUDGETS)
def test_growing_to_its_cap_never_takes_gpus_that_another_fleet_still_holds(
    bids: Mapping[Fleet, Bid], budget: int
) -> None:
    caps = allocate(bids, budget)
    before = sum(max(bid.held, bid.least) for bid in bids.values())
    after = sum(max(bid.held, caps[key]) for key, bid in bids.items())
    assert after <= max(budget, before)


@given(BIDS, BUDGETS, st.randoms())
def test_the_order_in_which_fleets_bid_does_not_matter(
    bids: Mapping[Fleet, Bid], budget: int, random
) -> None:
    shuffled = list(bids.items())
    random.shuffle(shuffled)
    assert allocate(dict(shuffled), budget) == allocate(bids, budget)


@given(BIDS, BUDGETS)
def test_fleets_that_follow_their_caps_come_to_fair_shares_and_stay_there(
    bids: dict[Fleet, Bid], budget: int
) -> None:
    """Fair: above its minimum, no fleet is two replicas ahead of one that wants one more."""
    for _ in range(3):
        caps = allocate(bids, budget)
        bids = {f: bid(b.least, b.wanted - b.least, caps[f], b.unit) for f, b in bids.items()}
    assert allocate(bids, budget) == caps
    beyond = {f: caps[f] - b.least for f, b in bids.items()}
    left = budget - sum(caps.values())
    for key, asks in bids.items():
        step = min(asks.unit, asks.wanted - caps[key])
        if step > 0:
            assert left < step, "what is left over is of no use to it"
            assert all(other < beyond[key] + 2 * step for other in beyond.values())


@given(BIDS)
def test_a_budget_for_all_caps_nobody(bids: Mapping[Fleet, Bid]) -> None:
    enough = sum(max(bid.wanted, bid.held) for bid in bids.values())
    assert allocate(bids, enough) == {key: bid.wanted for key, bid in bids.items()}


def test_after_a_start_every_fleet_keeps_what_it_holds_until_all_are_known() -> None:
    """Also after hours as a standby, which has no rounds."""
    now = 0.0
    board = BudgetBoard(Budgets(10), monotonic=lambda: now)
    now = 7200.0
    board.publish(A, Bid(1, 8, held=2))
    assert cap(board, A, 2) == 2
    board.publish(B, Bid(1, 8, held=2))
    now += LEARN_S
    assert (cap(board, A, 2), cap(board, B, 2)) == (5, 5)
    assert cap(board, C, 3) == 3, "a new fleet has not said yet what it wants"


def test_no_fleet_grows_after_a_start_while_first_rounds_still_bring_fleets_to_light() -> None:
    """With many fleets, or few calls a second, first rounds last longer than LEARN_S."""
    now = 0.0
    board = BudgetBoard(Budgets(10), monotonic=lambda: now)
    board.publish(A, Bid(1, 8, held=2))
    now = 0.9 * LEARN_S
    board.publish(B, Bid(1, 8, held=2))
    now = 1.5 * LEARN_S
    assert cap(board, A, 2) == 2, "C has not had its first round; it may hold the other six"
    board.publish(C, Bid(1, 8, held=6))
    now = 2.5 * LEARN_S
    assert cap(board, A, 2) == 2
    board.publish(("ns", "created"), Bid(0, 1, held=0))
    board.withdraw(C)
    assert cap(board, A, 2) == 5, "a fleet that is created later stops no other"


GPUS = {"colocated": {"replicas": {"min": 2, "max": 4}, "resources": {"gpu": 4}}}


def test_a_fleet_bids_its_minimum_its_need_and_all_that_its_pods_hold() -> None:
    model = Model(fleet(roles=GPUS))
    first = model.snapshot()
    assert gpus_held(first) == 0
    planned = model.round()
    assert bid_of(first, planned.draft) == Bid(least=8, wanted=8, held=8, unit=4)
    for _ in range(4):
        model.round()
        model.now += 1.0
    assert gpus_held(model.snapshot()) == 8


@pytest.mark.parametrize("policy", ["None", "External"])
def test_a_fleet_that_the_law_does_not_size_bids_what_it_runs(policy: str) -> None:
    model = Model(fleet(roles=GPUS, autoscaling={"policy": policy}))
    planned = model.round()
    assert bid_of(model.snapshot(), planned.draft) == Bid(least=8, wanted=8, held=8, unit=4)


SLO = {"ttft": {"target": "1s"}, "tpot": {"target": "50ms"}}


@dataclass
class Sharing(Model):
    """A fleet that shares a GPU budget with others, as `gather` and `loop` make it do."""

    key: Fleet = A
    board: BudgetBoard = field(default_factory=BudgetBoard)

    def snapshot(self) -> Snapshot:
        snapshot = super().snapshot()
        return replace(snapshot, gpu_cap=self.board.cap(self.key, gpus_targeted(snapshot)))

    def serve(self, rate: float) -> int:
        """A round at `rate` requests per second; the GPUs that the fleet holds afterwards."""
        engines = (RoleMetrics("colocated", len(self.pods)),)
        self.metrics = metrics(self.now, rate, roles=engines)
        plan = self.round()
        self.board.publish(self.key, bid_of(self.snapshot(), plan.draft))
        self.tick(1.0)
        return gpus_held(self.snapshot())


@pytest.mark.long
@pytest.mark.slow
def test_two_fleets_under_load_share_the_budget_and_never_hold_more() -> None:
    """The second one comes to load when the first has taken all. Its requests count three times as
    much, and it gets what the first had."""
    now = 0.0
    board = BudgetBoard(Budgets(12), monotonic=lambda: now)
    roles = {"colocated": {"replicas": {"min": 1, "max": 12}, "resources": {"gpu": 1}}}
    scaling = {"scaleDown": {"stabilization": "0s"}}
    first, second = (
        Sharing(
            fleet(roles=roles, slo=SLO, autoscaling=scaling | {"gpuBudget": {"weight": weight}}),
            key=key,
            board=board,
        )
        for key, weight in ((A, 100), (B, 300))
    )
    for now in range(600):
        held = first.serve(2000.0), second.serve(2000.0 if now > 150 else 0.0)
        assert sum(held) <= 12, f"at {now} s: {held}"
        if now == 150:
            assert held == (11, 1)
    assert held == (1, 11)
    assert first.lost == 0
    message = first.memory.decision.message if first.memory.decision else ""
    assert "the operator's GPU budget for all fleets leaves 1 GPUs to this one" in message


def test_while_bids_are_unknown_the_cap_is_what_was_decided_and_not_what_runs() -> None:
    """The operator died between writing the ServingRole and the Deployment, then restarts."""
    model = converged(roles=GPUS)
    role = ("ServingRole", names.serving_role("chat", "colocated"))
    model.children[role]["spec"]["replicas"] = 4
    snapshot = model.snapshot()
    assert gpus_targeted(snapshot) == 16
    assert cap(BudgetBoard(Budgets(10)), A, gpus_targeted(snapshot)) == 16


def test_a_decision_from_before_policy_external_does_not_lower_the_bid() -> None:
    model = converged(roles=GPUS)
    old = RoleTarget("colocated", 2, 2, 2, Rule.DEMAND, "")
    decision = Decision(0.0, (old,), Rule.DEMAND, "", True, True, {})
    model.memory = replace(model.memory, decision=decision, decide_at=float("inf"))
    model.edit(autoscaling={"policy": "External"})
    model.scale_role("colocated", 4)
    model.round()
    model.edit(
        autoscaling={"policy": "Goodput"},
        slo={"ttft": {"target": "1s"}, "tpot": {"target": "50ms"}},
    )
    snapshot = model.snapshot()
    assert bid_of(snapshot, plan(snapshot).draft).wanted == 16
