"""The demo's ramp in virtual time: goals at a demo's speed, four phases, Poisson arrivals."""

from argosy_law.estimate.capacity import PRESETS
from argosy_law.goals import SLO, Goals, RoleGoal, Windows
from tests.scaling.closed import Phase, Run, Setup, run

ENGINE = PRESETS["llama-70b-h100-tp4"]
GOALS = Goals(
    mode="disaggregated",
    roles=(RoleGoal("prefill", 1, 4), RoleGoal("decode", 1, 4)),
    slo=SLO(ttft_s=0.6, tpot_s=0.04, attainment=0.9),
    windows=Windows(scrape_s=1, rate_s=5, interval_s=2, down_hold_s=15, cold_start_s=6),
    gpu_budget=32,
)
LOW, HIGH = Phase(45, 1.0, 2000, 60), Phase(45, 4.0, 2000, 60)
OTHER_MIX = Phase(45, 7.0, 200, 300)
RAMP = (LOW, HIGH, OTHER_MIX, LOW)


def play(seed: int, phases: tuple[Phase, ...] = RAMP, goals: Goals = GOALS) -> Run:
    return run(Setup(ENGINE, goals, cold_s=5), phases, seed=seed)
