"""One trace under one policy: requests → world → scrapes → law → replicas, in virtual time.

`cli` calls `replay`; `figures` reads the `Run` that comes out. A law sees what the operator would
see, through the same `samples.assemble`, and `law.decide` is the operator's own function.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from argosy_operator.core.scaling.decision import Decision
from argosy_operator.core.scaling.estimate.cold_start import NEWEST
from argosy_operator.core.scaling.goals import Goals
from argosy_operator.core.scaling.law import Law
from argosy_operator.core.scaling.observe import Observations, RoleSupply
from argosy_operator.core.scaling.signals.samples import assemble
from argosy_operator.sim.traces import Trace
from argosy_operator.sim.world.fleet import PoolName, World
from argosy_operator.sim.world.machine import Setup
from argosy_operator.sim.world.scrape import Scraper

EPOCH = 1_700_000_000.0
"""When the trace starts on the law's clock, in seconds."""
ROLES: tuple[PoolName, ...] = ("prefill", "decode")

Replicas = Mapping[PoolName, int]


@dataclass(frozen=True, slots=True)
class Run:
    """A world at its end, and how its replicas were changed on the way."""

    world: World
    moves: tuple[tuple[float, PoolName, int], ...] = ()
    """(time, role, replicas added) of every change after the start; negative: removed."""
    decisions: tuple[Decision, ...] = ()
    """What the law decided, in order. Empty without a law."""


def static(setup: Setup, trace: Trace, replicas: Replicas) -> Run:
    """A constant fleet: no law runs, and nothing is scraped."""
    world = started(setup, trace, replicas)
    world.advance(float("inf"))
    return Run(world)


def replay(setup: Setup, trace: Trace, law: Law[Any], goals: Goals, start: Replicas) -> Run:
    """A law decides every `goals.windows.interval_s`, until every request has ended.

    While the metrics are out it is not asked, and replicas stay as they are, as in the operator.
    """
    world = started(setup, trace, start)
    scraper = Scraper(world, goals.windows, EPOCH)
    state = law.start
    moves: list[tuple[float, PoolName, int]] = []
    decisions: list[Decision] = []
    tick = 0
    while not world.finished:
        tick += 1
        scraper.advance(tick * goals.windows.interval_s)
        if not scraper.answers:
            continue
        state, decision = law.decide(
            state, observe(scraper, world, goals), goals, EPOCH + world.now
        )
        decisions.append(decision)
        for role in ROLES:
            wanted = decision.replicas(role)
            change = wanted - len(world.wanted(role))
            if change:
                world.scale(role, wanted)
                moves.append((world.now, role, change))
    return Run(world, tuple(moves), tuple(decisions))


def started(setup: Setup, trace: Trace, replicas: Replicas) -> World:
    """A fleet whose replicas are ready, before the first request."""
    world = World(setup, trace)
    for role in ROLES:
        world.scale(role, replicas[role], warm=True)
    return world


def observe(scraper: Scraper, world: World, goals: Goals) -> Observations:
    """What the operator would see now: samples of the gateway and the engines, and the pods."""
    pods = frozenset(pod.name for role in ROLES for pod in world.living(role))
    metrics = assemble(scraper.round(), goals.windows, pods)
    return Observations(metrics, tuple(_supply(world, role) for role in ROLES))


def _supply(world: World, role: PoolName) -> RoleSupply:
    wanted = world.wanted(role)
    ready = sum(pod.ready_at <= world.now for pod in wanted)
    starts = [
        pod.ready_at - pod.created_at
        for pod in world.pods[role]
        if pod.created_at > 0 and pod.ready_at <= world.now and pod.ready_at < pod.gone_at
    ]
    return RoleSupply(
        role=role,
        desired=len(wanted),
        ready=ready,
        pending=len(wanted) - ready,
        draining=len(world.living(role)) - len(wanted),
        cold_starts_s=tuple(starts[-NEWEST:]),
        gpus_per_replica=world.setup.replica.machine.gpus,
    )
