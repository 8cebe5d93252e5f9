"""The GPUs that advice names are about those that the simulator needs, in both modes."""

from random import Random

import pytest

from argosy_operator.core.scaling.advice.modes import Need, need_of
from argosy_operator.core.scaling.decide import decide
from argosy_operator.core.scaling.goals import SLO, Goals, Inputs, RoleGoal
from argosy_operator.core.scaling.observe import Observations, RoleSupply
from argosy_operator.core.scaling.signals.samples import assemble
from argosy_operator.core.scaling.state import ScalingState
from argosy_operator.sim.traces import Trace
from argosy_operator.sim.world.colocated import ColocatedWorld
from argosy_operator.sim.world.fleet import World
from argosy_operator.sim.world.machine import ColdStart, Replica, Setup
from argosy_operator.sim.world.scrape import Scraper

pytestmark = pytest.mark.slow
START = 1_700_000_000.0
LEARNT_S = 600.0
OFF = 2
"""GPUs; replicas are whole, and the sizes have margins."""


def requests(rate: float, prompt: int, answer: int) -> Trace:
    rng, trace, at = Random(1), Trace([], [], []), 0.0
    while (at := at + rng.expovariate(rate)) < 900:
        trace.arrival.append(at)
        trace.prompt.append(int(prompt * rng.uniform(0.5, 1.5)))
        trace.output.append(int(answer * rng.uniform(0.5, 1.5)))
    return trace


def setup(slo: SLO) -> Setup:
    preset = Replica.preset("llama-70b-h100-tp4")
    return Setup(preset, slo.ttft_s, slo.tpot_s, ColdStart(90.0))


def advice(world: World, slo: SLO) -> Need:
    """What both modes need, by what a fleet has learnt in ten minutes without a profile."""
    roles = tuple(RoleGoal(role, 1, 1000) for role in world.roles)
    mode = "colocated" if len(roles) == 1 else "disaggregated"
    goals = Goals(mode=mode, roles=roles, slo=slo)  # type: ignore[arg-type]
    for role in world.roles:
        world.scale(role, 4, warm=True)
    scraper, state = Scraper(world, goals.windows, START), ScalingState()
    while world.now < LEARNT_S:
        scraper.advance(world.now + goals.windows.interval_s)
        supply = tuple(
            RoleSupply(role, len(pods), sum(pod.ready_at <= world.now for pod in pods))
            for role in world.roles
            for pods in [world.wanted(role)]
        )
        seen = Observations(assemble(scraper.round(), goals.windows), supply)
        state, decision = decide(state, seen, goals, START + world.now)
        for role in world.roles:
            world.scale(role, decision.replicas(role))
    rate = decision.numbers["forecast_per_s"] * decision.numbers["margin"]
    need = need_of(state, Inputs(seen, goals, slo, START + world.now), rate)
    assert need is not None
    return need


def enough(world: World, slo: SLO, trace: Trace, **replicas: int) -> bool:
    """Whether a constant fleet has 90 % of the requests within the SLO."""
    for role in world.roles:
        world.scale(role, replicas[role], warm=True)
    world.advance(float("inf"))
    times = zip(trace.arrival, trace.output, world.first, world.last, strict=True)
    met = sum(
        first - at <= slo.ttft_s and last - first <= slo.tpot_s * (tokens - 1)
        for at, tokens, first, last in times
    )
    return met >= 0.9 * len(trace.arrival)


@pytest.mark.parametrize(
    ("slo", "load", "colocated", "disaggregated"),
    [
        (SLO(2.0, 0.035), (12.0, 1200, 200), range(14, 20), range(7, 12)),
        (SLO(3.0, 0.06), (8.0, 4000, 80), range(7, 12), range(4, 8)),
    ],
)
def test_advice_is_about_the_least_constant_fleet_of_each_mode(
    slo: SLO, load: tuple[float, int, int], colocated: range, disaggregated: range
) -> None:
    trace, of = requests(*load), setup(slo)
    one = next(n for n in colocated if enough(ColocatedWorld(of, trace), slo, trace, colocated=n))
    two = next(
        n
        for n in disaggregated
        if any(enough(World(of, trace), slo, trace, prefill=p, decode=n - p) for p in range(1, n))
    )
    assert colocated[0] < one
    assert disaggregated[0] < two
    for world in (World(of, trace), ColocatedWorld(of, trace)):
        need = advice(world, slo)
        assert need.colocated == pytest.approx(one, abs=OFF)
        assert need.disaggregated == pytest.approx(two, abs=OFF)
        assert need.disaggregated <= 0.85 * need.colocated, "as the simulator has it"
