"""The operator's law over time: ramps and steps on the simulated fleet, with cold starts of 90 s.

Thresholds are those of the product, not of one trace: arrivals are drawn anew for each seed.
"""

from math import ceil, log

import pytest

from argosy_law.estimate.capacity import PRESETS
from argosy_law.goals import SLO, Goals, RoleGoal
from argosy_law.sim import figures, rates
from argosy_law.sim.laws import LAWS
from argosy_law.sim.replay import Run, replay
from argosy_law.sim.traces import Trace
from argosy_law.sim.world.machine import ColdStart, Replica, Setup

REPLICA = Replica.preset("llama-70b-h100-tp4")
COLD_S = 90.0
GOALS = Goals(
    mode="disaggregated",
    roles=(RoleGoal("prefill", 1, 100), RoleGoal("decode", 1, 100)),
    slo=SLO(1.0, 0.06, 0.9),
    prior=PRESETS["llama-70b-h100-tp4"],
)
LENGTHS = Trace(
    [0.0] * 6, [120, 400, 800, 1300, 2200, 3600], [60, 400, 120, 250, 90, 300]
)  # prompts of 1400 tokens in the mean and four times their variance in range

Rates = list[tuple[float, float]]


def played(points: Rates, seed: int, prefill: int, decode: int, cold_s: float = COLD_S) -> Run:
    setup = Setup(REPLICA, 1.0, 0.06, cold=ColdStart(cold_s), seed=seed, order="deadline")
    requests = rates.drawn(points, LENGTHS, 1.0, seed)
    return replay(setup, requests, LAWS["goodput"], GOALS, {"prefill": prefill, "decode": decode})


def shares(run: Run, start: float, end: float, every_s: float) -> list[float]:
    """Shares of requests within the SLO, by the time of their arrival."""
    bins: list[list[bool]] = [[] for _ in range(ceil((end - start) / every_s))]
    for at, ttft, tpot in figures.verdicts(run.world, start):
        if at < end:
            bins[int((at - start) / every_s)].append(ttft and tpot)
    return [sum(met) / len(met) for met in bins if met]


def ramp(low: float, high: float, per_minute: float, begin: float, after: float) -> Rates:
    """A steady rate, one that grows by a share each minute, and a steady one."""
    minutes = log(high / low) / log(1 + per_minute)
    climb = [
        (begin + 15.0 * i, low * (1 + per_minute) ** (i / 4)) for i in range(ceil(4 * minutes))
    ]
    top = begin + 60 * minutes
    return [(0.0, low), *climb, (top, high), (top + after, high)]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_ramp_from_10_to_43_requests_a_second_is_followed(seed: int) -> None:
    """20 % a minute: the rate is half as high again when a new replica serves."""
    run = played(ramp(10.0, 43.0, 0.2, 900.0, 600.0), seed, 3, 3)
    lost = sum(share < 0.9 for share in shares(run, 900.0, run.world.trace.end - 60, 60.0))
    assert lost <= 4
    assert run.world.killed == 0


def back_after(run: Run, step: float, end: float) -> float:
    """Seconds from a step until four quarters of a minute in a row meet the goal."""
    met = shares(run, step, end, 15.0)
    return 15.0 * next(i for i in range(len(met)) if min(met[i : i + 4]) >= 0.9)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_twice_the_load_is_served_within_a_cold_start_and_three_quarters_of_a_minute(
    seed: int,
) -> None:
    run = played([(0.0, 10.0), (1200.0, 10.0), (1200.001, 20.0), (1700.0, 20.0)], seed, 2, 2)
    assert back_after(run, 1200.0, 1700.0) <= COLD_S + 45


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_shorter_starts_serve_a_load_that_jumps_better_and_with_fewer_gpus(seed: int) -> None:
    """No setting says how long they are. In these 50 minutes 90 s cost a fifth more than 20 s."""
    points = [(0.0, 4.0)]
    for begin in (600.0, 1800.0):
        points += [(begin, 4.0), (begin + 0.001, 20.0)]
        points += [(begin + 600, 20.0), (begin + 600.001, 4.0)]
    points += [(3000.0, 4.0)]
    quick, slow = (played(points, seed, 2, 2, cold_s=cold_s) for cold_s in (20.0, COLD_S))
    end = points[-1][0]
    assert figures.gpu_hours(quick.world, 0, end) <= 0.9 * figures.gpu_hours(slow.world, 0, end)
    met = [figures.attainment(run.world, 0)["attainment"] for run in (quick, slow)]
    assert met[0] >= met[1] + 0.03


@pytest.mark.long
@pytest.mark.slow
def test_a_load_that_jumps_between_1_and_24_is_served_within_one_and_a_half_starts() -> None:
    points = [(0.0, 1.0)]
    for begin in (600.0, 1800.0):
        points += [(begin, 1.0), (begin + 0.001, 24.0), (begin + 600, 24.0), (begin + 600.001, 1.0)]
    run = played([*points, (3000.0, 1.0)], 0, 1, 1)
    for begin in (600.0, 1800.0):
        assert back_after(run, begin, begin + 600) <= 1.5 * COLD_S
