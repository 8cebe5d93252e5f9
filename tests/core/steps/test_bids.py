"""What a fleet asks of the GPU budget that fleets share, and which GPUs it holds."""

from dataclasses import replace
from typing import Any

import pytest

from argosy_law.decision import Decision, RoleTarget, Rule
from argosy_operator.api.v1alpha1 import RoleName
from argosy_operator.core.budgets import Bid
from argosy_operator.core.plan import plan
from argosy_operator.core.snapshot.pods import Pod
from argosy_operator.core.steps.targets import bid_of, gpus_held
from tests.support.model import Model, fleet

PAIR: dict[str, Any] = {
    "prefill": {"replicas": {"min": 1, "max": 4}, "resources": {"gpu": 2}},
    "decode": {"replicas": {"min": 3, "max": 6}, "resources": {"gpu": 4}},
}

SLO = {"ttft": {"target": "1s"}, "tpot": {"target": "50ms"}}


def created(**spec: Any) -> Model:
    """One prefill replica of two GPUs, three decode replicas of four; no pod yet."""
    model = Model(fleet(mode="disaggregated", roles=PAIR, **spec))
    model.round()
    return model


PODS: dict[str, tuple[list[dict[str, Any]], int]] = {
    "replicas without a pod count as the spec says": ([], 14),
    "a pod takes the place of its replica": ([{}], 14),
    "a pod beyond its replicas counts, too": ([{}] * 4, 18),
    "a pod of an old revision counts beside the replicas": ([{"revision": "old"}], 18),
    "an old pod counts what it requests, if that is more": (
        [{"revision": "old", "gpus": 8}], 22,
    ),
    "a pod of a role that the mode no longer uses counts what it requests": (
        [{"revision": "old", "role": "colocated", "gpus": 8}], 22,
    ),
    "a pod that drains or is being deleted holds its GPUs": (
        [{"revision": "old", "draining": True}, {"revision": "old", "terminating": True}], 22,
    ),
    "a pod that failed holds none": ([{"revision": "old", "phase": "Failed"}], 14),
    "a pod that has ended holds none": ([{"revision": "old", "phase": "Succeeded"}], 14),
    "a gateway holds none": ([{"role": "gateway", "revision": "", "gpus": 1}], 14),
}  # fmt: skip


@pytest.mark.parametrize(("pods", "gpus"), PODS.values(), ids=PODS)
def test_the_gpus_that_a_fleet_holds(pods: list[dict[str, Any]], gpus: int) -> None:
    snapshot = created().snapshot()
    seen = tuple(
        Pod(str(n), str(n), **{"role": "decode", "revision": snapshot.revision, **looks})
        for n, looks in enumerate(pods)
    )
    assert gpus_held(replace(snapshot, pods=seen)) == gpus


def test_targets_that_are_not_written_yet_are_held_already() -> None:
    snapshot = created().snapshot()
    assert gpus_held(snapshot, {"prefill": 2, "decode": 3}) == 16
    assert gpus_held(snapshot, {"prefill": 1, "decode": 1}) == 14, "pods still have to leave"


def test_under_policy_external_it_bids_what_its_serving_roles_ask_for() -> None:
    model = created(autoscaling={"policy": "External"})
    model.scale_role("decode", 5)
    snapshot = model.snapshot()
    assert bid_of(snapshot, plan(snapshot).draft) == Bid(least=22, wanted=22, held=22, unit=2)


def decided(
    model: Model,
    prefill: int = 1,
    decode: int | None = 3,
    runs: dict[RoleName, int] | None = None,
    **more: Any,
) -> Bid:
    """The bid once the law has decided on so many replicas, of which it may have 1 and 3.

    `runs`: targets of the round, if they are others."""
    snapshot = model.snapshot()
    draft = plan(snapshot).draft
    draft = replace(draft, targets=runs or draft.targets)
    targets = [RoleTarget("prefill", 1, 1, 1, Rule.GPU_BUDGET, "", over_budget=prefill - 1)]
    if decode is not None:
        over = max(0, decode - 3)
        left = decode - over
        targets.append(RoleTarget("decode", 3, left, 3, Rule.GPU_BUDGET, "", over_budget=over))
    decision = Decision(0.0, tuple(targets), Rule.DEMAND, "", True, True, {})
    decision = replace(decision, **more)
    return bid_of(snapshot, replace(draft, memory=replace(draft.memory, decision=decision)))


@pytest.mark.parametrize(("most", "wanted"), [(20, 20), (30, 22), (14, 14)])
def test_a_fleet_bids_at_most_its_own_budget(most: int, wanted: int) -> None:
    model = created(slo=SLO, autoscaling={"gpuBudget": {"max": most}})
    assert decided(model, decode=5).wanted == wanted


def test_a_bid_says_what_gpus_are_worth_for_how_long_they_stay_and_what_a_request_counts() -> None:
    cold = {"gpuBudget": {"weight": 250}, "coldStart": "200s"}
    bid = decided(created(slo=SLO, autoscaling=cold), decode=4, worth=((14, 3.0), (18, 5.0)))
    assert bid == Bid(14, 18, 14, 2, ((14, 3.0), (18, 5.0)), weight=250.0, hold_s=300.0)
    assert (bid.good(13), bid.good(14), bid.good(17), bid.good(99)) == (0, 750, 750, 1250)
    held = {"scaleDown": {"stabilization": "500s"}}
    assert decided(created(slo=SLO, autoscaling=held)).hold_s == 500.0


def test_a_fleet_whose_metrics_are_away_gives_nothing_to_others() -> None:
    """The law keeps its replicas, so that a smaller share would only be taken when it is back."""
    model = created(slo=SLO)
    unmeasured = {"rule": Rule.METRICS_UNAVAILABLE, "active": False, "worth": ((14, 3.0),)}
    runs: dict[RoleName, int] = {"prefill": 1, "decode": 4}
    bid = decided(model, decode=5, runs=runs, **unmeasured)
    assert bid == Bid(least=18, wanted=18, held=18, unit=2)


def test_a_fleet_that_is_being_deleted_wants_nothing_and_holds_its_pods() -> None:
    model = created()
    meta = {"deletion_timestamp": "2026-01-01T00:00:00Z"}
    metadata = model.fleet.metadata.model_copy(update=meta)
    model.fleet = model.fleet.model_copy(update={"metadata": metadata})
    snapshot = model.snapshot()
    assert bid_of(snapshot, plan(snapshot).draft) == Bid(least=0, wanted=0, held=14)


@pytest.mark.parametrize(
    ("prefill", "decode", "wanted"),
    [
        pytest.param(1, 6, 26, id="the law wants more decode than the budgets leave"),
        pytest.param(4, 3, 20, id="the law wants more prefill"),
        pytest.param(1, 0, 14, id="never less than the targets"),
        pytest.param(1, None, 14, id="a decision about other roles does not count"),
    ],
)
def test_under_the_law_a_fleet_bids_what_its_last_decision_wants(
    prefill: int, decode: int | None, wanted: int
) -> None:
    model = created(slo=SLO)
    assert decided(model, prefill, decode).wanted == wanted
    snapshot = model.snapshot()
    draft = plan(snapshot).draft
    without = replace(draft, memory=replace(draft.memory, decision=None))
    assert bid_of(snapshot, without).wanted == 14
