"""What status says of a rollout while it goes on, and what a whole one does to the fleet."""

from dataclasses import replace
from typing import Any

import pytest

from argosy_operator.api.model import dump
from tests.support.model import Model, condition, converged

WIDE = {"replicas": {"min": 2, "max": 8}}
PAIRS = {"mode": "disaggregated", "roles": {"prefill": WIDE, "decode": WIDE}}
ONE = {"replicas": {"min": 1, "max": 8}}


def edited(roles: dict[str, Any] = PAIRS, **rollout: Any) -> Model:
    """A fleet at rest that was given another image."""
    model = converged(**roles, rollout=rollout)
    model.edit(engine={"image": "engine:2"})
    return model


def engines(model: Model) -> list[str]:
    return [uid for uid, pod in model.pods.items() if pod.role != "gateway"]


def most_pods(model: Model) -> int:
    """Engine pods at the worst moment until nothing is left to do."""
    most = 0
    for _ in range(120):
        model.round()
        model.tick()
        most = max(most, len(engines(model)))
        if condition(model, "RolledOut").status == "True":
            break
    return most


def test_status_has_both_revisions_their_pods_and_what_is_waited_for() -> None:
    model = edited()
    old = model.fleet.status.revision
    model.round()
    new = model.fleet.status.revision
    assert new != old
    rollout = model.fleet.status.rollout
    assert rollout is not None
    assert dump(rollout) == {
        "strategy": "Paced",
        "state": "NewPodsStart",
        "waitsFor": "1 prefill, 1 decode pods of the new revision to serve",
        "new": {
            "revision": new,
            "desired": {"prefill": 1, "decode": 1},
            "serving": {"prefill": 0, "decode": 0},
        },
        "old": [
            {
                "revision": old,
                "desired": {"prefill": 2, "decode": 2},
                "serving": {"prefill": 2, "decode": 2},
            }
        ],
    }
    assert condition(model, "RolledOut").reason == "RollingOut"
    assert "waits for 1 prefill, 1 decode pods" in condition(model, "RolledOut").message
    model.converge()
    assert model.fleet.status.rollout is None
    assert condition(model, "RolledOut").status == "True"


@pytest.mark.parametrize(
    ("rollout", "most"),
    [
        ({}, 6),
        ({"maxSurgeGPUs": 0}, 4),
        ({"maxSurgeGPUs": 1}, 4),
        ({"strategy": "BlueGreen"}, 8),
        ({"strategy": "Recreate"}, 4),
    ],
    ids=str,
)
def test_a_rollout_of_two_pairs_has_so_many_pods_at_most_and_loses_nothing(
    rollout: dict[str, Any], most: int
) -> None:
    model = edited(**rollout)
    model.requests = dict.fromkeys(engines(model), 5)
    assert most_pods(model) == most
    assert {pod.revision for pod in model.pods.values() if pod.role != "gateway"} == {
        model.fleet.status.revision
    }
    assert len(engines(model)) == 4
    assert model.lost == 0


def test_a_fleet_without_room_for_a_new_pair_is_stalled_until_the_surge_is_raised() -> None:
    model = edited({**PAIRS, "roles": {"prefill": ONE, "decode": ONE}}, maxSurgeGPUs=1)
    assert most_pods(model) == 2
    for kind in ("RolledOut", "Reconciling"):
        assert (condition(model, kind).status, condition(model, kind).reason) == (
            "False", "SurgeTooSmall",
        )  # fmt: skip
    assert condition(model, "Stalled").reason == "SurgeTooSmall"
    assert "spec.rollout.maxSurgeGPUs: 2 or more" in condition(model, "Stalled").message
    assert condition(model, "Ready").status == "True"
    model.edit(rollout={"maxSurgeGPUs": 2})
    assert most_pods(model) == 4
    assert condition(model, "RolledOut").status == "True"


@pytest.mark.parametrize(
    ("strategy", "rounds", "pods"), [("Paced", 8, 4), ("BlueGreen", 3, 8), ("Recreate", 1, 4)]
)
def test_a_rollout_that_is_held_keeps_its_pods_and_goes_on_where_it_was(
    strategy: str, rounds: int, pods: int
) -> None:
    model = edited(strategy=strategy, maxSurgeGPUs=0)
    for _ in range(rounds):
        model.round()
        model.tick()
    model.edit(rollout={"strategy": strategy, "maxSurgeGPUs": 0, "paused": True})
    for _ in range(20):
        model.round()
        model.tick()
    held = set(engines(model))
    assert len(held) == pods
    for _ in range(5):
        assert model.round().actions == ()
        model.tick()
    assert set(engines(model)) == held
    for role in ("prefill", "decode"):
        assert sum(pod.serving for pod in model.pods.values() if pod.role == role) >= 2
    assert condition(model, "RolledOut").reason == "RolloutPaused"
    model.edit(rollout={"strategy": strategy, "maxSurgeGPUs": 0})
    model.converge()
    assert condition(model, "RolledOut").status == "True"


def test_a_rollout_that_is_put_back_leaves_the_pods_that_served() -> None:
    model = converged(**PAIRS)
    before = set(engines(model))
    image = {"image": "engine:1"}
    model.edit(engine={"image": "engine:2"})
    model.broken_roles = frozenset({"prefill"})
    for _ in range(5):
        model.round()
        model.tick()
    model.broken_roles = frozenset()
    model.edit(engine=image)
    model.converge()
    assert set(engines(model)) == before


@pytest.mark.parametrize("broken", ["prefill", "decode"])
def test_a_new_revision_of_which_one_role_fails_takes_no_pod_of_the_old_one(broken: str) -> None:
    model = edited()
    old = set(engines(model))
    model.broken_roles = frozenset({broken})
    for _ in range(40):
        model.round()
        model.tick()
    assert old <= set(engines(model))
    assert len(engines(model)) == 6


def test_the_old_revision_follows_the_scaling_while_the_new_one_does_not_start() -> None:
    model = converged(**PAIRS, autoscaling={"policy": "External"})
    old = model.fleet.status.revision
    model.edit(engine={"image": "engine:2"})
    model.round()
    model.tick()
    stuck = {uid for uid, pod in model.pods.items() if pod.revision not in ("", old)}
    for number in (5, 3):
        model.scale_role("prefill", number)
        for _ in range(15):
            model.round()
            model.tick()
            for uid in stuck & model.pods.keys():
                _fails(model, uid)
        serving = [p for p in model.pods.values() if p.serving and p.revision == old]
        assert sum(pod.role == "prefill" for pod in serving) == number


def _fails(model: Model, uid: str) -> None:
    model.pods[uid] = replace(
        model.pods[uid], ready=False, started=False, phase="Pending", created_at=model.now,
        waiting=("ImagePullBackOff", "no such image"),
    )  # fmt: skip
