"""The closed loop in virtual time: Poisson requests → fleet → scrape → law → replicas.

Tests use it, and so can anyone who wants to try a load before a cluster runs it. `Setup.law` names
the law.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Any

from argosy_operator.api.v1alpha1 import RoleName
from argosy_operator.core.scaling.decision import Decision
from argosy_operator.core.scaling.law import LAWS
from argosy_operator.core.scaling.observe import Observations, RoleSupply
from argosy_operator.core.scaling.signals.samples import Round, assemble
from argosy_operator.sim.fleet import Fleet, Request, Setup


@dataclass(frozen=True, slots=True)
class Phase:
    """Poisson arrivals; lengths are uniform within ± `spread` of their means."""

    seconds: float
    rate: float
    """Requests per second."""
    prompt: int
    """Mean tokens of a prompt."""
    output: int
    """Mean tokens of an answer."""
    spread: float = 0.25


@dataclass(frozen=True, slots=True)
class Tick:
    """What one decision saw and answered."""

    at: float
    ready: dict[RoleName, int]
    """Replicas that serve, per role."""
    decision: Decision
    before: Any
    """The law's state before this decision; its type is the law's."""
    observations: Observations


@dataclass(frozen=True, slots=True)
class Run:
    """One simulated run."""

    ticks: tuple[Tick, ...]
    requests: tuple[tuple[Request, bool], ...]
    """Finished requests, each with whether it met the SLO."""
    bounds: tuple[float, ...]
    """Start times of the phases, and the end."""

    def attainment(self, start: float, end: float) -> float:
        """Share that met the SLO of requests that arrived in [start, end)."""
        met = [ok for r, ok in self.requests if start <= r.arrived < end]
        return sum(met) / len(met) if met else 1.0

    def replicas(self, role: RoleName) -> list[tuple[float, int]]:
        """(time, decided replicas) of every tick."""
        return [(t.at, t.decision.replicas(role)) for t in self.ticks]

    def reversals(self, role: RoleName) -> int:
        """How often the direction of scaling changed."""
        numbers = [n for _, n in self.replicas(role)]
        moves = [b > a for a, b in pairwise(numbers) if a != b]
        return sum(a != b for a, b in pairwise(moves))


def arrivals(
    phases: tuple[Phase, ...], start: float, seed: int
) -> Iterator[tuple[float, int, int]]:
    """(time, prompt tokens, output tokens) of each request; equal seeds give equal requests."""
    rng, begin = Random(seed), start  # noqa: S311 (a simulation, not a secret)
    for phase in phases:
        at = begin
        while True:
            at += rng.expovariate(phase.rate) if phase.rate > 0 else phase.seconds
            if at >= begin + phase.seconds:
                break
            prompt = phase.prompt * rng.uniform(1 - phase.spread, 1 + phase.spread)
            output = phase.output * rng.uniform(1 - phase.spread, 1 + phase.spread)
            yield at, round(prompt), max(round(output), 1)
        begin += phase.seconds


def run(
    setup: Setup,
    phases: tuple[Phase, ...],
    *,
    seed: int,
    start: float = 4096.0,
    tail_s: float = 0.0,
) -> Run:
    """Play the phases, then `tail_s` without requests. Every role starts warm at its minimum."""
    bounds = [start]
    for phase in phases:
        bounds.append(bounds[-1] + phase.seconds)
    return play(setup, arrivals(phases, start, seed), tuple(bounds), tail_s=tail_s)


def play(
    setup: Setup,
    due: Iterable[tuple[float, int, int]],
    bounds: tuple[float, ...],
    *,
    tail_s: float = 0.0,
) -> Run:
    """Play requests (arrival, prompt, output) from `bounds[0]` to the last bound + `tail_s`."""
    goals, law, now = setup.goals, LAWS[setup.law], bounds[0]
    fleet = Fleet(setup, now)
    for goal in goals.roles:
        fleet.scale(goal.role, goal.min, warm=True)
    for request in due:
        fleet.arrive(*request)
    state, ticks = law.start, []
    while now < bounds[-1] + tail_s:
        now += goals.windows.interval_s
        fleet.advance(now)
        seen = _observe(fleet)
        before = state
        state, decision = law.decide(state, seen, goals, now)
        ready: dict[RoleName, int] = {g.role: len(fleet.ready(g.role)) for g in goals.roles}
        ticks.append(Tick(now, ready, decision, before, seen))
        for target in decision.targets:
            fleet.scale(target.role, target.replicas)
    done = tuple((request, all(fleet.met(request))) for request in fleet.finished)
    return Run(tuple(ticks), done, bounds)


def _observe(fleet: Fleet) -> Observations:
    """What the operator would see now: one gateway's and the engines' samples, and the pods."""
    goals, pods = fleet.setup.goals, frozenset(fleet.pods)
    metrics = assemble(Round(fleet.now, fleet.series(), 1, 1), goals.windows, pods)
    return Observations(metrics, tuple(_supply(fleet, goal.role) for goal in goals.roles))


def _supply(fleet: Fleet, role: RoleName) -> RoleSupply:
    live, ready = len(fleet.live(role)), len(fleet.ready(role))
    return RoleSupply(
        role=role,
        desired=live,
        ready=ready,
        pending=live - ready,
        draining=sum(pod.draining for pod in fleet.pods.values() if pod.role == role),
        cold_starts_s=tuple(fleet.starts[role][-20:]),
        gpus_per_replica=fleet.setup.gpus_per_replica,
    )
