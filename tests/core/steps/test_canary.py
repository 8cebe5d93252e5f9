"""A canary from the edit to its end: its pods, its clock, its verdict, and what disturbs it."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from argosy_law.canary import FAULTS
from argosy_law.signals.samples import VERDICTS, Series
from argosy_operator.api.model import dump
from argosy_operator.core.snapshot import names
from argosy_operator.core.snapshot.pods import Pod
from argosy_operator.core.snapshot.snapshot import LoopMemory, VerdictsRead
from tests.support.model import Model, condition, converged

SLO = {"ttft": {"target": "1s"}, "tpot": {"target": "50ms"}}
FOUR = {"replicas": {"min": 4, "max": 8}}
SHARE = {"share": "10%", "for": "5m"}
STEP_S = 15.0


@dataclass
class Played:
    """A fleet, and what its gateways counted."""

    model: Model
    counters: dict[tuple[str, str, bool], list[tuple[float, float]]] = field(default_factory=dict)
    problem: str = ""
    unlabelled: bool = False
    """The gateways are of an older release."""

    def count(self, pod: str, revision: str, missed: bool, more: float) -> None:
        samples = self.counters.setdefault((pod, revision, missed), [])
        before = samples[-1][1] if samples else 0.0
        samples.append((self.model.now, before + more))

    def series(self) -> tuple[Series, ...]:
        return tuple(
            Series(
                VERDICTS,
                {"pod": pod, "role": "gateway", "ttft": "miss" if missed else "ok", "tpot": "ok"}
                | ({} if self.unlabelled else {"revision": revision}),
                tuple(samples),
            )
            for (pod, revision, missed), samples in self.counters.items()
        )

    def step(self, misses: float = 0.0, *, requests: float = 10, crash: int | None = None) -> str:
        """Requests of 15 s end, of the new revision and nine times as many of the old one, and a
        round follows. Return the state."""
        model, rollout = self.model, self.model.fleet.status.rollout
        if rollout is not None and sum(rollout.new.serving.values()):
            for pod in ("g-0", "g-1"):
                self.count(pod, rollout.new.revision, True, requests * misses / 2)
                self.count(pod, rollout.new.revision, False, requests * (1 - misses) / 2)
                for old in rollout.old:
                    self.count(pod, old.revision, True, 0)
                    self.count(pod, old.revision, False, 9 * requests / 2)
        read = VerdictsRead(problem=self.problem) if self.problem else VerdictsRead(self.series())
        model.memory = replace(model.memory, verdicts=read)
        model.round(crash)
        for _ in range(3):
            model.tick(STEP_S / 3)
        return self.state

    @property
    def state(self) -> str:
        rollout = self.model.fleet.status.rollout
        return "" if rollout is None else rollout.state

    @property
    def says(self) -> str:
        rollout = self.model.fleet.status.rollout
        return "" if rollout is None else rollout.waits_for

    def until(self, *states: str, misses: float = 0.0, steps: int = 60) -> None:
        for _ in range(steps):
            if self.step(misses) in states:
                return
        raise AssertionError(f"{self.state}, and not {states}: {self.says}")

    def engines(self) -> list[Pod]:
        return [pod for pod in self.model.pods.values() if pod.role != names.GATEWAY_ROLE]

    def pods(self) -> dict[str, int]:
        """Engine pods by revision."""
        return dict(Counter(pod.revision for pod in self.engines()))

    def sizes(self) -> list[int]:
        """Pods of the new revision, then of the old one."""
        found, rollout = self.pods(), self.model.fleet.status.rollout
        assert rollout is not None
        return [found.get(r, 0) for r in (rollout.new.revision, rollout.old[0].revision)]

    def word(self) -> str | None:
        """What gateways are told of a canary."""
        words = json.loads(self.model.settings_of_gateways())
        return words[words.index("--canary") + 1] if "--canary" in words else None

    @property
    def canary(self) -> Any:
        rollout = self.model.fleet.status.rollout
        return None if rollout is None else rollout.canary


def begun(
    roles: dict[str, Any] | None = None, canary: dict[str, Any] = SHARE, **rollout: Any
) -> Played:
    """A fleet at rest that was given another image."""
    roles = roles or {"roles": {"colocated": FOUR}, "mode": "colocated"}
    model = converged(
        **roles, engine={"image": "engine:1"}, slo=SLO, rollout={"canary": canary, **rollout}
    )
    model.edit(engine={"image": "engine:2"})
    return Played(model)


def serving(**how: Any) -> Played:
    """Its pods serve, and the old one whose place they have is gone."""
    played = begun(**how)
    played.until("CanaryServes")
    for _ in range(4):
        played.step(requests=0)
    return played


@pytest.mark.parametrize("strategy", ["Paced", "BlueGreen"])
def test_a_canary_that_wins_is_promoted_and_the_strategy_goes_on(strategy: str) -> None:
    played = begun(strategy=strategy)
    old = played.model.fleet.status.promoted
    assert old == played.model.fleet.status.revision
    played.until("CanaryServes")
    new = played.model.fleet.status.revision
    assert played.sizes()[0] == 1
    assert played.word() == f"{new}:10"
    assert played.canary.share == "10%"
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


def test_a_canary_that_misses_the_slo_is_lost_and_stays_at_its_share() -> None:
    played = serving()
    played.until("CanaryLost", misses=0.5, steps=16)
    assert played.canary.verdict == "Lost"
    assert (
        "requests of the new revision met the SLO" in condition(played.model, "RolledOut").message
    )
    for _ in range(30):
        assert played.step() == "CanaryLost"
        assert played.sizes() == [1, 3]
    assert played.model.fleet.status.promoted != played.model.fleet.status.revision


def test_too_few_requests_at_the_end_hold_it_and_later_ones_decide() -> None:
    played = serving()
    for _ in range(30):
        played.step(requests=0.2)
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
