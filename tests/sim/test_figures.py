"""Figures of runs that are small enough to work out by hand."""

from dataclasses import replace
from math import inf

import pytest

from argosy_law.sim import figures
from argosy_law.sim.replay import ROLES, Run, static
from tests.sim.fleets import played, setup, started, trace


def test_only_requests_after_the_warm_up_count() -> None:
    # TTFT of 100 tokens alone is 0.2 s, of 1500 tokens 1.6 s; the limit is 1 s
    rows = [(0.0, 1500, 1), (10.0, 100, 1), (20.0, 1500, 1), (30.0, 100, 1)]
    world = played(setup(), trace(rows))
    assert figures.attainment(world, 0.0)["attainment"] == 0.5
    assert figures.attainment(world, 10.0)["attainment"] == pytest.approx(2 / 3)
    assert figures.attainment(world, 10.5)["attainment"] == 0.5


def test_t49_both_limits_are_needed_and_each_is_counted() -> None:
    # steps of one sequence take 0.01 + 0.001 + 1e-5 · context: 21 ms at 1000 tokens
    rows = [(0.0, 100, 5), (10.0, 1000, 5), (20.0, 100, 1), (30.0, 800, 5)]
    world = played(setup(ttft_s=1.0, tpot_s=0.02), trace(rows))
    assert figures.attainment(world, 0.0) == {
        "attainment": 0.75,
        "attainment_ttft": 0.75,
        "attainment_tpot": 0.75,
    }
    world = played(setup(ttft_s=1.0, tpot_s=0.015), trace(rows))
    assert figures.attainment(world, 0.0) == {
        "attainment": 0.5,
        "attainment_ttft": 0.75,
        "attainment_tpot": 0.5,
    }


def test_gpus_count_from_creation_to_deletion() -> None:
    world = started(setup(cold_s=50.0), trace([(0.0, 10, 2), (300.0, 10, 2)]))
    world.advance(100.0)
    world.scale("decode", 3)
    world.advance(200.0)
    world.scale("decode", 2)
    world.advance(inf)
    # prefill 300 s, decode 300 + 200 + 100 s, two GPUs each
    assert figures.gpu_hours(world, 0.0, 300.0) == pytest.approx(2 * 900 / 3600)
    assert figures.gpu_hours(world, 150.0, 300.0) == pytest.approx(2 * (150 * 3 + 50) / 3600)


def test_a_reversal_is_a_move_back_within_ten_minutes() -> None:
    run = static(setup(), trace([(0.0, 1, 1)]), {"prefill": 1, "decode": 1})

    def per_hour(*moves: tuple[float, str, int]) -> float:
        return figures.reversals_per_hour(Run(run.world, moves), 0.0, 3600.0)  # type: ignore[arg-type]

    assert per_hour() == 0
    assert per_hour((0, "prefill", 1), (600, "prefill", -1)) == 0.5
    assert per_hour((0, "prefill", 1), (601, "prefill", -1)) == 0
    assert per_hour((0, "prefill", 1), (100, "decode", -1)) == 0
    assert per_hour((0, "decode", 1), (100, "decode", 2), (200, "decode", -1)) == 0.5
    back_and_forth = [(60.0 * n, "decode", (-1) ** n) for n in range(5)]
    assert per_hour(*back_and_forth) == 2.0


def test_the_physical_bound_is_the_work_at_full_steps_and_full_batches() -> None:
    requests = trace([(0.0, 1000, 1), (100.0, 1000, 101)])
    of = setup(tpot_s=0.05, step_tokens=1000)
    least = figures.physical_pod_seconds(requests, of, 0.0)
    prefill, decode = least["prefill"], least["decode"]
    assert prefill == pytest.approx(2 * (0.1 + 1.0))
    # the context of a token is 1050.5 on average, so a sequence adds 11.505 ms and KV holds 9.5
    batch = min((0.05 - 0.01) / 0.011505, 10_000 / 1050.5)
    assert decode == pytest.approx(100 * (0.01 / batch + 0.011505))
    assert figures.physical_gpu_hours(requests, of, 0.0, ROLES) == pytest.approx(
        (prefill + decode) * 2 / 3600
    )
    assert figures.physical_pod_seconds(requests, of, 50.0)["prefill"] == pytest.approx(1.1)
    only_prompts = figures.physical_pod_seconds(replace(requests, output=[1, 1]), of, 0.0)
    assert only_prompts == {"prefill": prefill, "decode": 0.0, "colocated": prefill}


@pytest.mark.parametrize(
    ("tpot_s", "sequences", "batch"),
    [
        (0.05, 256, (0.05 - 0.01) / 0.011505),
        (0.5, 256, 10_000 / 1050.5),
        (0.5, 4, 4),
        (0.02, 256, 1),
    ],
)
def test_the_largest_batch_fits_the_limit_the_memory_and_the_engine(
    tpot_s: float, sequences: int, batch: float
) -> None:
    of = setup(tpot_s=tpot_s, sequences=sequences)
    decode = figures.physical_pod_seconds(trace([(0.0, 1000, 101)]), of, 0.0)["decode"]
    assert decode == pytest.approx(100 * (0.01 / batch + 0.011505))


def test_the_physical_bound_counts_attention_over_what_is_not_cached() -> None:
    requests = trace([(0.0, 300, 1)])
    requests.cached = [200]
    squared = replace(setup().replica.profile, per_prompt_token_squared_s=1e-6)
    least = figures.physical_pod_seconds(requests, setup(squared, step_tokens=1000), 0.0)
    assert least["prefill"] == pytest.approx((0.1 / 1000 + 0.001) * 100 + 1e-6 * (300**2 - 200**2))
