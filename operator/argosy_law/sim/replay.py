"""One trace under one policy: requests → world → scrapes → law → replicas, in virtual time.

`cli` calls `replay`; `figures` reads the `Run` that comes out. A law sees what the operator would
see, through the same `samples.assemble`, and the operator's law is its own function `decide`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil, inf
from typing import Any

from argosy_law.decision import Decision
from argosy_law.goals import NEWEST, Goals
from argosy_law.observe import Front, Observations, RoleSupply
from argosy_law.pace import schedules
from argosy_law.pace.schedules import Window
from argosy_law.sim.laws.law import Goodput, Law
from argosy_law.sim.rollout import Plan, Rollout
from argosy_law.sim.traces import Trace
from argosy_law.sim.world.colocated import ColocatedWorld
from argosy_law.sim.world.fleet import PoolName, World
from argosy_law.sim.world.machine import Setup
from argosy_law.sim.world.scrape import Scraper

EPOCH = 1_700_000_000.0
"""When the trace starts on the law's clock, in seconds."""
MONDAY = 4 * 86_400.0
"""When it starts on the clock of schedules: a Monday at 0:00 UTC."""
ROLES: tuple[PoolName, ...] = ("prefill", "decode")
"""Of a disaggregated fleet."""
TOGETHER: tuple[PoolName, ...] = ("colocated",)
"""Of a colocated fleet."""
LISTEN_S = 1.0
"""How often the operator asks the gateways of a fleet at zero."""

Replicas = Mapping[PoolName, int]


@dataclass(frozen=True, slots=True)
class Run:
    """A world at its end, and how its replicas were changed on the way."""

    world: World
    moves: tuple[tuple[float, PoolName, int], ...] = ()
    """(time, role, replicas added) of every change after the start; negative: removed."""
    decisions: tuple[Decision, ...] = ()
    """What the law decided, in order. Empty without a law."""
    rollout: Rollout | None = None
    """None: no new revision was asked for."""


def static(setup: Setup, trace: Trace, replicas: Replicas, plan: Plan | None = None) -> Run:
    """A constant fleet: no law runs, and nothing is scraped. `plan`: a rollout in it."""
    world = started(setup, trace, replicas)
    rollout = None if plan is None else Rollout(plan)
    while rollout is not None and rollout.next_at(world) < inf and not world.finished:
        world.advance(rollout.next_at(world))
        rollout.play(world, replicas)
    world.advance(inf)
    return Run(world, rollout=rollout)


def replay(
    setup: Setup,
    trace: Trace,
    law: Law[Any],
    goals: Goals,
    start: Replicas,
    windows: tuple[Window, ...] = (),
    plan: Plan | None = None,
) -> Run:
    """A law decides every `goals.windows.interval_s`, until every request has ended. `plan`: the
    rollout of a new revision meanwhile.

    `windows` are the schedules that bound it. While the metrics are out, a law of the operator
    has what gateways say, if these are asked; any other is not asked, and replicas stay as they
    are. Whether a fleet goes to zero or starts from there needs no metrics; at zero, a request that
    comes makes a decision due at once.
    """
    world = started(setup, trace, start)
    scraper = Scraper(world, goals.windows, EPOCH)
    hears = isinstance(law, Goodput) and setup.ask_gateways != "no"
    hears = hears or goals.zero_after_s is not None
    state = law.start
    moves: list[tuple[float, PoolName, int]] = []
    decisions: list[Decision] = []
    wanted, rollout = dict(start), None if plan is None else Rollout(plan)
    tick = 1
    while not world.finished:
        at = tick * goals.windows.interval_s
        if goals.zero_after_s is not None:
            at = min(at, _next_hearing(world))
        if rollout is not None and (due := rollout.next_at(world)) < at:
            scraper.advance(due)
            rollout.play(world, wanted)
            continue
        tick += at == tick * goals.windows.interval_s
        scraper.advance(at)
        if not scraper.answers and not hears:
            continue
        seen = observe(scraper, world, wanted)
        if goals.zero_after_s is not None:
            seen = replace(seen, front=_front(world))
        ahead = schedules.ahead(seen.supply, goals.windows)
        bounded = schedules.in_force(goals, windows, MONDAY + world.now, ahead)
        state, decision = law.decide(state, seen, bounded, EPOCH + world.now)
        decisions.append(decision)
        if goals.serving.auto_first_token and decision.holds_first_tokens is not None:
            world.hold_first_tokens(decision.holds_first_tokens)
        before, wanted = wanted, {role: decision.replicas(role) for role in world.roles}
        if rollout is None or not rollout.play(world, wanted):
            world.resize(wanted)
        changes = ((role, wanted[role] - before[role]) for role in world.roles)
        moves += ((world.now, role, change) for role, change in changes if change)
    return Run(world, tuple(moves), tuple(decisions), rollout)


def _front(world: World) -> Front:
    """What the gateway says of itself now."""
    in_flight = world.arrived - world.ended
    return Front(in_flight, 0.0 if in_flight else world.now - world.active_at)


def _next_hearing(world: World) -> float:
    """When the operator hears of the next request, if the fleet is at zero; inf if it is not."""
    arrivals = world.trace.arrival
    if world.arrived == len(arrivals) or any(world.wanted(role) for role in world.roles):
        return inf
    return LISTEN_S * ceil(arrivals[world.arrived] / LISTEN_S)


def started(setup: Setup, trace: Trace, replicas: Replicas) -> World:
    """A fleet whose replicas are ready, before the first request; colocated if they are."""
    world = (ColocatedWorld if "colocated" in replicas else World)(setup, trace)
    for role in world.roles:
        world.scale(role, replicas[role], warm=True)
    return world


def observe(scraper: Scraper, world: World, asked: Replicas | None = None) -> Observations:
    """What the operator would see now: samples of the gateway and the engines, and the pods.

    `asked`: the pods that a rollout divides between its revisions; None: there is none.
    """
    pods = frozenset(pod.name for role in world.roles for pod in world.living(role))
    supply = tuple(_supply(world, role, asked if world.rolling else None) for role in world.roles)
    return Observations(scraper.metrics(pods), supply)


def _supply(world: World, role: PoolName, asked: Replicas | None) -> RoleSupply:
    """Pods that were there before the trace have started once, too, and the operator knows it."""
    wanted, desired = world.wanted(role), world.counted(role) if asked is None else asked[role]
    ready = sum(pod.ready_at <= world.now for pod in wanted)
    starts = [
        pod.ready_at - pod.created_at if pod.created_at > 0 else world.setup.cold.median_s
        for pod in world.pods[role]
        if pod.ready_at <= world.now and pod.ready_at < pod.gone_at and not pod.flipped
    ]
    serves = all(
        any(pod.revision == world.newest and pod.ready_at <= world.now for pod in world.wanted(one))
        for one in world.roles
    )
    old = {pod.revision for pod in wanted if pod.revision != world.newest}
    learnt = world.newest if serves or not old else max(old)
    return RoleSupply(
        role=role,
        desired=desired,
        ready=ready,
        pending=max(desired - ready, 0),
        draining=len(world.living(role)) - len(wanted),
        cold_starts_s=tuple(starts[-NEWEST:]),
        gpus_per_replica=world.setup.replica.machine.gpus,
        rolling=asked is not None,
        mixed=asked is not None and serves,
        revision=str(learnt),
        old_pods=tuple(p.name for p in world.living(role) if p.revision != learnt),
    )
