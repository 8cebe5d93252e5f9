"""The Knative pod autoscaler (KPA): concurrency over a stable and a panic window.

Source: Knative Serving at 98e5ef9, pkg/autoscaler/scaling/autoscaler.go (Scale),
pkg/reconciler/autoscaling/resources/target.go and config/core/configmaps/autoscaler.yaml. There it
ticks every 2 s on samples of each second; here it decides in every round, on samples as old as a
scrape, so that its panic window of 6 s is the newest sample.

Concurrency of a prefill pod is what it has queued over the mean prompt, of others what runs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import ceil, floor

from argosy_operator.api.v1alpha1 import RoleName
from argosy_operator.core.scaling.decision import Decision
from argosy_operator.core.scaling.goals import Goals
from argosy_operator.core.scaling.observe import Observations
from argosy_operator.core.scaling.rivals import answer, seen
from argosy_operator.core.scaling.signals import validity

UTILIZATION = 0.7
"""container-concurrency-target-percentage: the share of the target that is aimed at."""
STABLE_S = 60.0
"""stable-window."""
PANIC_S = 6.0
"""panic-window-percentage, 10 %, of the stable window."""
PANIC_THRESHOLD = 2.0
"""panic-threshold-percentage, 200 %: panic once this many times the ready pods are wanted."""
MAX_SCALE_UP_RATE, MAX_SCALE_DOWN_RATE = 1000.0, 2.0
"""max-scale-up-rate and max-scale-down-rate: of the ready pods, in one tick."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Requests in flight in all pods of a role at one time."""

    at: float
    total: float


@dataclass(frozen=True, slots=True)
class Panic:
    """Whether a role panics, and what it may not fall below while it does."""

    since: float | None = None
    """When more than the threshold was last wanted; None: it does not panic."""
    most: int = 0
    """The largest number of pods since it panics."""


@dataclass(frozen=True, slots=True)
class KpaRole:
    """What is remembered of one role."""

    samples: tuple[Sample, ...] = ()
    """Those of the stable window, oldest first."""
    panic: Panic = field(default_factory=Panic)


KpaState = Mapping[RoleName, KpaRole]


@dataclass(frozen=True, slots=True)
class Knative:
    """Implements `law.Law`. Knative's default target is 100 requests per pod."""

    prefill: float = 100.0
    """container-concurrency-target of prefill pods."""
    decode: float = 100.0
    """The same of decode and colocated pods."""
    start: KpaState = field(default_factory=dict, init=False)

    def decide(
        self, state: KpaState, observations: Observations, goals: Goals, now: float
    ) -> tuple[KpaState, Decision]:
        metrics = validity.validated(observations.metrics)
        after, answers = dict(state), []
        for supply in observations.supply:
            total = seen.in_flight(metrics.role(supply.role), metrics)
            if total is None:
                answers.append(answer.unknown(supply, goals, "concurrency"))
                continue
            before = state.get(supply.role) or KpaRole(panic=begin(supply.ready, now))
            kept = tuple(s for s in before.samples if s.at > now - STABLE_S)
            samples = (*kept, Sample(now, total))
            target = UTILIZATION * (self.prefill if supply.role == "prefill" else self.decode)
            panic, wanted = recommendation(
                before.panic, supply.ready, stable(samples), newest(samples, now), target, now
            )
            after[supply.role] = KpaRole(samples, panic)
            mode = "stable" if panic.since is None else "panic"
            why = f"{wanted} wanted at {target:g} requests per pod, {mode} mode"
            answers.append(answer.target(supply, goals, why, wanted))
        return after, answer.decision(now, answers)


def stable(samples: tuple[Sample, ...]) -> float:
    """Mean concurrency of the stable window."""
    return sum(s.total for s in samples) / len(samples)


def newest(samples: tuple[Sample, ...], now: float) -> float:
    """Mean concurrency of the panic window."""
    return stable(tuple(s for s in samples if s.at > now - PANIC_S))


def begin(ready: int, now: float) -> Panic:
    """A new autoscaler of more than one pod panics, so that it removes none before it knows."""
    return Panic(now if ready > 1 else None, ready)


def recommendation(
    panic: Panic, ready: int, stable: float, newest: float, target: float, now: float
) -> tuple[Panic, int]:
    """Pods for the mean concurrency of the stable window, or of the panic window if that panics.

    At a target of 70 and two ready pods, 300 requests want ceil(300/70) = 5 pods: 5/2 ≥ 2, panic.
    It lasts until the threshold has not been reached for a stable window, and removes no pod.
    """
    pods = max(ready, 1)
    most, least = ceil(MAX_SCALE_UP_RATE * pods), floor(pods / MAX_SCALE_DOWN_RATE)
    for_stable, for_newest = ceil(stable / target), ceil(newest / target)
    over = for_newest / pods >= PANIC_THRESHOLD
    if over:
        panic = replace(panic, since=now)
    elif panic.since is not None and panic.since + STABLE_S < now:
        panic = Panic()
    wanted = min(max(for_stable, least), most)
    if panic.since is None:
        return panic, wanted
    wanted = max(wanted, min(max(for_newest, least), most), panic.most)
    return replace(panic, most=wanted), wanted
