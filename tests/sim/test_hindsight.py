"""The smallest constant fleet is found, and said to be absent where there is none."""

import pytest

from argosy_law.sim import figures, hindsight
from argosy_law.sim.replay import static
from tests.sim.fleets import poisson, setup, trace


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(("prompt", "output"), [(100, 100), (800, 5), (300, 40)])
def test_it_is_the_smallest_of_all_that_meet_the_goal(seed: int, prompt: int, output: int) -> None:
    of, requests = setup(), poisson(4.0, 250, prompt, output, seed)
    found = hindsight.smallest(of, requests, warmup_s=10.0, goal=0.9)
    enough = [
        (prefill + decode, prefill)
        for prefill in range(1, 10)
        for decode in range(1, 10)
        if figures.attainment(
            static(of, requests, {"prefill": prefill, "decode": decode}).world, 10.0
        )["attainment"]
        >= 0.9
    ]
    assert found is not None
    assert (found["prefill"] + found["decode"], found["prefill"]) == min(enough)


def test_more_prefill_than_ttft_needs_is_taken_if_it_saves_two_decode_replicas() -> None:
    of, requests = setup(tpot_s=0.03), poisson(8.0, 300, 600, 150, seed=48)

    def met(prefill: int, decode: int) -> dict[str, float]:
        run = static(of, requests, {"prefill": prefill, "decode": decode})
        return figures.attainment(run.world, 10.0)

    found = hindsight.smallest(of, requests, warmup_s=10.0, goal=0.9)
    assert found == {"prefill": 9, "decode": 17}
    assert met(8, 40)["attainment_ttft"] >= 0.9  # eight are enough for TTFT alone
    assert met(9, 17)["attainment"] >= 0.9 > met(8, 18)["attainment"]
    assert all(met(prefill, 25 - prefill)["attainment"] < 0.9 for prefill in range(1, 25))


def test_a_goal_that_no_fleet_meets_has_no_fleet() -> None:
    slow = trace([(float(n), 2000 if n % 2 else 10, 2) for n in range(40)])
    # half of the prompts take 2.1 s alone
    assert hindsight.smallest(setup(), slow, warmup_s=0.0, goal=0.9) is None
    assert hindsight.smallest(setup(), slow, warmup_s=0.0, goal=0.5) is not None
    assert hindsight.smallest(setup(tpot_s=0.001), slow, warmup_s=0.0, goal=0.5) is None
