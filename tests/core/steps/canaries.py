"""Canaries in which requests end, for tests of what the operator makes of them."""

import json
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

from argosy_law.signals.samples import VERDICTS, Series
from argosy_operator.core.snapshot import names
from argosy_operator.core.snapshot.pods import Pod
from argosy_operator.core.snapshot.snapshot import VerdictsRead
from tests.support.model import Model, converged

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


def undecided() -> Played:
    """It has ended with too few requests to see."""
    played = serving()
    for _ in range(30):
        played.step(requests=0.2)
    return played


def lost(**rollout: Any) -> Played:
    """Half of its requests miss."""
    played = serving(**rollout)
    played.until("CanaryLost", misses=0.5, steps=16)
    return played
