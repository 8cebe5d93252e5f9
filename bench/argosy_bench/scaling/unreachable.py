"""How soon the law says that no number of replicas meets an SLO, and that it never says so falsely.

Simulated fleets of both modes under targets that a request alone misses, wholly, in a part of the
requests, or from a change of the prompts on; and under a load that leaps up, where a queue and the
sequences in flight bind the number while the SLO is within reach.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from random import Random

from argosy_law.decide import decide
from argosy_law.goals import SLO, Goals, RoleGoal
from argosy_law.observe import Observations, RoleSupply
from argosy_law.signals.samples import assemble
from argosy_law.sim.traces import Trace
from argosy_law.sim.world.colocated import ColocatedWorld
from argosy_law.sim.world.fleet import World
from argosy_law.sim.world.machine import ColdStart, Replica, Setup
from argosy_law.sim.world.scrape import Scraper
from argosy_law.state import ScalingState
from local.figures import Figure, Figures, Target

FIGURES = (
    Figure("unreachable_verdict_s", "s", Target("<=", 300), digits=0),
    Figure("false_unreachable_verdicts", "", Target("==", 0), digits=0),
    Figure("unreachable_open_s", "s", Target("<=", 60), digits=0),
)
"""Seconds from the first request that cannot meet the SLO, the worst of all cases; rounds of the
control that said so; and the requests that are open at the end of a case, in seconds of arrivals:
they grow without end where the load is not carried."""

START = 1_700_000_000.0
SHORT, LONG = 1000, 12_000
"""Tokens of prompts: 0.11 s and 1.4 s of the preset's prefill."""


@dataclass(frozen=True, slots=True)
class Case:
    """One load under one SLO."""

    name: str
    slo: SLO
    rates: tuple[float, float] = (6.0, 6.0)
    """Requests per second, in the first ten minutes and in the next."""
    long: tuple[float, float] = (0.0, 0.0)
    """Share of the prompts that are long, likewise."""
    since_s: float | None = 0.0
    """From when on the SLO is out of reach; None: it never is."""


CASES = (
    Case("no prompt meets TTFT", SLO(0.05, 0.06)),
    Case("no answer meets TPOT", SLO(1.0, 0.02)),
    Case("a fifth of the prompts misses TTFT", SLO(1.0, 0.06), long=(0.2, 0.2)),
    Case("from a change on, prompts miss TTFT", SLO(1.0, 0.06), long=(0.0, 0.5), since_s=600.0),
    Case("the load leaps up", SLO(2.0, 0.06), rates=(2.0, 20.0), since_s=None),
)
HALF_S = 600.0


def requests(case: Case, seed: int = 0) -> Trace:
    """Poisson arrivals; answers of 150 tokens."""
    rng, trace, at = Random(f"{case.name} {seed}"), Trace([], [], []), 0.0  # noqa: S311 (a load)
    while True:
        part = int(at >= HALF_S)
        at += rng.expovariate(case.rates[part])
        if at >= 2 * HALF_S:
            return trace
        trace.arrival.append(at)
        trace.prompt.append(LONG if rng.random() < case.long[part] else SHORT)
        trace.output.append(150)


@dataclass(frozen=True, slots=True)
class Said:
    """What the law said in one round of a run."""

    at: float
    reachable: bool
    open: int
    """Requests that have come and not ended."""


def play(case: Case, *, colocated: bool, prior: bool) -> Iterator[Said]:
    """The rounds of one run, every 15 s."""
    replica = Replica.preset("llama-70b-h100-tp4")
    of = Setup(replica, case.slo.ttft_s, case.slo.tpot_s, ColdStart(90.0))
    world = (ColocatedWorld if colocated else World)(of, requests(case))
    goals = Goals(
        mode="colocated" if colocated else "disaggregated",
        roles=tuple(RoleGoal(role, 1, 1000) for role in world.roles),
        slo=case.slo,
        prior=replica.profile if prior else None,
    )
    for role in world.roles:
        world.scale(role, 2, warm=True)
    scraper, state = Scraper(world, goals.windows, START), ScalingState()
    while world.now < 2 * HALF_S:
        scraper.advance(world.now + goals.windows.interval_s)
        state, decision = decide(state, _seen(scraper, world, goals), goals, START + world.now)
        for role in world.roles:
            world.scale(role, decision.replicas(role))
        yield Said(world.now, decision.reachable, world.arrived - world.ended)


def _seen(scraper: Scraper, world: World, goals: Goals) -> Observations:
    pods = frozenset(pod.name for role in world.roles for pod in world.living(role))
    supply = []
    for role in world.roles:
        wanted = world.wanted(role)
        ready = sum(pod.ready_at <= world.now for pod in wanted)
        supply.append(RoleSupply(role, len(wanted), ready, len(wanted) - ready))
    return Observations(assemble(scraper.round(), goals.windows, pods), tuple(supply))


def verdict_s(case: Case, rounds: list[Said]) -> float:
    """Seconds from `since_s` until the verdict stands and stays; ∞ if it does not at the end."""
    assert case.since_s is not None
    before = [r.at for r in rounds if r.reachable]
    if before and before[-1] == rounds[-1].at:
        return inf
    first = next(r.at for r in rounds if r.at > (before[-1] if before else 0.0))
    return max(first - case.since_s, 0.0)


def measure(figures: Figures) -> None:
    """Play each case in both modes, with the profile and without one."""
    latest, false, most, rows = 0.0, 0, 0.0, []
    for case in CASES:
        for colocated in (False, True):
            for prior in (True, False):
                rounds = list(play(case, colocated=colocated, prior=prior))
                row: dict[str, object] = {"case": case.name, "colocated": colocated, "prior": prior}
                if case.since_s is None:
                    wrong = sum(not r.reachable for r in rounds)
                    false, row["false"] = false + wrong, wrong
                else:
                    seconds = verdict_s(case, rounds)
                    latest, row["verdict_s"] = max(latest, seconds), seconds
                    row["open_s"] = rounds[-1].open / case.rates[1]
                    most = max(most, rounds[-1].open / case.rates[1])
                rows.append(row)
    figures.lists["unreachable"] = rows
    figures.put("unreachable_verdict_s", latest)
    figures.put("false_unreachable_verdicts", false)
    figures.put("unreachable_open_s", most)
