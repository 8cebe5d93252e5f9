"""Constants of a replica from step counters: one row at a time, by numbers worked out by hand."""

from dataclasses import replace
from math import exp, inf, nan, sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy_law.estimate import capacity
from argosy_law.estimate.capacity import Estimate
from argosy_law.goals import SLO, Serving, Windows
from argosy_law.observe import LARGEST, StepDelta
from tests.scaling.known import LLAMA

WINDOWS = Windows()
GOALS = SLO(0.8, 0.064)
BASE, PER_PROMPT = 0.03, 1e-4
PRIOR = replace(LLAMA, decode_base_s=BASE)
NOISE = 0.05


def empty(at: float, step_s: float, steps: float = 10.0) -> StepDelta:
    """Steps without prompts and sequences, which show their base alone."""
    return StepDelta(at, steps * step_s, steps)


def taught(estimate: Estimate, *rows: StepDelta) -> Estimate:
    return capacity.learn(estimate, rows, WINDOWS)


def begun() -> Estimate:
    return capacity.begin("decode", PRIOR, GOALS)


def test_without_a_profile_a_replica_is_guessed_from_the_slo() -> None:
    decode = capacity.begin("decode", None, GOALS)
    assert decode.theta == decode.prior == (0.032, 0.0001, 0.0005, 0.064 / 131_072)
    assert capacity.begin("colocated", None, GOALS).theta[0] == 0.032
    assert capacity.begin("prefill", None, GOALS).theta[0] == 0.04
    assert decode.covariance[0] == ((3 * 0.032) ** 2, 0.0, 0.0, 0.0)
    assert decode.covariance[3] == (0.0, 0.0, 0.0, (3 * 0.064 / 131_072) ** 2)


def test_a_row_moves_a_constant_by_its_share_of_both_variances() -> None:
    """A step of 33 ms where 30 ± 9 ms were expected, measured to 5 %."""
    variance, noise = (0.3 * BASE) ** 2, (NOISE * 0.033) ** 2
    after = taught(begun(), empty(1000.0, 0.033))
    assert after.theta[0] == pytest.approx(BASE + 0.003 * variance / (variance + noise))
    assert after.theta[1:] == begun().theta[1:]
    assert after.covariance[0][0] == pytest.approx(variance * noise / (variance + noise))
    assert after.covariance[1] == begun().covariance[1]
    assert (after.rows, after.steps, after.at, after.refused) == (1, 10.0, 1000.0, 0)


def test_time_widens_only_what_a_row_measures() -> None:
    """Half a time constant later, by e^½."""
    first = taught(begun(), empty(1000.0, 0.033))
    later_s = WINDOWS.forget_s / 2
    second = taught(first, empty(1000.0 + later_s, first.theta[0]))
    wider = first.covariance[0][0] * exp(0.5)
    noise = (NOISE * first.theta[0]) ** 2
    assert second.covariance[0][0] == pytest.approx(wider * noise / (wider + noise))
    assert second.covariance[2] == first.covariance[2]
    years = taught(first, empty(1000.0 + 1e9, first.theta[0]))
    widest = first.covariance[0][0] * exp(1.0)
    assert years.covariance[0][0] == pytest.approx(widest * noise / (widest + noise))


@pytest.mark.parametrize(("deviations", "taken"), [(2.99, True), (3.01, False)])
def test_a_row_beyond_three_deviations_is_an_outlier(deviations: float, taken: bool) -> None:
    first = taught(begun(), *(empty(1000.0 + n, BASE) for n in range(20)))
    kept = exp(-1.0 / WINDOWS.forget_s)
    variance, y = first.covariance[0][0] / kept, BASE
    for _ in range(50):  # the noise of a row is a share of what it measures
        y = first.theta[0] + deviations * sqrt(variance + (NOISE * y) ** 2)
    after = taught(first, empty(1020.0, y))
    assert after.rows == (21 if taken else 20)
    assert after.refused == (0 if taken else 1)
    assert after.at == 1020.0


def test_three_outliers_are_left_out_and_the_fourth_is_a_changed_machine() -> None:
    first = taught(begun(), *(empty(1000.0 + n, BASE) for n in range(20)))
    slow = [empty(2000.0 + n, 0.09) for n in range(4)]
    third = taught(first, *slow[:3])
    assert (third.theta, third.refused, third.rows, third.at) == (first.theta, 3, 20, 2002.0)
    fourth = taught(third, slow[3])
    assert fourth.refused == 0
    surprise, kept = 0.09 - first.theta[0], exp(-1.0 / WINDOWS.forget_s)
    noise, known = (NOISE * 0.09) ** 2, first.covariance[0][0]
    wider = known * surprise**2 / (known / kept + noise) / 9
    share = wider / kept / (wider / kept + noise)
    assert fourth.theta[0] == pytest.approx(first.theta[0] + surprise * share)
    between = taught(first, *slow[:2], empty(2010.0, BASE), slow[0])
    assert between.refused == 0, "an older row is not taken again"


def measured(slowness: list[float], rounds: range) -> list[tuple[StepDelta, ...]]:
    """What pods report in each round whose steps take so many times as long: a busy second each,
    in which a slow one has fewer steps."""
    return [
        tuple(
            StepDelta(1000.0 + 15 * n, 1.0, 1 / (BASE * slow), pod=f"decode-{place}")
            for place, slow in enumerate(slowness)
        )
        for n in rounds
    ]


@given(st.integers(0, 9), st.floats(1.5, 9.0))
def test_one_slow_pod_of_ten_is_an_outlier(slow: int, slowness: float) -> None:
    pods, estimate = [1.0] * 10, begun()
    for rows in measured(pods, range(5)):
        estimate = taught(estimate, *rows)
    pods[slow] = slowness
    for rows in measured(pods, range(5, 45)):
        estimate = taught(estimate, *rows)
    assert estimate.theta[0] == pytest.approx(BASE, rel=0.01)
    assert estimate.rows == 50 + 40 * 9


@given(st.integers(1, 5), st.floats(2.0, 4.0))
def test_where_half_of_the_pods_are_slow_a_step_takes_what_it_takes_on_average(
    half: int, slowness: float
) -> None:
    """Two pods of which one has half the speed do the work of 1.5: a step takes 2/1.5 as long."""
    estimate = begun()
    for rows in measured([1.0, 1.0] * half, range(5)):
        estimate = taught(estimate, *rows)
    for rows in measured([1.0, slowness] * half, range(5, 45)):
        estimate = taught(estimate, *rows)
    assert estimate.theta[0] == pytest.approx(BASE * 2 / (1 + 1 / slowness), rel=0.05)
    for rows in measured([1.0, 1.0] * half, range(45, 85)):
        estimate = taught(estimate, *rows)
    assert estimate.theta[0] == pytest.approx(BASE, rel=0.1)


def test_pods_that_were_not_alike_are_summed_for_twenty_rounds_more() -> None:
    estimate = begun()
    for rows in measured([1.0, 1.0, 2.0, 2.0], range(6)):
        estimate = taught(estimate, *rows)
    learnt = []
    for rows in measured([4 / 3] * 4, range(6, 28)):
        after = taught(estimate, *rows)
        learnt.append(after.rows - estimate.rows)
        estimate = after
    assert learnt == [1] * 19 + [4] * 3


@pytest.mark.parametrize(
    ("rows", "steps", "learnt"), [(10, 30.0, True), (9, 30.0, False), (10, 29.9, False)]
)
def test_ten_rows_and_thirty_steps_are_enough(rows: int, steps: float, learnt: bool) -> None:
    assert replace(begun(), rows=rows, steps=steps).learnt is learnt


def test_a_renewed_estimate_is_no_longer_one_once_enough_is_measured() -> None:
    renewed = replace(begun(), renewed=True)
    nine = taught(renewed, *(empty(1000.0 + n, BASE) for n in range(9)))
    assert nine.renewed
    assert not taught(nine, empty(1009.0, BASE)).renewed


def test_no_constant_is_less_certain_than_a_guess() -> None:
    prior = begun().prior
    wide = [[0.0] * 4 for _ in range(4)]
    for i in range(4):
        wide[i][i] = (6 * prior[i]) ** 2
    wide[0][1] = wide[1][0] = 0.5 * 36 * prior[0] * prior[1]
    capped = capacity._capped(wide, prior, prior)
    assert [capped[i][i] for i in range(4)] == [pytest.approx((3 * t) ** 2) for t in prior]
    assert capped[0][1] == pytest.approx(0.5 * 9 * prior[0] * prior[1]), "the correlation stays"
    assert capacity._capped([list(row) for row in capped], prior, prior) == capped
    larger = tuple(2 * t for t in prior)
    grown = capacity._capped(wide, prior, larger)  # type: ignore[arg-type]
    assert grown == tuple(map(tuple, wide)), "what was measured counts if it is larger"


def test_a_constant_that_would_be_negative_is_0_and_gives_the_others_their_share() -> None:
    """Base and time per token are known by their sum: what the base loses the token gets."""
    covariance = [[4.0, -2.0, 0.0, 0.0], [-2.0, 4.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0]]
    covariance.append([0.0, 0.0, 0.0, 1.0])
    assert capacity._not_negative([-1.0, 3.0, 2.0, 1.0], covariance) == (0.0, 2.5, 2.0, 1.0)
    assert capacity._not_negative([1.0, 3.0, 0.0, 1.0], covariance) == (1.0, 3.0, 0.0, 1.0)
    assert capacity._not_negative([-1.0, 0.4, 2.0, 1.0], covariance) == (0.0, 0.0, 2.0, 1.0)


def test_an_estimate_that_was_read_back_corrupt_is_not_sound() -> None:
    good = begun()
    assert capacity.sound(good)
    assert capacity.sound(replace(good, at=5.0, refused=3))
    matrix = [list(row) for row in good.covariance]

    def with_entry(i: int, j: int, number: float) -> Estimate:
        rows = [list(row) for row in matrix]
        rows[i][j] = number
        return replace(good, covariance=tuple(map(tuple, rows)))  # type: ignore[arg-type]

    for bad in (
        replace(good, theta=(nan, 0.0, 0.0, 0.0)),
        replace(good, theta=(-1.0, 0.0, 0.0, 0.0)),
        replace(good, rows=-1),
        replace(good, steps=inf),
        replace(good, prior=(-1e-9, 0.0, 0.0, 0.0)),
        replace(good, prior=(2 * LARGEST, 0.0, 0.0, 0.0)),
        replace(good, refused=-1),
        replace(good, summed=-1),
        replace(good, at=nan),
        with_entry(0, 1, 1e-30),  # not symmetric
        with_entry(3, 3, inf),
        with_entry(3, 3, 0.0),
        with_entry(0, 0, nan),
    ):
        assert not capacity.sound(bad), bad
    assert capacity.sound(replace(good, prior=(0.0, LARGEST, 0.0, 0.0)))
    indefinite = [[1.0, 2.0, 0, 0], [2.0, 1.0, 0, 0], [0, 0, 1.0, 0], [0, 0, 0, 1.0]]
    assert not capacity.sound(replace(good, covariance=tuple(map(tuple, indefinite))))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("base_s", "per_token_s", "tokens"),
    [
        pytest.param(0.01, 0.0001, 900, id="the example of the docstring"),
        pytest.param(0.01, 0.0014, 256, id="two cores: 65 would saturate them"),
        pytest.param(0.02, 0.00002, 2048, id="a large base"),
        pytest.param(0.0, 0.001, 256, id="no base"),
        pytest.param(0.02, 0.0, 2048, id="no time per token"),
        pytest.param(1e15, 1e-300, 2048, id="what no machine has"),
    ],
)
def test_an_engine_that_sizes_its_steps_has_the_saturation_length(base_s, per_token_s, tokens):
    """As `argosy_engine.core.step_time.prompt_tokens` has it without a limit."""
    estimate = replace(begun(), theta=(base_s, per_token_s, 0.0, 0.0))
    auto = Serving(step_tokens=2048, auto_steps=True)
    assert capacity.replica(estimate, 0.0, auto).step_tokens == tokens
    assert capacity.replica(estimate, 0.0, replace(auto, auto_steps=False)).step_tokens == 2048
