"""The closed loop in virtual time: Poisson requests → fleet → scrape → `decide` → replicas.

Used by the tests and to try a demo's rates before a cluster runs them.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from random import Random

from argosy_operator.api.v1alpha1 import RoleName
from argosy_operator.core.scaling.decide import decide
from argosy_operator.core.scaling.decision import Decision
from argosy_operator.core.scaling.goals import Goals
from argosy_operator.core.scaling.observe import Observations, RoleSupply
from argosy_operator.core.scaling.signals.samples import Round, assemble
from argosy_operator.core.scaling.state import ScalingState
from argosy_operator.sim.fleet import Engine, Fleet, Request

ROLES: tuple[RoleName, ...] = ("prefill", "decode")


@dataclass(frozen=True, slots=True)
class Phase:
    """Poisson arrivals; lengths are uniform within ± `spread` of their means."""

    seconds: float
    rate: float
    prompt: int
    output: int
    spread: float = 0.25


@dataclass(frozen=True, slots=True)
class Tick:
    """What one tick saw and answered; `ready` are replicas that serve, per role."""

    at: float
    ready: dict[RoleName, int]
    decision: Decision
    before: ScalingState
    observations: Observations


@dataclass(frozen=True, slots=True)
class Run:
    """Ticks and finished requests; `bounds` are the phases' start times and the end."""

    ticks: tuple[Tick, ...]
    requests: tuple[tuple[Request, bool], ...]
    bounds: tuple[float, ...]

    def attainment(self, start: float, end: float) -> float:
        """Share that met the SLO of requests that arrived in [start, end)."""
        met = [ok for r, ok in self.requests if start <= r.arrived < end]
        return sum(met) / len(met) if met else 1.0

    def replicas(self, role: RoleName) -> list[tuple[float, int]]:
        return [(t.at, t.decision.replicas(role)) for t in self.ticks]

    def reversals(self, role: RoleName) -> int:
        """How often the direction of scaling changed."""
        numbers = [n for _, n in self.replicas(role)]
        moves = [b > a for a, b in pairwise(numbers) if a != b]
        return sum(a != b for a, b in pairwise(moves))


def arrivals(
    phases: tuple[Phase, ...], start: float, seed: int
) -> Iterator[tuple[float, int, int]]:
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
    engine: Engine,
    phases: tuple[Phase, ...],
    goals: Goals,
    *,
    seed: int,
    cold_s: float,
    start: float = 4096.0,
    tail_s: float = 0.0,
    gpus_per_replica: int = 4,
) -> Run:
    """Play the phases, then `tail_s` without requests. Every role starts warm at its minimum."""
    bounds = [start]
    for phase in phases:
        bounds.append(bounds[-1] + phase.seconds)
    due = arrivals(phases, start, seed)
    return play(
        engine,
        due,
        tuple(bounds),
        goals,
        cold_s=cold_s,
        tail_s=tail_s,
        gpus_per_replica=gpus_per_replica,
    )


def play(
    engine: Engine,
    due: Iterable[tuple[float, int, int]],
    bounds: tuple[float, ...],
    goals: Goals,
    *,
    cold_s: float,
    tail_s: float = 0.0,
    gpus_per_replica: int = 4,
) -> Run:
    """Play requests (arrival, prompt, output) from `bounds[0]` to the last bound + `tail_s`."""
    slo, windows = goals.slo, goals.windows
    if slo is None:
        raise ValueError("a simulated run needs goals.slo: there is nothing to size by")
    keep_s = max(windows.attainment_s, windows.lengths_s) + 2 * windows.scrape_s
    start = bounds[0]
    fleet = Fleet(engine, slo, start=start, scrape_s=windows.scrape_s, cold_s=cold_s, keep_s=keep_s)
    for goal in goals.roles:
        fleet.scale(goal.role, goal.min, warm=True)
    for request in due:
        fleet.arrive(*request)
    state, ticks, now = ScalingState(), [], start
    while now < bounds[-1] + tail_s:
        now += windows.interval_s
        fleet.advance(now)
        pods = frozenset(fleet.pods)
        metrics = assemble(Round(now, fleet.series(), 1, 1), windows, pods)
        seen = Observations(
            metrics, tuple(_supply(fleet, g.role, gpus_per_replica) for g in goals.roles)
        )
        before = state
        state, decision = decide(state, seen, goals, now)
        ready: dict[RoleName, int] = {g.role: len(fleet.ready(g.role)) for g in goals.roles}
        ticks.append(Tick(now, ready, decision, before, seen))
        for target in decision.targets:
            fleet.scale(target.role, target.replicas)
    done = tuple((r, all(fleet.met(r))) for r in fleet.finished)
    return Run(tuple(ticks), done, bounds)


def _supply(fleet: Fleet, role: RoleName, gpus: int) -> RoleSupply:
    live, ready = len(fleet.live(role)), len(fleet.ready(role))
    return RoleSupply(
        role=role,
        desired=live,
        ready=ready,
        pending=live - ready,
        draining=sum(p.draining for p in fleet.pods.values() if p.role == role),
        cold_starts_s=tuple(fleet.starts[role][-20:]),
        gpus_per_replica=gpus,
    )
