"""The law's rules, one by one, with values."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from argosy_law.decide import decide
from argosy_law.decision import Rule
from argosy_law.goals import SLO, Goals, Serving
from argosy_law.observe import (
    NOT_ASKED,
    Bin,
    FleetMetrics,
    Idle,
    Observations,
    RoleMetrics,
    RoleSupply,
    Signal,
    StepDelta,
    Value,
)
from argosy_law.signals.samples import TRANSFERS, Round, Series, assemble
from argosy_law.state import ScalingState
from tests.scaling.ramp import ENGINE, GOALS

START = 1000.0
PRIMED = replace(GOALS, prior=ENGINE)


def metrics(now: float, rate: float, **more: object) -> FleetMetrics:
    arrivals: Signal = Value(rate, now) if rate else Idle(now)
    bins = tuple(Bin(now - 14 + i, rate) for i in range(15))
    full = FleetMetrics(
        at=now,
        arrivals=arrivals,
        bins=bins,
        prompt_tokens=Value(2000, now),
        prompt_tokens_squared=Value(4.1e6, now),
        output_tokens=Value(60, now),
        kv_transfer_s=Idle(now),
        attainment=Idle(now),
        roles=(RoleMetrics("prefill", 3), RoleMetrics("decode", 3)),
    )
    full = replace(full, **more)  # type: ignore[arg-type]
    return replace(full, roles=tuple(known(role, now) for role in full.roles))


def known(role: RoleMetrics, now: float) -> RoleMetrics:
    """The role's engines with every gauge that was not given, as those of an empty engine."""
    empty = {
        "running": Value(0.0, now),
        "outstanding_prompt_tokens": Value(0.0, now),
        "kv_capacity_tokens": Value(480_000.0, now),
    }
    unset = {name: v for name, v in empty.items() if getattr(role, name) is NOT_ASKED}
    return replace(role, **unset)


def supply(prefill: int, decode: int) -> tuple[RoleSupply, ...]:
    return (
        RoleSupply("prefill", prefill, prefill, gpus_per_replica=4),
        RoleSupply("decode", decode, decode, gpus_per_replica=4),
    )


def follow(metrics_at, supplies, ticks: int = 40, goals=GOALS):  # type: ignore[no-untyped-def]
    """Run `ticks` intervals with replicas that follow at once; the last decision."""
    state, decision = ScalingState(), None
    for i in range(ticks):
        now = START + 2 * i
        state, decision = decide(state, Observations(metrics_at(now), supplies), goals, now)
        supplies = supply(decision.replicas("prefill"), decision.replicas("decode"))
    assert decision is not None
    return decision


def test_stale_samples_are_unknown() -> None:
    decision = follow(lambda now: replace(metrics(now, 0), arrivals=Idle(now - 4)), supply(3, 3))
    assert [t.replicas for t in decision.targets] == [3, 3]
    assert "Stale" in decision.message


def test_a_measured_nothing_goes_to_the_minimum_after_the_hold() -> None:
    early = follow(lambda now: metrics(now, 0), supply(3, 3), ticks=5)
    assert [t.replicas for t in early.targets] == [3, 3]
    late = follow(lambda now: metrics(now, 0), supply(3, 3), ticks=30)
    assert [t.replicas for t in late.targets] == [1, 1]


def test_a_guessed_capacity_only_adds() -> None:
    decision = follow(lambda now: metrics(now, 0.5), supply(3, 3))
    assert decision.targets[0].replicas == 3
    assert decision.targets[0].rule is Rule.CAPACITY_GUESSED


def test_without_an_slo_replicas_go_to_their_minimum() -> None:
    goals = replace(GOALS, slo=None)
    decision = follow(lambda now: metrics(now, 9), supply(3, 3), ticks=1, goals=goals)
    assert [t.replicas for t in decision.targets] == [1, 1]
    assert decision.rule is Rule.NO_SLO


def test_the_gpu_budget_binds_and_is_named() -> None:
    goals = replace(GOALS, gpu_budget=12)
    decision = follow(lambda now: metrics(now, 12), supply(1, 1), goals=goals)
    assert 4 * sum(t.replicas for t in decision.targets) <= 12
    assert Rule.GPU_BUDGET in {t.rule for t in decision.targets}


def priced(prefill: float | None, decode: float | None) -> Goals:
    """The goals of a fleet whose GPUs cost so much per hour."""
    costs = {"prefill": prefill, "decode": decode}
    roles = tuple(replace(role, gpu_cost_per_hour=costs[role.role]) for role in PRIMED.roles)
    return replace(PRIMED, roles=roles)


@given(
    cost=st.floats(0.0001, 99_999.0),
    rate=st.floats(0.1, 20.0),
    have=st.tuples(st.integers(1, 6), st.integers(1, 6)),
)
@settings(max_examples=30, deadline=None)
def test_where_all_gpus_cost_the_same_decisions_are_those_without_costs(
    cost: float, rate: float, have: tuple[int, int]
) -> None:
    seen = Observations(metrics(START, rate), supply(*have))
    state, plain = decide(ScalingState(), seen, PRIMED, START)
    same, priced_too = decide(ScalingState(), seen, priced(cost, cost), START)
    assert same == state
    assert priced_too.targets == plain.targets
    assert priced_too.candidates == plain.candidates
    more = priced_too.numbers.keys() - plain.numbers.keys()
    assert {name.partition("_")[0] for name in more} == {"cost"}


def test_dearer_gpus_of_one_role_move_load_to_the_other() -> None:
    """All three attain the goal together; which role gives more of it, the cost decides."""

    def demanded(goals: Goals) -> list[int]:
        tight = replace(goals, slo=SLO(0.6, 0.031, 0.8), serving=Serving("deadline"))
        seen = Observations(metrics(START, 60.0), supply(1, 1))
        return [t.demanded for t in decide(ScalingState(), seen, tight, START)[1].targets]

    assert demanded(PRIMED) == [12, 27]
    assert demanded(priced(20, 1)) == [11, 28]
    assert demanded(priced(1, 20)) == [13, 26]


NUMBERS = st.floats(min_value=0, max_value=1e6, allow_nan=False)


@settings(max_examples=60, deadline=None)
@given(rate=NUMBERS, prompt=NUMBERS, squared=NUMBERS, output=NUMBERS, share=st.floats(0, 1))
def test_for_any_measurement_the_answer_is_within_min_and_max(
    rate: float, prompt: float, squared: float, output: float, share: float
) -> None:
    def seen(now: float) -> FleetMetrics:
        return metrics(
            now,
            rate,
            prompt_tokens=Value(prompt, now),
            prompt_tokens_squared=Value(squared, now),
            output_tokens=Value(output, now),
            attainment=Value(share, now),
            scored=50.0,
        )

    decision = follow(seen, supply(2, 2), ticks=3)
    assert all(1 <= t.replicas <= 4 for t in decision.targets)


def test_a_hold_of_zero_is_no_idleness_and_no_division_by_it() -> None:
    """`scaleDown.stabilization: 0s`: the holds then come from the cold start alone."""
    goals = replace(GOALS, windows=replace(GOALS.windows, down_hold_s=0.0))

    def busy(now: float) -> FleetMetrics:
        row = StepDelta(now, 1.0, 10.0, prefill_tokens=20_000.0, prefill_requests=10.0)
        return metrics(now, 12, roles=(RoleMetrics("prefill", 3, (row,)), RoleMetrics("decode", 3)))

    decision = follow(busy, supply(1, 1), goals=goals)
    assert decision.replicas("prefill") > 1
    assert decision.targets[0].rule is not Rule.IDLE
    late = follow(lambda now: metrics(now, 0), supply(3, 3), ticks=30, goals=goals)
    assert [t.replicas for t in late.targets] == [1, 1]


def test_a_budget_that_is_short_takes_nothing_from_a_role_that_must_keep_its_pods() -> None:
    """Just started: nothing may be removed, not even to give the GPUs to the other role."""
    goals = replace(GOALS, gpu_budget=24)
    crowd = (RoleMetrics("prefill", 3), RoleMetrics("decode", 3, running=Value(5000, START)))
    seen = Observations(metrics(START, 0.5, roles=crowd), supply(3, 3))
    _, decision = decide(ScalingState(), seen, goals, START)
    assert [t.replicas for t in decision.targets] == [3, 3]
    assert Rule.GPU_BUDGET in {t.rule for t in decision.targets}


def test_a_budget_below_what_is_held_is_the_users_word() -> None:
    goals = replace(GOALS, gpu_budget=8)
    _, decision = decide(
        ScalingState(), Observations(metrics(START, 0.5), supply(3, 3)), goals, START
    )
    assert [t.replicas for t in decision.targets] == [1, 1]


def test_a_cold_fleets_first_transfers_do_not_grow_decode() -> None:
    """Three pulls of 0.6 s would leave 29.8 ms of the 40 ms of TPOT; a step alone takes 28.8 ms."""
    labels = {"role": "decode", "pod": "decode-0", "side": "receive"}
    pulls = tuple(
        Series(f"{TRANSFERS}_{part}", labels, ((START - 10, 0.0), (START, grown)))
        for part, grown in (("sum", 1.8), ("count", 3.0))
    )
    transfer = assemble(Round(START, pulls, 1, 1), GOALS.windows).kv_transfer_s
    decision = follow(
        lambda now: metrics(now, 1.0, kv_transfer_s=transfer), supply(1, 1), goals=PRIMED
    )
    assert decision.replicas("decode") == 1
