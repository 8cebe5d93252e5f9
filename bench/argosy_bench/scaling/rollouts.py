"""Rollouts in virtual time: what a new revision costs its users, by the surge that it may use.

Each runs under the operator's law with `choose`, the product's function for rollouts.
docs/how-to/simulate.md says what each figure counts.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import median

from argosy_bench.scaling.shapes import GOAL, PROFILE, Load, shares, stairs
from argosy_law.rollout import Strategy
from argosy_law.sim.figures import attainment, attainment_between
from argosy_law.sim.laws import LAWS
from argosy_law.sim.replay import Replicas, Run
from argosy_law.sim.rollout import Plan
from argosy_law.sim.world.machine import Replica
from local.figures import Figure, Figures, Target

FLEETS: tuple[Replicas, ...] = ({"prefill": 4, "decode": 4}, {"colocated": 6})
SURGES = {"0": 0, "set": None, "all": 1000}
LOADED = 0.7
"""Of the rate that a fleet carries, for its attainment in a rollout."""
AT_S, LASTS_S = 300.0, 1000.0
DOUBLED = {"disaggregated": 10.0, "colocated": 6.0}
"""Requests per second before they double."""
DOUBLED_AT_S, AHEAD_S, AFTER_S = 600.0, 60.0, 600.0
"""The load doubles while the first new pods start."""

FIGURES = (
    Figure("rollout_requests_lost", target=Target("==", 0), digits=0),
    Figure("rollout_requests_across_revisions", target=Target("==", 0), digits=0),
    Figure("rollout_gpus_over_surge", target=Target("==", 0), digits=0),
    Figure("rollout_attainment", target=Target(">=", 0.90)),
    Figure("rollout_attainment_surge_0"),
    Figure("rollout_attainment_surge_all"),
    Figure("rollout_settling_ratio", target=Target("<=", 1.2), digits=2),
    Figure("rollout_settling_ratio_surge_0", target=Target("<=", 1.2), digits=2),
    Figure("rollout_settling_ratio_surge_all", target=Target("<=", 1.2), digits=2),
    Figure("rollout_s", "s", digits=0),
)
"""Without another word the surge is that of one set. Counts are sums over all runs, GPUs the most
of any. Attainment is that of the worst mode and seed; a ratio, of medians over the seeds, that of
the worst mode; `rollout_s` the median of the slower mode, at 70 % of its load."""

_NAMES = {"0": "_surge_0", "set": "", "all": "_surge_all"}


@dataclass(slots=True)
class Tally:
    """What must not happen in any run."""

    lost: int = 0
    across: int = 0
    over: int = 0

    def add(self, run: Run) -> None:
        """Count a run with a rollout."""
        rollout = run.rollout
        assert rollout is not None
        each = Replica.preset(PROFILE).machine.gpus
        surge = rollout.plan.strategy.surge
        allowed = each * len(run.world.roles) if surge is None else surge
        self.lost += run.world.killed
        self.across += run.world.crossed
        self.over = max(self.over, rollout.most_over - allowed)


def capacity(fleet: Replicas) -> float:
    """The requests per second of which a constant fleet serves just the goal within the SLO."""
    low, high = 1.0, 60.0
    while high - low > 0.5:
        rate = (low + high) / 2
        world = Load([(0.0, rate), (420.0, rate)], fleet).play(None, 0).world
        met = attainment(world, 120.0)["attainment"] >= GOAL
        low, high = (rate, high) if met else (low, rate)
    return low


def measure(figures: Figures, seeds: int) -> Iterator[str]:
    """Play all rollouts with each seed; a line for each mode and surge as it ends."""
    tally = Tally()
    met: dict[str, list[float]] = {name: [] for name in SURGES}
    ratio: dict[str, list[float]] = {name: [] for name in SURGES}
    took = list[float]()
    for fleet in FLEETS:
        mode = "colocated" if "colocated" in fleet else "disaggregated"
        rate = LOADED * capacity(fleet)
        steady = replace(
            Load([(0.0, rate), (LASTS_S, rate)], fleet), bounds=(min(fleet.values()), 100)
        )
        before = DOUBLED[mode]
        start: Replicas = dict.fromkeys(fleet, 5 if mode == "colocated" else 3)
        load = Load(stairs((before, DOUBLED_AT_S), (2 * before, AFTER_S)), start)
        plain = median(_settling(load.play(LAWS["goodput"], seed)) for seed in range(seeds))
        for name, surge in SURGES.items():
            strategy = Strategy("Paced", surge)
            shared, seconds, back = list[float](), list[float](), list[float]()
            for seed in range(seeds):
                run = steady.play(LAWS["goodput"], seed, plan=Plan(AT_S, strategy))
                tally.add(run)
                assert run.rollout is not None
                ended = run.rollout.ended_at
                shared.append(attainment_between(run.world, AT_S, ended) or 0.0)
                seconds.append(ended - AT_S)
                run = load.play(LAWS["goodput"], seed, plan=Plan(DOUBLED_AT_S - AHEAD_S, strategy))
                tally.add(run)
                back.append(_settling(run))
            met[name] += shared
            ratio[name].append(median(back) / plain)
            if name == "set":
                took.append(median(seconds))
            yield (
                f"{mode}, surge {name}: {min(shared):.3f} within both limits at {rate:.1f}/s, "
                f"{median(seconds):.0f} s; settled after {_written(back)} s, {plain:.0f} s without"
            )
    figures.put("rollout_requests_lost", tally.lost)
    figures.put("rollout_requests_across_revisions", tally.across)
    figures.put("rollout_gpus_over_surge", tally.over)
    for name, suffix in _NAMES.items():
        figures.put(f"rollout_attainment{suffix}", min(met[name]))
        figures.put(f"rollout_settling_ratio{suffix}", max(ratio[name]))
    figures.put("rollout_s", max(took))


def _settling(run: Run) -> float:
    """Seconds from the doubling until a minute in which the goal is met.

    Not until all quarters of it meet the goal, as for other loads: a fleet that is sized just so
    has quarters below it at any time.
    """
    met = shares(run, DOUBLED_AT_S, DOUBLED_AT_S + AFTER_S, 15.0)
    ends = (15.0 * max(i, 1) for i in range(len(met) - 3) if sum(met[i : i + 4]) >= 4 * GOAL)
    return next(ends, AFTER_S)


def _written(seconds: list[float]) -> str:
    return ", ".join(f"{s:.0f}" for s in seconds)
