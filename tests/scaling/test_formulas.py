"""The formulas against closed forms, brute force and tiny simulations."""

from dataclasses import replace
from heapq import heapreplace
from itertools import product
from math import exp, factorial, inf
from random import Random

import pytest

from argosy_law.observe import RoleSupply
from argosy_law.size import sizing
from argosy_law.size.pools import (
    MOST_REPLICAS,
    DecodeModel,
    PrefillModel,
    colocated_model,
    decode_model,
    erlang_b,
    prefill_model,
    share_waiting,
    smallest,
)
from argosy_law.size.sizing import Counts, Horizon, Load, size
from argosy_law.size.work import Replica, Work, alike

LLAMA = Replica(28.8e-3, 0.1066e-3, 0.2825e-3, 9.4e-8)


@pytest.mark.parametrize("servers", [1, 2, 5, 20])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.95])
def test_erlang_c_is_the_textbooks_sum(servers: int, share: float) -> None:
    load = share * servers
    last = load**servers / factorial(servers) / (1 - share)
    wanted = last / (sum(load**k / factorial(k) for k in range(servers)) + last)
    assert share_waiting(servers, load, 0.0) == pytest.approx(wanted, rel=1e-12)
    later = wanted * exp(-(servers - load) * 0.7)
    assert share_waiting(servers, load, 0.7) == pytest.approx(later, rel=1e-12)
    lost = last * (1 - share) / sum(load**k / factorial(k) for k in range(servers + 1))
    assert erlang_b(servers, load) == pytest.approx(lost, rel=1e-12)


def queue(services: list[float], servers: int, rate: float, limit_s: float, seed: int) -> float:
    """Share of 40,000 Poisson arrivals of an M/G/n queue that end within the limit."""
    dice, free, at, met, n = Random(seed), [0.0] * servers, 0.0, 0, 40_000
    for _ in range(n):
        at += dice.expovariate(rate)
        service = dice.choice(services)
        end = max(at, free[0]) + service
        heapreplace(free, end)
        met += end - at <= limit_s
    return met / n


@pytest.mark.parametrize(("servers", "load"), [(1, 0.7), (2, 1.5), (4, 3.4)])
@pytest.mark.parametrize("spread", [0.0, 0.5])
def test_prefills_tail_is_within_five_points_of_a_simulated_queue(
    servers: int, load: float, spread: float
) -> None:
    work = Work(1200, 1200**2 * (1 + spread**2), 30)
    model = prefill_model(LLAMA, work, limit_s=0.6)
    rate = load / model.mean_s
    simulated = queue([s for s, _ in model.services], servers, rate, 0.6, seed=1)
    assert model.attainment(servers, rate) == pytest.approx(simulated, abs=0.05)


def test_prefills_tail_is_exact_for_an_exponential_service() -> None:
    """M/M/1: P(wait > t) = ρ·exp(−(μ−λ)t), for E[S²] = 2E[S]²."""
    model = PrefillModel(((0.5, 0.75), (4.5, 0.25)), mean_s=1.5, variation=2.0, limit_s=10.0)
    by_hand = 1 - sum(share * 0.5 * exp(-(1 - 0.5) * (10 - s) / 1.5) for s, share in model.services)
    assert model.attainment(1, 0.5 / 1.5) == pytest.approx(by_hand)


def test_more_replicas_and_less_load_never_attain_less() -> None:
    work = Work(1200, 1.6e6, 200)
    for model in (
        prefill_model(LLAMA, work, 0.6),
        prefill_model(LLAMA, work, 0.6, "deadline"),
        decode_model(LLAMA, work, 0.04, 0.01),
        colocated_model(LLAMA, work, 1.0, 0.05),
    ):
        shares = [model.attainment(n, 6.0) for n in range(1, 12)]
        assert shares == sorted(shares)
        shares = [model.attainment(3, rate / 4) for rate in range(1, 60)]
        assert shares == sorted(shares, reverse=True)


def test_decodes_batch_is_the_fixed_point_of_littles_law() -> None:
    model = decode_model(LLAMA, Work(150, 150**2, 200), 0.04)
    batch = model.batch(2, 6.0)
    step = model.base_s + model.sequence_s * batch
    assert batch == pytest.approx(6.0 / 2 * 199 * step)
    assert model.batch(1, 6.0) > 2 * batch
    assert model.batch(1, 1e6) == inf


def test_a_decode_pool_attains_about_one_half_when_its_mean_batch_is_the_limit() -> None:
    model = DecodeModel(0.03, 0.0003, alike(200), held_sequences=inf, limit_s=0.04)
    rate = model.batch_limit / (199 * 0.04)
    assert model.batch(1, rate) == pytest.approx(model.batch_limit)
    assert 0.35 < model.attainment(1, rate) < 0.5  # a sequence sees itself, too
    assert model.load(rate) == pytest.approx(1.0)


def test_an_absurd_queue_or_batch_asks_for_no_more_than_the_search_may_find() -> None:
    """Erlang C is a sum over replicas: a size of 10⁹ would hold up all fleets for minutes."""
    work, supply = Work(1200, 1.6e6, 200), RoleSupply("prefill", desired=1, ready=1)
    load = Load(rate=1.0, prompt_tokens=1200, outstanding_prompt_tokens=1e15, running=1e15)
    for model in (prefill_model(LLAMA, work, 0.6), decode_model(LLAMA, work, 0.04)):
        found = size(model, load, Counts(1, 1), supply, 0.9, Horizon(60.0, 60.0, 1.0)).up
        assert found == (5 if isinstance(model, PrefillModel) else MOST_REPLICAS)
        crowd = replace(load, rate=1e12)
        most = size(model, crowd, Counts(1, 1), supply, 0.9, Horizon(60.0, 60.0, 1.0)).up
        assert most == MOST_REPLICAS


def test_the_smallest_size_is_the_one_counting_up_finds() -> None:
    model = prefill_model(LLAMA, Work(1200, 1.6e6, 30), 0.6)
    for rate in (0.1, 2.8, 11.2, 90.0, 700.0):
        counted = next(n for n in range(1, 1000) if model.attainment(n, rate) >= 0.9)
        assert smallest(model, rate, 0.9) == counted


@pytest.mark.parametrize("rate", [2.0, 5.0, 8.0, 12.0, 20.0])
@pytest.mark.parametrize("gpus", [(1, 1), (2, 1), (1, 2)])
@pytest.mark.parametrize("queued", [False, True])
def test_the_budgets_joint_search_is_near_the_best_of_all_that_fit_eight_gpus(
    rate: float, gpus: tuple[int, int], queued: bool
) -> None:
    work = Work(1200, 1.5e6, 100)
    order = "deadline" if queued else "fifo"
    pools = (
        sizing.Pool(1, 8, gpus[0], prefill_model(LLAMA, work, 0.6, order), rate),
        sizing.Pool(1, 8, gpus[1], decode_model(LLAMA, work, 0.04), rate, queued),
    )
    found = sizing.fit_budget(pools, 8)
    fitting = [n for n in product(range(1, 9), repeat=2) if sizing.gpus(pools, n) <= 8]
    best = max(sizing.goodput(pools, n) for n in fitting)
    assert found in fitting
    assert sizing.goodput(pools, found) >= best - 0.02


def test_behind_a_queue_by_deadline_half_of_the_decode_pods_serve_half_of_the_requests() -> None:
    """Without one all are late, so that half of the pods would be worth nothing."""
    model, rate = decode_model(LLAMA, Work(1200, 1.5e6, 200), 0.04), 60.0
    need = smallest(model, rate, 0.99)
    alone, behind = (sizing.Pool(1, need, 1, model, rate, queued) for queued in (False, True))
    assert sizing.share_in_time(alone, need // 2) < 1e-9
    assert sizing.share_in_time(behind, need // 2) == pytest.approx(0.5, abs=0.06)
    assert sizing.share_in_time(behind, need) == sizing.share_in_time(alone, need)
    shares = [sizing.share_in_time(behind, n) for n in range(need + 1)]
    assert shares[0] == 0.0
    assert shares == sorted(shares)


def test_what_gpus_are_worth_is_that_of_the_best_split_between_the_pools() -> None:
    work, rate = Work(1200, 1.5e6, 100), 12.0
    pools = (
        sizing.Pool(1, 6, 2, prefill_model(LLAMA, work, 0.6, "deadline"), rate),
        sizing.Pool(2, 5, 1, decode_model(LLAMA, work, 0.04), rate, queued=True),
    )
    found = dict(sizing.worth(pools, 10.0))
    assert min(found) == 4
    for gpus, good in found.items():
        fitting = [
            (p, d) for p in range(1, 7) for d in range(2, 6) if sizing.gpus(pools, (p, d)) <= gpus
        ]
        best = max(
            sizing.share_in_time(pools[0], p) * sizing.share_in_time(pools[1], d)
            for p, d in fitting
        )
        assert good == pytest.approx(10.0 * best, rel=1e-5)
    assert sizing.worth((), 10.0) == ()
    wide = tuple(replace(pool, wanted=400) for pool in pools)
    points = sizing.worth(wide, 10.0)
    assert len(points) <= sizing.POINTS
    assert points[0][0] == 4
