"""The models of the pools by numbers that are worked out by hand, and where their limits are."""

from dataclasses import replace
from math import e, exp, inf, sqrt
from statistics import NormalDist

import pytest

from argosy_law.decision import Rule
from argosy_law.goals import RoleGoal
from argosy_law.observe import RoleSupply
from argosy_law.size import sizing
from argosy_law.size.pools import (
    ColocatedModel,
    DecodeModel,
    Limits,
    PrefillModel,
    model_of,
    prefill_model,
    share_waiting,
    smallest,
)
from argosy_law.size.sizing import (
    Counts,
    Demanded,
    Horizon,
    Load,
    backlog,
    counts,
    fewest,
    size,
)
from argosy_law.size.work import Replica, Work, alike
from tests.scaling import known

STEPS = DecodeModel(0.03, 0.0003, alike(101), held_sequences=inf, limit_s=0.0336)
"""A step of n sequences takes 30 + 0.3·n ms, an answer 100 steps; the limit allows 12."""


# --- decode ---------------------------------------------------------------------------------------


def test_a_decode_pool_attains_what_its_batch_rarely_exceeds() -> None:
    """Four pods with 10 sequences each: steps of 33 ms. Their variance is 10·1.1/4 = 2.75, and a
    sequence sees 10.275. An answer lasts 100/50/1.1 = 1.82 correlation times."""
    rate = 4 * 10 / 0.033 / 100
    assert STEPS.batch(4, rate) == pytest.approx(10.0)
    stays = 100 / 50 / 1.1
    kept = 2 * (stays - 1 + exp(-stays)) / stays**2
    met = NormalDist().cdf((12 - 10.275) / sqrt(2.75 * kept))
    assert STEPS.attainment(4, rate) == pytest.approx(met)


def test_the_load_of_decode_is_the_rate_over_that_of_a_pod_at_its_limit() -> None:
    """12 sequences in steps of 33.6 ms are 12/3.36 = 3.57 answers a second."""
    assert STEPS.load(1.0) == pytest.approx(3.36 / 12)
    tight = replace(STEPS, limit_s=0.0301)
    assert tight.load(1.0) == pytest.approx(3.03), "a pod holds one sequence at least"
    assert [tight.in_flight_floor(n) for n in (0.0, 1.0, 2.0)] == [0, 1, 2]


def test_a_relaxed_decode_pool_allows_twice_what_a_lone_sequence_takes() -> None:
    hard = replace(STEPS, limit_s=0.01, pause_s=0.005, held_sequences=0.5)
    relaxed = hard.relaxed(0.9)
    assert relaxed.limit_s == pytest.approx(2 * 0.0303 + 0.005)
    assert relaxed.held_sequences == 1.0
    easy = replace(STEPS, limit_s=1.0)
    assert easy.relaxed(0.9) == easy


# --- prefill --------------------------------------------------------------------------------------


def test_a_queue_whose_customers_give_up_is_that_of_the_textbook() -> None:
    """M/M/1 with the load a and the patience 1: the density of the wait is a·p·e^(−(1 − a)w) up to
    1, then it falls with e^(−w); p is the share that does not wait."""
    assert share_waiting(1, 2.0, 0.0, 1.0) == pytest.approx((4 * e - 2) / (4 * e - 1))
    assert share_waiting(1, 2.0, 1.0, 1.0) == pytest.approx(2 * e / (4 * e - 1))
    assert share_waiting(1, 2.0, 2.0, 1.0) == pytest.approx(2 / (4 * e - 1))
    assert share_waiting(1, 1.0, 0.0, 1.0) == pytest.approx(2 / 3)
    assert share_waiting(1, 1.0, 0.5, 1.0) == pytest.approx(1.5 / 3)
    assert share_waiting(1, 1.0, 1.0, 1.0) == pytest.approx(1 / 3)
    root = exp(-0.5)
    whole = 1 + (1 - root) + 0.5 * root
    assert share_waiting(1, 0.5, 0.0, 1.0) == pytest.approx((whole - 1) / whole)
    assert share_waiting(1, 0.5, 1.0, 1.0) == pytest.approx(0.5 * root / whole)


def test_the_moments_of_a_prompts_time_are_those_of_its_lengths() -> None:
    """Half take 0.1 + 0.1 s, half 0.1 + 0.3 s: the mean is 0.3 s, the second moment 0.1 s²."""
    work = Work(200.0, 50_000.0, 10.0, prompts=((100.0, 0.5), (300.0, 0.5)))
    model = prefill_model(Replica(0.1, 1e-3, 0.0, 0.0), work, 1.0)
    assert model.services == ((pytest.approx(0.2), 0.5), (pytest.approx(0.4), 0.5))
    assert model.mean_s == pytest.approx(0.3)
    assert model.variation == pytest.approx(0.1 / 0.09)
    tail = prefill_model(Replica(0.1, 1e-3, 0.0, 0.0), replace(work, prompt_squared=60_000.0), 1.0)
    assert tail.variation == pytest.approx(0.11 / 0.09)
    fewer = prefill_model(Replica(0.1, 1e-3, 0.0, 0.0), replace(work, prompt_squared=1.0), 1.0)
    assert fewer.variation == pytest.approx(0.1 / 0.09)


# --- colocated ------------------------------------------------------------------------------------

QUEUE = PrefillModel(((0.2, 1.0),), 0.2, 1.0, 1.0)


def test_an_answer_of_a_colocated_pod_leaves_time_for_the_prompts_that_it_meets() -> None:
    """One pod: all that come while an answer of 100 steps is there, and in the step before, are
    met, at any times. There are more than six, so that their sum is normal."""
    rate, pool = 2.0, ColocatedModel(QUEUE, replace(STEPS, limit_s=0.05), prompts=alike(0.1))
    stretched, slowed = pool._parts(1, rate)
    batch = stretched.batch(1, rate)
    grown = 1 + 0.0003 * batch / 0.03
    stays = 100 / 50 / grown
    kept = 2 * (stays - 1 + exp(-stays)) / stays**2
    left_s = 100 * (0.05 - 0.03 - 0.0003 * (batch + grown))
    count = 2.0 * (99 * 0.05 + 0.03 + 0.0003 * batch + 0.1)
    noise = 0.03**2 * batch * grown * kept + count * 0.1**2
    tpot = NormalDist().cdf((left_s - count * 0.1) / sqrt(noise))
    inflated = PrefillModel(((0.2 / (1 - slowed), 1.0),), 0.2 / (1 - slowed), 1.0, 1.0)
    assert 0.5 < tpot < 0.99
    assert pool.attainment(1, rate) == pytest.approx(tpot * inflated.attainment(1, rate), abs=1e-6)


def test_a_colocated_pool_sums_loads_and_is_as_good_as_its_worse_half() -> None:
    pool = ColocatedModel(QUEUE, STEPS, prompts=alike(0.1))
    assert pool.load(2.0) == pytest.approx(STEPS.load(2.0) + 0.2)
    assert pool.reachable == 1.0
    assert replace(pool, prefill=replace(QUEUE, limit_s=0.1)).reachable == 0.0
    assert replace(pool, decode=replace(STEPS, limit_s=0.01)).reachable == 0.0
    assert pool.in_flight_floor(25.0) == 3
    hard = ColocatedModel(replace(QUEUE, limit_s=0.1), replace(STEPS, limit_s=0.01), alike(0.1))
    assert (hard.relaxed(0.9).prefill.limit_s, hard.relaxed(0.9).decode.limit_s) == (0.4, 0.0606)


# --- sizes ----------------------------------------------------------------------------------------


def test_each_role_has_its_model_and_limits() -> None:
    replica, work = Replica(0.03, 1e-4, 3e-4, 0.0), Work(1000.0, 1e6, 100.0)
    limits = Limits(1.0, 0.04, 0.9, pause_s=0.01, order="deadline")
    one, other = (model_of(role, replica, work, limits) for role in ("prefill", "decode"))  # type: ignore[arg-type]
    assert isinstance(one, PrefillModel)
    assert (one.limit_s, one.order) == (1.0, "deadline")
    assert isinstance(other, DecodeModel)
    assert (other.limit_s, other.pause_s) == (0.04, 0.01)
    assert isinstance(model_of("colocated", replica, work, limits), ColocatedModel)


def test_the_goal_is_lowered_to_just_below_what_can_be_reached() -> None:
    """A tenth of the prompts is late in any case, so the goal is 0.895 and not 0.9."""
    model = PrefillModel(((0.2, 0.9), (9.0, 0.1)), 1.08, 2.0, 1.0)
    for rate in (0.5, 4.0, 40.0):
        counted = next(n for n in range(1, 500) if model.attainment(n, rate) >= 0.895)
        assert smallest(model, rate, 0.95) == counted


SUPPLY = RoleSupply("prefill", desired=4, ready=4)
HORIZON = Horizon(cold_s=60.0, drain_s=30.0, patience_s=1.0)


@pytest.mark.parametrize(
    ("queued_s", "ready", "pending", "started_s", "replicas"),
    [
        (60.0, 4, 0, 0.0, 0),  # 2 are busy, so 120 s of the queue are worked off until a start
        (120.0, 4, 0, 0.0, 0),  # it is gone just then
        (150.0, 4, 0, 0.0, 3),  # 30 s are left for 30 s
        (151.0, 4, 0, 0.0, 4),
        (240.0, 4, 0, 0.0, 6),  # 120 s are left, and at most 4 are added
        (9000.0, 4, 0, 0.0, 6),
        (150.0, 4, 1, 20.0, 3),
        (150.0, 4, 1, 30.0, 0),  # the pending one serves 30 s more
        (150.0, 4, 1, 90.0, 0),
        (1.0, 1, 0, 0.0, 0),  # no request is lost
        (1.01, 1, 0, 0.0, 5),  # what comes meanwhile is not served
        (1.0, 0, 0, 0.0, 0),
        (1.01, 0, 0, 0.0, 6),
    ],
)
def test_a_queue_asks_for_replicas_that_still_reach_it(
    queued_s: float, ready: int, pending: int, started_s: float, replicas: int
) -> None:
    supply = replace(SUPPLY, ready=ready, pending=pending)
    horizon = replace(HORIZON, started_s=started_s)
    assert backlog(QUEUE, queued_s, 10.0, supply, horizon) == replicas


def test_a_size_is_the_largest_of_load_queue_and_what_runs() -> None:
    quiet = size(QUEUE, Load(2.0, 100.0), Counts(1, 2), SUPPLY, 0.9, HORIZON)
    assert (quiet.up, quiet.down, quiet.rule, quiet.rate) == (1, 2, Rule.DEMAND, 2.0)
    assert (quiet.reachable, quiet.backlog_s) == (True, 0.0)
    assert quiet.share == QUEUE.attainment(1, 2.0)
    running = size(STEPS, Load(2.0, 100.0, running=61.0), Counts(3, 3), SUPPLY, 0.9, HORIZON)
    assert (running.up, running.down, running.rule) == (6, 6, Rule.IN_FLIGHT)
    equal = size(STEPS, Load(2.0, 100.0, running=36.0), Counts(3, 4), SUPPLY, 0.9, HORIZON)
    assert (equal.up, equal.down, equal.rule) == (3, 4, Rule.DEMAND)
    prompts = Load(10.0, 100.0, outstanding_prompt_tokens=75_500.0, running=1e6)
    queued = size(QUEUE, prompts, Counts(3, 3), SUPPLY, 0.9, HORIZON)
    assert (queued.up, queued.rule, queued.backlog_s) == (4, Rule.BACKLOG, pytest.approx(151.0))
    hopeless = size(replace(QUEUE, limit_s=0.1), Load(2.0, 1.0), Counts(1, 1), SUPPLY, 0.9, HORIZON)
    assert (hopeless.reachable, hopeless.rule, hopeless.share) == (False, Rule.SLO_UNREACHABLE, 0.0)


# --- a GPU budget ---------------------------------------------------------------------------------


def test_a_budget_that_fits_changes_nothing_and_minimums_are_kept_over_it() -> None:
    pools = (
        sizing.Pool(2, 5, 2, QUEUE, 10.0),
        sizing.Pool(3, 9, 1, STEPS, 10.0),
    )
    assert sizing.gpus(pools, (5, 9)) == 19
    assert sizing.fit_budget(pools, 19) == (5, 9)
    assert sizing.fit_budget(pools, 0) == (2, 3)
    assert sizing.gpus(pools, sizing.fit_budget(pools, 18)) <= 18
    less = (replace(pools[0], minimum=7), pools[1])
    assert sizing.fit_budget(less, 0) == (5, 3), "a minimum above the need is not kept"


def test_a_step_that_gains_as_much_for_fewer_gpus_is_taken_first() -> None:
    """Both pools lack one replica, and one of four GPUs gains no more than one of a single GPU."""
    cheap = sizing.Pool(1, 2, 1, QUEUE, 6.0)
    dear = replace(cheap, gpus=4)
    assert sizing.fit_budget((dear, cheap), 6) == (1, 2)
    assert sizing.fit_budget((cheap, dear), 9) == (2, 1)


# --- lengths --------------------------------------------------------------------------------------


def test_what_prefill_computes_is_what_caches_do_not_have_and_at_least_a_token() -> None:
    work = Work(200.0, 50_000.0, 10.0, prompts=((100.0, 0.5), (300.0, 0.5)), cached=0.25)
    assert work.computed == 150.0
    assert work.computed_spread == ((75.0, 0.5), (225.0, 0.5))
    assert work.computed_squared == pytest.approx(50_000 * 0.5625)
    assert replace(work, cached=1.0).computed == 1.0
    assert work.answer_spread == ((10.0, 1.0),)
    assert replace(work, answers=((3.0, 1.0),)).answer_spread == ((3.0, 1.0),)


def test_roles_are_counted_together_for_their_load_and_for_more_of_it() -> None:
    """A GPU of decode costs twice that of prefill, and its replicas have two."""
    models = {"prefill": QUEUE, "decode": STEPS}
    loads = {"prefill": Load(30.0, 100.0), "decode": Load(20.0, 100.0)}
    supplies = {
        "prefill": replace(SUPPLY, gpus_per_replica=4),
        "decode": RoleSupply("decode", 1, 1, gpus_per_replica=2),
    }
    roles = tuple(
        RoleGoal(role, 1, 99, gpu_cost_per_hour=cost)
        for role, cost in (("prefill", 1.0), ("decode", 2.0))
    )
    goals = replace(known.goals(), roles=roles)

    def needed(factor: float) -> tuple[int, ...]:
        pools = (Demanded(QUEUE, 30.0 * factor, 4.0), Demanded(STEPS, 20.0 * factor, 4.0))
        return fewest(pools, 0.9)

    found = counts(models, loads, supplies, goals, 0.9)  # type: ignore[arg-type]
    assert list(found) == ["prefill", "decode"]
    assert tuple(count.up for count in found.values()) == needed(1.0)
    assert tuple(count.down for count in found.values()) == needed(1.15)
    assert needed(1.0) != needed(1.15)
