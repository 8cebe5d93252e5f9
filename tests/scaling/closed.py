"""A law in closed loop with the simulated fleet, under Poisson phases at a demo's speed.

`Phase`s become a trace, and every tick keeps what the law saw, so that tests can repeat decisions.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import isnan
from random import Random
from typing import Any

from argosy_law.decision import Decision
from argosy_law.estimate.capacity import MACHINES, Machine
from argosy_law.goals import Goals, Profile
from argosy_law.observe import Observations
from argosy_law.sim.laws import LAWS
from argosy_law.sim.replay import ROLES, observe
from argosy_law.sim.traces import Trace
from argosy_law.sim.world.fleet import World
from argosy_law.sim.world.machine import ColdStart, Replica
from argosy_law.sim.world.machine import Setup as WorldSetup
from argosy_law.sim.world.scrape import Scraper
from argosy_operator.api.v1alpha1 import RoleName


@dataclass(frozen=True, slots=True)
class Setup:
    """What is simulated."""

    engine: Profile
    goals: Goals
    cold_s: float
    law: str = "goodput"
    machine: Machine = MACHINES["llama-70b-h100-tp4"]


@dataclass(frozen=True, slots=True)
class Phase:
    """Poisson arrivals; lengths are uniform within ± `spread` of their means."""

    seconds: float
    rate: float
    prompt: int
    output: int
    spread: float = 0.25


@dataclass(frozen=True, slots=True)
class Request:
    """One that has ended. Times are those of the law's clock."""

    arrived: float
    output: int
    first: float
    last: float


@dataclass(frozen=True, slots=True)
class Tick:
    """What one decision saw and answered."""

    at: float
    ready: dict[RoleName, int]
    """Replicas that serve, per role."""
    decision: Decision
    before: Any
    """The law's state before this decision."""
    observations: Observations


@dataclass(frozen=True, slots=True)
class Run:
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
    rng, begin = Random(seed), start
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
    goals, law, start = setup.goals, LAWS[setup.law], bounds[0]
    world = _world(setup, [(at - start, *tokens) for at, *tokens in due])
    scraper = Scraper(world, goals.windows, start)
    state, ticks = law.start, []
    while start + world.now < bounds[-1] + tail_s:
        scraper.advance(world.now + goals.windows.interval_s)
        seen, before, now = observe(scraper, world), state, start + world.now
        state, decision = law.decide(state, seen, goals, now)
        ready = {supply.role: supply.ready for supply in seen.supply}
        ticks.append(Tick(now, ready, decision, before, seen))
        for role in ROLES:
            world.scale(role, decision.replicas(role))
    return Run(tuple(ticks), tuple(_ended(world, start)), bounds)


def _world(setup: Setup, rows: list[tuple[float, int, int]]) -> World:
    slo = setup.goals.slo
    assert slo is not None
    requests = Trace([r[0] for r in rows], [r[1] for r in rows], [r[2] for r in rows])
    replica = Replica(setup.engine, setup.machine)
    world = World(WorldSetup(replica, slo.ttft_s, slo.tpot_s, ColdStart(setup.cold_s)), requests)
    for goal in setup.goals.roles:
        assert goal.role in ROLES
        world.scale(goal.role, goal.min, warm=True)
    return world


def _ended(world: World, start: float) -> Iterator[tuple[Request, bool]]:
    setup = world.setup
    for at, output, first, last in zip(
        world.trace.arrival, world.trace.output, world.first, world.last, strict=True
    ):
        if not isnan(last):
            met = first - at <= setup.ttft_s and last - first <= setup.tpot_s * (output - 1)
            yield Request(start + at, output, start + first, start + last), met
