"""The worked numbers that stand beside constants of the law, computed."""

from dataclasses import replace
from math import ceil, exp, log, sqrt

import pytest

from argosy_law.decision import Rule
from argosy_law.estimate import capacity, demand
from argosy_law.estimate.demand import DemandState
from argosy_law.goals import StepLimits, Windows, cold_start_s
from argosy_law.observe import RoleSupply
from argosy_law.pace import gates
from argosy_law.signals import learning
from argosy_law.signals.samples import ENOUGH_TRANSFERS
from argosy_law.size import pools
from argosy_law.size.pools import HELD_ABOVE_MEAN, decode_model
from argosy_law.size.sizing import HYSTERESIS
from argosy_law.size.work import Replica, Work
from argosy_law.state import HoldState, RoleState, Want
from tests.scaling.known import USUAL, metrics


def test_hysteresis_a_pool_of_two_becomes_one_below_8_7_requests_a_second() -> None:
    carries = 10.0
    assert ceil(19 / carries) == 2
    assert carries / HYSTERESIS == pytest.approx(8.7, abs=0.05)
    assert 1 / sqrt(40) == pytest.approx(0.16, abs=0.002)


@pytest.mark.parametrize(("stays", "kept"), [(0.0, 1.0), (1.0, 0.736), (4.0, 0.377)])
def test_the_mean_of_a_batch_over_an_answer_varies_less_the_longer_it_is(
    stays: float, kept: float
) -> None:
    assert pools.kept_variance(stays) == pytest.approx(kept, abs=0.001)


def test_a_sequence_counts_a_third_of_its_answer_above_its_mean_context() -> None:
    assert 1 / sqrt(12) == pytest.approx(HELD_ABOVE_MEAN, abs=0.012)
    work, room = Work(150, 150**2, 200), Replica(0.03, 0, 0.0003, 0, kv_tokens=3100)
    assert decode_model(room, work, 1.0).held_sequences == pytest.approx(10)
    deviation = sqrt(10) * 200 / sqrt(12)
    assert (3100 - 10 * work.context) / deviation == pytest.approx(3.3, abs=0.05)


def corrected(share: float) -> float:
    """The headroom after one interval with this measured attainment of prefill, from 1.0."""
    role = RoleState("prefill", capacity.begin("prefill", None, USUAL))
    seen = metrics(0.0, 1.0, {"prefill": 1}, ttft_attainment=share)
    return learning.corrected_headroom(role, seen, 0.9)


def test_feedback_moves_the_headroom_by_at_most_0_4_percent_an_interval() -> None:
    assert corrected(0.7) - 1 == pytest.approx(0.0036, abs=0.00005)
    assert corrected(1.0) - 1 == pytest.approx(-0.0009, abs=0.00005)
    assert ceil(log(1.1) / (learning.FEEDBACK_GAIN * learning.FEEDBACK_ERROR[1])) == 27
    assert exp(learning.FEEDBACK_GAIN * learning.FEEDBACK_ERROR[1]) < 1.004


def test_too_few_verdicts_correct_nothing() -> None:
    assert sqrt(0.9 * 0.1 / learning.SCORED_ENOUGH) == pytest.approx(0.07, abs=0.003)
    role = RoleState("prefill", capacity.begin("prefill", None, USUAL))
    seen = metrics(0.0, 1.0, {"prefill": 1}, ttft_attainment=0.0)
    few = replace(seen, scored=learning.SCORED_ENOUGH - 1.0)
    assert learning.corrected_headroom(role, few, 0.9) == 1.0


@pytest.mark.parametrize(("rate", "factor"), [(10.0, 1.075), (0.5, 1.34)])
def test_the_prior_margin_covers_noise_beyond_poissons(rate: float, factor: float) -> None:
    assert demand.margin(DemandState(), rate, 3.0, Windows()) == pytest.approx(factor, abs=0.005)


def test_a_quarter_of_a_usual_transfer_is_below_one_percent_of_tpot() -> None:
    per_token_s = 0.06 / 59
    assert per_token_s / sqrt(ENOUGH_TRANSFERS) / 0.04 == pytest.approx(0.006, abs=0.0005)


def test_two_slow_starts_in_twenty_do_not_raise_the_cold_start() -> None:
    supply = RoleSupply("decode", 1, 1, cold_starts_s=(*range(1, 19), 300.0, 400.0))
    assert cold_start_s(supply, Windows()) == 18.0
    assert cold_start_s(RoleSupply("decode", 1, 1), Windows()) == Windows().cold_start_s


@pytest.mark.parametrize(("have", "most"), [(2, 6), (20, 40)])
def test_a_step_up_is_the_larger_of_percent_and_pods(have: int, most: int) -> None:
    wants = HoldState((Want(0.0, 100),), (Want(0.0, 100),))
    assert gates.apply_holds(wants, have, Rule.DEMAND, None, StepLimits()) == (
        most,
        Rule.STEP_LIMIT,
    )
