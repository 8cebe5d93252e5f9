"""The smallest constant fleet is found, and said to be absent where there is none."""

from math import inf

import pytest

from argosy_law.sim import figures
from argosy_law.sim.reference import hindsight
from argosy_law.sim.reference.hindsight import Tally, _fewest
from argosy_law.sim.replay import static
from tests.sim.fleets import played, poisson, setup, started, trace


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


@pytest.mark.parametrize("near", [(1, 1), (9, 17), (12, 14), (3, 40), (30, 5)])
def test_a_fleet_near_the_answer_changes_the_time_alone(near: tuple[int, int]) -> None:
    of, requests = setup(tpot_s=0.03), poisson(8.0, 300, 600, 150, seed=48)
    found = hindsight.smallest(
        of, requests, warmup_s=10.0, goal=0.9, near={"prefill": near[0], "decode": near[1]}
    )
    assert found == {"prefill": 9, "decode": 17}


@pytest.mark.parametrize("warmup_s", [0.0, 10.0, 33.3])
def test_a_tally_at_any_time_is_what_the_end_will_confirm(warmup_s: float) -> None:
    of, requests = setup(tpot_s=0.03), poisson(8.0, 400, 600, 60, seed=5)
    requests.output[::7] = [1] * len(requests.output[::7])
    world = started(of, requests, prefill=6, decode=9)
    tally = Tally(world, warmup_s)
    at_the_end = list(figures.verdicts(played(of, requests, prefill=6, decode=9), warmup_s))
    met = sum(ttft and tpot for _, ttft, tpot in at_the_end)
    before = (0, 0)
    for until in (5.0, 20.0, 20.0, 41.0, inf):
        world.advance(until)
        tally.update()
        assert before[0] <= tally.met <= met
        assert before[1] <= tally.missed <= len(at_the_end) - met
        before = (tally.met, tally.missed)
    assert (tally.requests, *before) == (len(at_the_end), met, len(at_the_end) - met)
    assert 0 < met < len(at_the_end)


def test_no_number_up_to_the_most_may_be_enough() -> None:
    assert _fewest(lambda _: False, 3, 64) is None
    assert _fewest(lambda n: n >= 64, 70, 64) == 64


@pytest.mark.parametrize("guess", [1, 2, 7, 8, 9, 40, 64])
@pytest.mark.parametrize("least", [1, 2, 7, 8, 63, 64])
def test_the_fewest_are_found_from_any_guess(guess: int, least: int) -> None:
    asked: list[int] = []

    def enough(replicas: int) -> bool:
        asked.append(replicas)
        return replicas >= least

    assert _fewest(enough, guess, 64) == least
    assert len(asked) == len(set(asked))
    assert all(0 < n <= 64 for n in asked)
