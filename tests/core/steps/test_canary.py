"""A canary from the edit to its end: its pods, its clock, its verdict, and what disturbs it."""

from collections.abc import Callable

import pytest

from argosy_law.canary import FAULTS
from argosy_law.signals.samples import Series
from argosy_operator.api.model import dump
from argosy_operator.core.snapshot.snapshot import LoopMemory
from tests.core.steps.canaries import FOUR, SHARE, SLO, Played, begun, lost, serving, undecided
from tests.support.model import condition


@pytest.mark.parametrize("strategy", ["Paced", "BlueGreen"])
def test_a_canary_that_wins_is_promoted_and_the_strategy_goes_on(strategy: str) -> None:
    played = begun(strategy=strategy)
    old = played.model.fleet.status.promoted
    assert old == played.model.fleet.status.revision
    played.until("CanaryServes")
    new = played.model.fleet.status.revision
    assert played.sizes()[0] == 1
    assert played.word() == f"{new}:10"
    since = played.canary.since
    for _ in range(15):
        assert played.step() == "CanaryServes"
        assert (played.canary.since, played.canary.verdict) == (since, "Undecided")
        assert played.sizes()[0] == 1
        assert sum(pod.serving for pod in played.engines()) >= 4
        assert played.model.fleet.status.promoted == old
    for _ in range(60):
        played.step()
        if condition(played.model, "RolledOut").status == "True":
            break
    assert played.pods() == {new: 4}
    assert played.model.fleet.status.promoted == new
    assert played.word() is None
    assert condition(played.model, "RolledOut").status == "True"


def test_pairs_come_as_sets_and_capacity_does_not_drop() -> None:
    wide = {"prefill": {"replicas": {"min": 2, "max": 8}}, "decode": FOUR}
    played = begun({"mode": "disaggregated", "roles": wide})
    for _ in range(20):
        played.step()
        serving = [pod for pod in played.model.pods.values() if pod.serving]
        assert sum(pod.role == "prefill" for pod in serving) >= 2
        assert sum(pod.role == "decode" for pod in serving) >= 4
    rollout = played.model.fleet.status.rollout
    assert rollout is not None
    assert dict(rollout.new.serving) == {"prefill": 1, "decode": 1}


def test_promotion_is_written_before_it_is_acted_on() -> None:
    played = serving()
    new = played.model.fleet.status.revision
    while played.model.fleet.status.promoted != new:
        assert played.sizes()[0] == 1
        played.step()
    assert played.canary.verdict == "Won"
    assert played.sizes()[0] == 1
    assert played.word() == f"{new}:10"


def test_a_lost_canary_gives_its_place_back() -> None:
    played = lost()
    mark = played.model.fleet.status.refused
    assert mark is not None
    assert (mark.reason, mark.revision) == ("CanaryLost", played.model.snapshot().asked)
    assert "requests of it met the SLO" in mark.message
    for _ in range(30):
        played.step()
    assert played.pods() == {mark.runs: 4}
    assert played.word() is None
    assert condition(played.model, "RolledOut").reason == "RolledBack"
    assert played.model.lost == 0


def test_a_canary_that_is_lost_stays_at_its_share_if_failures_are_held() -> None:
    played = lost(onFailure="Hold")
    assert played.canary.verdict == "Lost"
    assert (
        "requests of the new revision met the SLO" in condition(played.model, "RolledOut").message
    )
    for _ in range(30):
        assert played.step() == "CanaryLost"
        assert played.sizes() == [1, 3]
    assert played.model.fleet.status.promoted != played.model.fleet.status.revision


def test_too_few_requests_at_the_end_hold_it_and_later_ones_decide() -> None:
    played = undecided()
    assert played.state == "CanaryUndecided"
    assert played.sizes() == [1, 3]
    new = played.model.fleet.status.revision
    for _ in range(20):
        played.step()
    assert played.model.fleet.status.promoted == new


HOLDS: dict[str, tuple[Callable[[Played], None], str]] = {
    "Prometheus is away": (
        lambda played: setattr(played, "problem", "PrometheusTimeout: no answer"),
        "PrometheusTimeout",
    ),
    "the gateways are of an older release": (
        lambda played: setattr(played, "unlabelled", True),
        "older releases",
    ),
    "the SLO is removed": (lambda played: played.model.edit(slo=None), "spec.slo"),
    "it is paused": (
        lambda played: played.model.edit(rollout={"canary": SHARE, "paused": True}),
        "spec.rollout.paused",
    ),
}


@pytest.mark.parametrize("what", HOLDS)
def test_without_verdicts_it_holds_and_says_why(what: str) -> None:
    disturb, says = HOLDS[what]
    played = serving()
    since, revision = played.canary.since, played.model.fleet.status.revision
    disturb(played)
    for _ in range(40):
        played.step(misses=0.0)
        assert played.sizes() == [1, 3]
        assert played.canary.since == since
    assert played.model.fleet.status.promoted != revision
    assert says in played.says
    assert says in condition(played.model, "RolledOut").message or what == "it is paused"
    played.problem, played.unlabelled = "", False
    played.model.edit(slo=SLO, rollout={"canary": SHARE})
    for _ in range(40):
        played.step()
    assert played.model.fleet.status.promoted == revision


def test_another_edit_begins_another_canary() -> None:
    played = serving()
    for _ in range(10):
        played.step()
    since = played.canary.since
    played.model.edit(engine={"image": "engine:3"})
    played.step()
    assert played.canary is None
    assert played.model.fleet.status.promoted != played.model.fleet.status.revision
    played.until("CanaryServes")
    assert played.canary.since > since
    assert played.canary.new.met == 0


def test_a_spec_that_is_put_back_needs_no_canary() -> None:
    played = serving()
    old = played.model.fleet.status.promoted
    played.model.edit(engine={"image": "engine:1"})
    for _ in range(12):
        played.step()
    assert played.pods() == {old: 4}
    assert condition(played.model, "RolledOut").status == "True"


def test_a_canary_that_is_given_up_goes_on_as_the_strategy_says() -> None:
    played = serving()
    new = played.model.fleet.status.revision
    played.model.edit(rollout={})
    for _ in range(20):
        played.step(misses=1.0)
    assert played.pods() == {new: 4}


def test_a_change_of_the_mode_has_a_canary_of_whole_sets() -> None:
    roles = {
        name: {"replicas": {"min": 2, "max": 8}} for name in ("colocated", "prefill", "decode")
    }
    played = begun({"mode": "colocated", "roles": roles})
    played.model.edit(mode="disaggregated", engine={"image": "engine:1"})
    played.until("CanaryServes")
    rollout = played.model.fleet.status.rollout
    assert rollout is not None
    assert dict(rollout.new.serving) == {"prefill": 1, "decode": 1}
    assert rollout.old[0].serving["colocated"] >= 1


def test_pods_of_one_role_that_do_not_start_begin_no_canary() -> None:
    wide = {"replicas": {"min": 2, "max": 8}}
    played = begun({"mode": "disaggregated", "roles": {"prefill": wide, "decode": wide}})
    played.model.broken_roles = frozenset({"decode"})
    for _ in range(30):
        played.step()
        assert played.canary is None
    assert played.state == "NewPodsStart"
    serving = [pod.role for pod in played.model.pods.values() if pod.serving]
    assert serving.count("decode") == 2


def test_one_set_gets_a_second_one_and_keeps_it() -> None:
    played = serving(
        roles={"roles": {"colocated": {"replicas": {"min": 1, "max": 2}}}, "mode": "colocated"}
    )
    assert played.sizes() == [1, 1]
    played.step()
    assert played.sizes() == [1, 1]


def test_growth_during_a_canary_is_of_the_old_revision() -> None:
    played = serving()
    played.model.edit(roles={"colocated": {"replicas": {"min": 8, "max": 8}}})
    for _ in range(6):
        played.step()
    assert played.sizes() == [1, 7]


@pytest.mark.parametrize("after", [0, 1, 2, 3])
def test_the_operator_may_die_at_any_write(after: int) -> None:
    """Nothing but the cluster and status is left, in every third round."""
    played = begun()
    for number in range(120):
        if number % 3 == 0:
            played.model.memory = LoopMemory()
            played.step(crash=after)
        else:
            played.step()
        if condition(played.model, "RolledOut").status == "True" and number > 20:
            break
    revision = played.model.fleet.status.revision
    assert played.model.fleet.status.promoted == revision
    assert played.pods() == {revision: 4}


def test_a_fault_that_another_pod_made_good_is_a_miss_of_the_canary() -> None:
    played = serving()
    new = played.model.fleet.status.revision
    faults: list[tuple[float, float]] = []
    real = played.series

    def with_faults() -> tuple[Series, ...]:
        faults.append((played.model.now, 10.0 * len(faults)))
        labels = {"pod": "g-0", "role": "gateway", "revision": new}
        return (*real(), Series(FAULTS, labels, tuple(faults)))

    played.series = with_faults  # type: ignore[method-assign]
    played.until("CanaryLost", steps=20)
    assert played.canary.new.missed > 0


def test_status_says_what_is_compared() -> None:
    played = serving()
    for _ in range(4):
        played.step(misses=0.2)
    found = dump(played.canary)
    assert found["new"]["met"] == 4 * found["new"]["missed"] > 0
    assert found["old"]["met"] == 9 * (found["new"]["met"] + found["new"]["missed"])
    assert found["verdict"] == "Undecided"
