"""Results of the simulator that were worked out by its first, plain form: a quicker one gives the
same ones.

The law is HPA's, whose rule does not change, with targets of its own. Times of single requests are
compared by their sums.
"""

from math import fsum, isnan
from random import Random

import pytest

from argosy_law.goals import SLO, Goals, RoleGoal
from argosy_law.sim import figures
from argosy_law.sim.laws.hpa import HorizontalPodAutoscaler
from argosy_law.sim.replay import Run, replay
from argosy_law.sim.traces import Trace
from argosy_law.sim.world.machine import ColdStart, Replica, Setup

REPLICA = Replica.preset("llama-70b-h100-tp4")


def requests(count: int = 4000) -> Trace:
    """Six a second, then fifteen, then three, with some long prompts and answers; no logarithms,
    whose last digit differs between machines."""
    rng, at, trace = Random(5), 0.0, Trace([], [], [])
    for number in range(count):
        rate = (6.0, 15.0, 3.0)[3 * number // count]
        at += 2 * rng.random() / rate
        trace.arrival.append(at)
        trace.prompt.append(rng.randrange(10, rng.choice((500, 2000, 12_000))))
        trace.output.append(rng.randrange(1, rng.choice((3, 100, 800))))
    return trace


def run_of(setup: Setup) -> Run:
    goals = Goals(
        mode="disaggregated",
        roles=(RoleGoal("prefill", 1, 40), RoleGoal("decode", 1, 40)),
        slo=SLO(setup.ttft_s, setup.tpot_s),
    )
    law = HorizontalPodAutoscaler(prefill=2048.0, decode=24.0)
    return replay(setup, requests(), law, goals, {"prefill": 3, "decode": 2})


def shown(run: Run) -> dict[str, float]:
    world = run.world
    ended = [last for last in world.last if not isnan(last)]
    return {
        **figures.attainment(world, 0.0),
        "gpu_hours": figures.gpu_hours(world, 0.0, world.trace.end),
        "moves": len(run.moves),
        "killed": world.killed,
        "first": fsum(first for first in world.first if not isnan(first)),
        "last": fsum(ended),
        "steps": sum(pod.steps for pods in world.pods.values() for pod in pods),
        "seconds": fsum(pod.seconds for pods in world.pods.values() for pod in pods),
        "prompts": world.sums.prompt_squared,
        "short": sum(world.sums.prompts[:4]) + sum(world.sums.outputs[:4]),
        "within": world.sums.verdicts[True, True],
    }


CASES = {
    "fifo": Setup(REPLICA, 1.0, 0.06, ColdStart(40.0, 0.3), 20.0, 3),
    "deadline": Setup(REPLICA, 1.0, 0.06, ColdStart(40.0), 20.0, 4, "deadline", resumes=True),
    "in-batch": Setup(
        REPLICA, 1.0, 0.04, ColdStart(40.0), 20.0, 5, "deadline", hold_first_token=True,
        resumes=True, scrape_loss=0.1,
    ),
    "tight": Setup(
        Replica(REPLICA.profile, REPLICA.machine, 96, 1024), 0.5, 0.038, ColdStart(40.0), 5.0, 6,
        "deadline",
    ),
}  # fmt: skip

KNOWN = {
    "fifo": {
        "attainment": 0.77775,
        "attainment_ttft": 0.90075,
        "attainment_tpot": 0.8615,
        "gpu_hours": 12.082496084431515,
        "moves": 13,
        "killed": 1,
        "first": 1204719.7253169436,
        "last": 1227987.8489242056,
        "steps": 89857,
        "seconds": 3815.249508665004,
        "prompts": 65849583152,
        "short": 1442,
        "within": 3111,
    },
    "deadline": {
        "attainment": 0.80475,
        "attainment_ttft": 0.8825,
        "attainment_tpot": 0.907,
        "gpu_hours": 23.009417464953174,
        "moves": 14,
        "killed": 0,
        "first": 1206177.63481473,
        "last": 1230005.1094640812,
        "steps": 89707,
        "seconds": 3811.4305934150048,
        "prompts": 65851113321,
        "short": 1442,
        "within": 3219,
    },
    "in-batch": {
        "attainment": 0.601,
        "attainment_ttft": 0.60525,
        "attainment_tpot": 0.916,
        "gpu_hours": 31.46647185293048,
        "moves": 4,
        "killed": 0,
        "first": 1452935.9607833344,
        "last": 1474401.7209196114,
        "steps": 49025,
        "seconds": 2638.9679534150064,
        "prompts": 65851113321,
        "short": 1442,
        "within": 2404,
    },
    "tight": {
        "attainment": 0.32875,
        "attainment_ttft": 0.3955,
        "attainment_tpot": 0.82425,
        "gpu_hours": 31.533138519597145,
        "moves": 5,
        "killed": 2,
        "first": 1883733.0108928923,
        "last": 1902114.1049880446,
        "steps": 70671,
        "seconds": 3148.6660910110054,
        "prompts": 65731710836,
        "short": 1442,
        "within": 1315,
    },
}


@pytest.mark.parametrize("name", CASES)
def test_results_are_those_of_the_plain_simulator(name: str) -> None:
    assert shown(run_of(CASES[name])) == pytest.approx(KNOWN[name], rel=1e-9)
