"""The demo's plan, fleet and scoring against the law and a simulated fleet, several seeds."""

import pytest

from argosy_law.decision import Rule
from local.demo.traffic import plan, score
from tests.scaling import demo
from tests.scaling.closed import Run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=[7, 1, 2, 3, 4, 5])
def ramp(request: pytest.FixtureRequest) -> Run:
    return demo.ramp(request.param)


def test_every_phase_of_the_demo_meets_its_goal_once_settled(ramp: Run) -> None:
    shares = score.after_settling(demo.seen(ramp), demo.limits())
    assert all(n >= 25 for _, n in shares)
    assert min(share or 0.0 for share, _ in shares) >= 0.9


def test_the_demo_settles_within_twenty_seconds_of_each_step(ramp: Run) -> None:
    assert score.settling_s(demo.seen(ramp), demo.limits()) <= 20


def test_the_demos_surge_needs_prefill_and_its_other_mix_decode(ramp: Run) -> None:
    surge, mix, low = ramp.bounds[1:4]
    assert max(n for at, n in ramp.replicas("prefill") if surge < at <= mix) >= 2
    assert max(n for at, n in ramp.replicas("decode") if surge < at <= mix) == 1
    assert max(n for at, n in ramp.replicas("decode") if mix < at <= low) >= 2


def test_decode_grows_as_soon_as_its_batch_is_too_large(ramp: Run) -> None:
    """The lengths of new answers are known only at their end; the running sequences at once."""
    mix, goals = ramp.bounds[2], demo.goals()
    grown_at = next(at for at, n in ramp.replicas("decode") if at > mix and n >= 2)
    decision = next(t.decision for t in ramp.ticks if t.at == grown_at)
    assert next(t for t in decision.targets if t.role == "decode").rule is Rule.IN_FLIGHT
    limit = decision.numbers["decode_batch_limit"]
    phase = plan.RAMP[2]
    # Requests of this phase fill one replica's batch in limit / rate seconds; two ticks and two
    # scrapes see it, and Poisson arrivals may be late by two σ.
    filled_s = (limit + 2 * limit**0.5) / phase.rate_per_s
    seen_s = 2 * goals.windows.interval_s + 2 * goals.windows.scrape_s
    assert grown_at - mix <= filled_s + seen_s


def test_both_roles_of_the_demo_are_back_at_one_thirty_seconds_after_its_end(ramp: Run) -> None:
    last = ramp.ticks[-1].decision
    assert (last.replicas("prefill"), last.replicas("decode")) == (1, 1)


def test_the_demo_reverses_no_role_more_than_its_load_does(ramp: Run) -> None:
    """Each role has one peak: one reversal; two more are allowed for a cluster of arrivals."""
    assert ramp.reversals("prefill") <= 3
    assert ramp.reversals("decode") <= 3


def test_a_start_three_times_as_slow_does_not_make_it_flap() -> None:
    slow = demo.ramp(7, cold_s=3 * demo.PROCESS_START_S)
    assert slow.reversals("prefill") <= 3
    assert slow.reversals("decode") <= 3
