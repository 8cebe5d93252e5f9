"""Loads with the shapes on which laws fail. They need no trace: arrivals are drawn from rates.

`parts` plays the operator's law on each, with the gateway's queue and tokens that
leave at once, and puts the figures. docs/how-to/simulate.md says what each figure counts.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import ceil, cos, exp, inf, log, pi
from random import Random
from statistics import median
from typing import Any

from argosy_law.estimate.capacity import PRESETS
from argosy_law.goals import SLO, Goals, RoleGoal, Serving
from argosy_law.sim import hindsight, rates
from argosy_law.sim.figures import attainment, gpu_hours, reversals_per_hour, verdicts
from argosy_law.sim.laws.law import Law
from argosy_law.sim.replay import Replicas, Run, replay, static
from argosy_law.sim.rollout import Plan
from argosy_law.sim.traces import Trace
from argosy_law.sim.world.machine import ColdStart, Programs, Replica, Setup
from local.figures import Figure, Figures, Target

PROFILE, COLD_S, GOAL = "llama-70b-h100-tp4", 90.0, 0.9
HOUR_S = 3600
OBJECTIVE = SLO(1.0, 0.06, GOAL)
LENGTHS = Trace([0.0] * 6, [120, 400, 800, 1300, 2200, 3600], [60, 400, 120, 250, 90, 300])
"""Each as often as the others: 1,403 tokens of prompt and 203 of answer in the mean."""

Rates = list[tuple[float, float]]
"""(seconds, requests per second), linear between the points."""

FIGURES = (
    Figure("ramp_lost_minutes", "min", Target("<=", 3), digits=0),
    Figure("ramp_lost_minutes_worst", "min", digits=0),
    Figure("step_back_s", "s", Target("<=", COLD_S + 45), digits=0),
    Figure("step_back_s_worst", "s", digits=0),
    Figure("burst_back_s", "s", Target("<=", 1.5 * COLD_S), digits=0),
    Figure("burst_back_s_worst", "s", digits=0),
    Figure("llmd_ramp_attainment", target=Target(">=", 0.98)),
    Figure("llmd_ramp_attainment_worst"),
    Figure("llmd_ramp_replicas", target=Target("<=", 5.9), digits=2),
    Figure("llmd_ramp_replicas_worst", digits=2),
    Figure("outage_lost_points", target=Target("<=", 1.0), digits=2),
    Figure("outage_lost_points_worst", digits=2),
    Figure("moving_attainment", target=Target(">=", GOAL)),
    Figure("moving_attainment_worst"),
    Figure("moving_gpu_hours", "h", digits=1),
    Figure("moving_gpu_hours_worst", "h", digits=1),
    Figure("steady_reversals_per_hour", "1/h", Target("<=", 1.0), digits=2),
    Figure("steady_reversals_per_hour_worst", "1/h", digits=2),
    Figure("steady_gpu_hours_vs_constant", target=Target("<=", 1.05)),
    Figure("steady_gpu_hours_vs_constant_worst"),
)
"""Each is the median over the seeds, and what ends in `_worst` that of the worst seed."""


@dataclass(frozen=True, slots=True)
class Load:
    """What comes, the SLO, and the fleet that it comes to."""

    rates: Rates
    start: Replicas
    """Ready at the beginning; the law knows nothing but the profile then."""
    slo: SLO = OBJECTIVE
    lengths: Trace = field(default_factory=lambda: LENGTHS)
    bounds: tuple[int, int] = (1, 100)
    """Fewest and most replicas of a role."""
    cold_s: float = COLD_S
    longer: tuple[float, float, float, float] = (0.0, 1.0, 1.0, 1.0)
    """From when and until when requests become longer, in seconds, and by which factors prompts
    and answers do."""

    def requests(self, seed: int) -> Trace:
        """What comes, with this seed."""
        trace = rates.drawn(self.rates, self.lengths, 1.0, seed)
        begin, end, prompt, answer = self.longer
        parts = [min(max((at - begin) / (end - begin), 0.0), 1.0) for at in trace.arrival]
        return replace(
            trace,
            prompt=[round(n * prompt**part) for n, part in zip(trace.prompt, parts, strict=True)],
            output=[round(n * answer**part) for n, part in zip(trace.output, parts, strict=True)],
        )

    def setup(self, seed: int, outage: tuple[float, float] = (inf, inf)) -> Setup:
        """The simulated fleet."""
        return Setup(
            Replica.preset(PROFILE), self.slo.ttft_s, self.slo.tpot_s, ColdStart(self.cold_s),
            seed=seed, order="deadline", resumes=True, outage=outage, programs=Programs(),
        )  # fmt: skip

    def play(
        self,
        law: Law[Any] | None,
        seed: int,
        outage: tuple[float, float] = (inf, inf),
        plan: Plan | None = None,
    ) -> Run:
        """The load under a law, or on the fleet of the start. `outage`: from when to when there are
        no metrics. `plan`: a rollout meanwhile."""
        setup = self.setup(seed, outage)
        goals = Goals(
            mode="colocated" if "colocated" in self.start else "disaggregated",
            roles=tuple(RoleGoal(role, *self.bounds) for role in self.start),
            slo=self.slo,
            prior=PRESETS[PROFILE],
            serving=Serving(
                "deadline", setup.replica.max_num_batched_tokens, setup.replica.max_num_seqs
            ),
        )
        trace = self.requests(seed)
        if law is None:
            return static(setup, trace, self.start, plan)
        return replay(setup, trace, law, goals, self.start, (), plan)


def stairs(*steps: tuple[float, float]) -> Rates:
    """Constant rates one after another. `steps`: (requests per second, seconds) of each."""
    points: Rates = []
    at = 0.0
    for rate, seconds in steps:
        points += [(at + 0.001 if points else 0.0, rate), (at + seconds, rate)]
        at += seconds
    return points


def ramp(low: float, high: float, per_minute: float, begin: float, after: float) -> Rates:
    """A steady rate, one that grows by a share each minute, and a steady one again."""
    minutes = log(high / low) / log(1 + per_minute)
    climb = [
        (begin + 15.0 * i, low * (1 + per_minute) ** (i / 4)) for i in range(ceil(4 * minutes))
    ]
    top = begin + 60 * minutes
    return [(0.0, low), *climb, (top, high), (top + after, high)]


def morning(low: float, high: float) -> Rates:
    """Six hours from the lowest rate of a day to the highest, whose logarithm is a cosine."""
    points, swing = range(0, 6 * HOUR_S + 1, 300), log(high / low) / 2
    return [(float(at), low * exp(swing * (1 - cos(pi * at / 6 / HOUR_S)))) for at in points]


RAMP_S, STEP_S, BURSTS_S, BURST_S = 900.0, 1200.0, (600.0, 1800.0), 600.0
RAMP = Load(ramp(10.0, 43.0, 0.2, RAMP_S, 600.0), {"prefill": 3, "decode": 3})
STEP = Load(stairs((10.0, STEP_S), (20.0, 500.0)), {"prefill": 2, "decode": 2})
BURSTS = Load(
    stairs((1.0, 600.0), (24.0, BURST_S), (1.0, 600.0), (24.0, BURST_S), (1.0, 600.0)),
    {"prefill": 1, "decode": 1},
)
"""The rates of ai-dynamo/dynamo#10528, at the SLO and with the lengths of the other loads."""
LLMD_SHARE = 0.45
"""Of llm-d's rates: seven replicas of the profile carry as much as seven of llm-d's then."""
LLMD_STAIRS = ((2, 330), (4, 360), (6, 360), (8, 360), (10, 360), (4, 360), (1, 300))
LLMD = Load(
    stairs(*((LLMD_SHARE * rate, seconds) for rate, seconds in LLMD_STAIRS)),
    {"colocated": 3},
    SLO(3.0, 0.1, GOAL),
    Trace([0.0], [4000], [1000]),
    (3, 8),
    100.0,
)
"""llm-d's benchmark of its SLO-aware autoscaler (guides/workload-autoscaling): 4000 tokens in and
1000 out, TTFT 3 s and TPOT 100 ms, 3 to 8 colocated replicas. It reports 95.8 % at 5.93 replicas,
after 19 minutes in which its predictor learns and nothing counts; here all counts."""
MORNING = Load(morning(3.0, 18.0), {"prefill": 1, "decode": 1})
MOVING = Load(
    [(0.0, 60.0), (600.0, 60.0), (1500.0, 40.0), (2700.0, 40.0)],
    {"prefill": 4, "decode": 4},
    lengths=Trace([0.0] * 6, [45, 150, 300, 500, 830, 1360], [15, 100, 30, 63, 23, 75]),
    longer=(600.0, 1500.0, 4.8, 3.4),
)
"""Requests become fewer and their work more. An hour of ServeGen's m-mid has prompts that go from
530 to 2,550 tokens and answers from 51 to 172 in a quarter of an hour."""


def wavering(rate: float, spread: float, hours: int) -> Rates:
    """A steady rate whose logarithm has another normal deviation in each minute."""
    rng = Random("wavering")  # noqa: S311 (a load, not a secret)
    return [
        (60.0 * minute, rate * exp(rng.gauss(-(spread**2) / 2, spread)))
        for minute in range(60 * hours + 1)
    ]


STEADY = Load(wavering(10.0, 0.25, 3), {"prefill": 3, "decode": 3})
WARMUP_S = 600.0
OUTAGE_S = (2.5 * HOUR_S, 3.5 * HOUR_S)
"""The hour in which the rate rises most: from 5.8 to 9.3 requests per second."""


def shares(run: Run, begin: float, end: float, bin_s: float) -> list[float]:
    """Shares of requests within the SLO, by the time of their arrival."""
    met: list[list[bool]] = [[] for _ in range(ceil((end - begin) / bin_s))]
    for at, ttft, tpot in verdicts(run.world, begin):
        if at < end:
            met[int((at - begin) / bin_s)].append(ttft and tpot)
    return [sum(ok) / len(ok) for ok in met if ok]


def back_after(run: Run, jump: float, end: float) -> float:
    """Seconds from a jump until four quarters of a minute in a row meet the goal; up to `end`
    if they do not."""
    met = shares(run, jump, end, 15.0)
    ends = (15.0 * i for i in range(len(met) - 3) if min(met[i : i + 4]) >= GOAL)
    return next(ends, end - jump)


def ramp_lost_minutes(law: Law[Any], seed: int) -> float:
    """Minutes below the goal, from when the ramp begins to a minute before the last arrival."""
    run = RAMP.play(law, seed)
    return sum(share < GOAL for share in shares(run, RAMP_S, run.world.trace.end - 60, 60.0))


def step_back_s(law: Law[Any], seed: int) -> float:
    return back_after(STEP.play(law, seed), STEP_S, STEP_S + 500)


def burst_back_s(law: Law[Any], seed: int) -> float:
    """The longer one of two bursts."""
    run = BURSTS.play(law, seed)
    return max(back_after(run, at, at + BURST_S) for at in BURSTS_S)


def llmd_ramp(law: Law[Any], seed: int) -> tuple[float, float]:
    """(attainment, mean replicas with those that start and drain) from the first request on."""
    run, gpus = LLMD.play(law, seed), Replica.preset(PROFILE).machine.gpus
    end = run.world.trace.end
    replicas = gpu_hours(run.world, 0.0, end) / gpus / (end / 3600)
    return attainment(run.world, 0.0)["attainment"], replicas


def outage_lost_points(law: Law[Any], seed: int) -> float:
    """Percentage points of the morning's attainment that an hour without metrics costs."""
    whole, out = (
        attainment(run.world, 300.0)["attainment"]
        for run in (MORNING.play(law, seed), MORNING.play(law, seed, OUTAGE_S))
    )
    return 100 * (whole - out)


def moving(law: Law[Any], seed: int) -> tuple[float, float]:
    """(attainment, GPU-hours) of the load whose requests become longer."""
    run = MOVING.play(law, seed)
    return attainment(run.world, 300.0)["attainment"], gpu_hours(
        run.world, 300.0, run.world.trace.end
    )


def steady(law: Law[Any], seed: int) -> tuple[float, float]:
    """(reversals per hour, GPU-hours over those of the best constant fleet with the same queue)."""
    run, trace = STEADY.play(law, seed), STEADY.requests(seed)
    best = hindsight.smallest(STEADY.setup(seed), trace, warmup_s=WARMUP_S, goal=GOAL)
    assert best is not None
    gpus, hours = Replica.preset(PROFILE).machine.gpus, (trace.end - WARMUP_S) / HOUR_S
    spent = gpu_hours(run.world, WARMUP_S, trace.end)
    return reversals_per_hour(run, WARMUP_S, trace.end), spent / (gpus * hours * sum(best.values()))


def measure(figures: Figures, law: Law[Any], seeds: int) -> Iterator[str]:
    """Play every load with each seed; a line for each load as it ends."""
    for name, one in (
        ("ramp_lost_minutes", ramp_lost_minutes),
        ("step_back_s", step_back_s),
        ("burst_back_s", burst_back_s),
        ("outage_lost_points", outage_lost_points),
    ):
        yield _put(figures, name, [one(law, seed) for seed in range(seeds)])
    met, replicas = zip(*(llmd_ramp(law, seed) for seed in range(seeds)), strict=True)
    yield _put(figures, "llmd_ramp_attainment", list(met), worst=min)
    yield _put(figures, "llmd_ramp_replicas", list(replicas))
    met, hours = zip(*(moving(law, seed) for seed in range(seeds)), strict=True)
    yield _put(figures, "moving_attainment", list(met), worst=min)
    yield _put(figures, "moving_gpu_hours", list(hours))
    reversals, over = zip(*(steady(law, seed) for seed in range(seeds)), strict=True)
    yield _put(figures, "steady_reversals_per_hour", list(reversals))
    yield _put(figures, "steady_gpu_hours_vs_constant", list(over))


def _put(figures: Figures, name: str, values: list[float], worst: Any = max) -> str:
    figures.put(name, median(values))
    figures.put(f"{name}_worst", worst(values))
    return f"{name} by seed: {', '.join(f'{value:g}' for value in values)}"
