"""Fleets whose days are shifted against each other, on one GPU budget, in virtual time.

Three fleets with a peak of ten minutes each, one after the other, and GPUs for about one peak and
two nights. A budget that is shared follows the peaks; one that is divided by three does not.
"""

from dataclasses import dataclass, field, replace
from math import inf, sin
from random import Random

import pytest

from argosy_law.decide import decide
from argosy_law.decision import Decision
from argosy_law.estimate.capacity import PRESETS
from argosy_law.goals import SLO, Goals, RoleGoal, Serving, Windows, removal_hold_s
from argosy_law.observe import Observations
from argosy_law.sim.figures import verdicts
from argosy_law.sim.replay import EPOCH, ROLES, observe, started
from argosy_law.sim.traces import Trace
from argosy_law.sim.world.fleet import World
from argosy_law.sim.world.machine import ColdStart, Replica, Setup
from argosy_law.sim.world.scrape import Scraper
from argosy_law.state import ScalingState
from argosy_operator.core.budgets import Bid, Budgets, Fleet
from argosy_operator.shell.boards import BudgetBoard

pytestmark = pytest.mark.slow

DAY_S, BUDGET = 1800.0, 48
SETUP = Setup(
    Replica.preset("llama-70b-h100-tp4"),
    ttft_s=1.0,
    tpot_s=0.06,
    cold=ColdStart(30.0),
    order="deadline",
    resumes=True,
)
GPUS = SETUP.replica.machine.gpus
GOALS = Goals(
    mode="disaggregated",
    roles=(RoleGoal("prefill", 1, 20), RoleGoal("decode", 1, 20)),
    slo=SLO(1.0, 0.06, 0.9),
    windows=Windows(down_hold_s=120.0, cold_start_s=30.0),
    prior=PRESETS["llama-70b-h100-tp4"],
    serving=Serving("deadline", 2048, 256),
)


def day(peak_at: float, seed: int) -> Trace:
    """Arrivals of half an hour: 2 requests per second, and up to 26 around `peak_at`."""
    random, at, arrival = Random(seed), 0.0, list[float]()
    while (at := at + random.expovariate(26.0)) < DAY_S:
        phase = (at - peak_at) / 900.0
        rate = 2.0 + 24.0 * (sin(3.1416 * (phase + 0.5)) if abs(phase) < 0.5 else 0.0)
        if random.random() < rate / 26.0:
            arrival.append(at)
    return Trace(arrival, [1200] * len(arrival), [80] * len(arrival))


@dataclass
class Shared:
    """One fleet and its law; it bids as `core/steps/targets.py` does."""

    name: Fleet
    world: World
    goals: Goals
    state: ScalingState = field(default_factory=ScalingState)
    decisions: list[Decision] = field(default_factory=list)
    scraper: Scraper = field(init=False)

    def __post_init__(self) -> None:
        self.scraper = Scraper(self.world, self.goals.windows, EPOCH)

    @property
    def held(self) -> int:
        return GPUS * sum(len(self.world.living(role)) for role in ROLES)

    @property
    def targeted(self) -> int:
        return GPUS * sum(len(self.world.wanted(role)) for role in ROLES)

    def round(self, board: BudgetBoard, now: float) -> None:
        self.scraper.advance(now)
        cap = board.cap(self.name, self.targeted)
        goals = self.goals
        if cap is not None:
            goals = replace(goals, gpu_cap=cap.gpus, gpu_cap_of=cap.whose)
        seen: Observations = observe(self.scraper, self.world)
        self.state, decision = decide(self.state, seen, goals, EPOCH + now)
        self.decisions.append(decision)
        for role in ROLES:
            self.world.scale(role, decision.replicas(role))
        wanted = GPUS * sum(target.wanted for target in decision.targets)
        hold_s = max(removal_hold_s(supply, goals.windows) for supply in seen.supply)
        least = GPUS * sum(role.min for role in goals.roles)
        worth = decision.worth
        board.publish(
            self.name, Bid(least, wanted, self.held, GPUS, worth, weight=100.0, hold_s=hold_s)
        )

    @property
    def good(self) -> int:
        return sum(ttft and tpot for _, ttft, tpot in verdicts(self.world, 300.0))

    @property
    def requests(self) -> int:
        return sum(at >= 300.0 for at in self.world.trace.arrival)

    @property
    def gpus_moved(self) -> int:
        """GPUs that were added or removed, over the whole day."""
        return GPUS * sum(
            abs(target.replicas - target.current)
            for decision in self.decisions
            for target in decision.targets
        )


def played(peaks: tuple[float, float, float], goals: Goals, budgets: Budgets) -> list[Shared]:
    clock = 0.0
    board = BudgetBoard(budgets, monotonic=lambda: clock)
    start = dict.fromkeys(ROLES, 1)
    fleets = [
        Shared(("ns", name), started(SETUP, day(peak, n), start), goals)
        for n, (name, peak) in enumerate(zip("abc", peaks, strict=True))
    ]
    while clock < DAY_S:
        clock += goals.windows.interval_s
        for fleet in fleets:
            fleet.round(board, clock)
            if budgets.fleets is not None:
                assert sum(f.targeted for f in fleets) <= budgets.fleets, f"at {clock} s"
    for fleet in fleets:
        fleet.world.advance(inf)
    return fleets


def attained(fleets: list[Shared]) -> float:
    """Share of all requests within both limits."""
    return sum(fleet.good for fleet in fleets) / sum(fleet.requests for fleet in fleets)


def moved(fleets: list[Shared]) -> int:
    return sum(fleet.gpus_moved for fleet in fleets)


@pytest.mark.long
def test_a_shared_budget_follows_the_peaks_where_a_divided_one_cannot() -> None:
    peaks = (500.0, 900.0, 1300.0)
    shared = played(peaks, GOALS, Budgets(BUDGET))
    divided = played(peaks, replace(GOALS, gpu_budget=BUDGET // 3), Budgets())
    print("divided", attained(divided), "shared", attained(shared), "moved", moved(shared))
    assert attained(shared) >= attained(divided) + 0.12
    assert moved(shared) <= 3 * 2 * 32, "each fleet grows to its peak once and shrinks once"
    lacks = {d.lack.whose for f in shared for d in f.decisions if d.lack is not None}
    assert lacks == {"operator"}
