"""The rules of planners that know what a replica can do, by numbers worked out by hand."""

from collections.abc import Mapping
from dataclasses import replace
from math import ceil
from typing import Any

import pytest

from argosy_operator.api.v1alpha1 import RoleName
from argosy_operator.core.scaling.decision import Decision, Rule
from argosy_operator.core.scaling.estimate.profiles import PRESETS
from argosy_operator.core.scaling.goals import SLO, Profile
from argosy_operator.core.scaling.observe import (
    Bin,
    FleetMetrics,
    Idle,
    Observations,
    RoleMetrics,
    RoleSupply,
    Signal,
    StepDelta,
    Unknown,
    Value,
)
from argosy_operator.core.scaling.rivals.planners import (
    dynamo_load,
    dynamo_throughput,
    heteroscale,
    llmd_slo,
    tokenscale,
    wva,
)
from argosy_operator.core.scaling.rivals.planners.dynamo_load import DynamoLoad
from argosy_operator.core.scaling.rivals.planners.dynamo_throughput import (
    DynamoThroughput,
    Kalman,
)
from argosy_operator.core.scaling.rivals.planners.engine import Engine
from argosy_operator.core.scaling.rivals.planners.heteroscale import HeteroScale
from argosy_operator.core.scaling.rivals.planners.llmd_slo import LlmdSlo
from argosy_operator.core.scaling.rivals.planners.tokenscale import TokenScale
from argosy_operator.core.scaling.rivals.planners.wva import Load, Wva
from tests.scaling.known import goals

START = 1000.0
EASY = Profile(
    prefill_base_s=0.01,
    per_prompt_token_s=1e-4,
    decode_base_s=0.02,
    per_sequence_s=2e-4,
    per_context_token_s=0.0,
    kv_tokens=100_000,
)
"""A prompt of 1,000 tokens takes 0.11 s; a step of 100 sequences 40 ms."""
SLO_OF_TESTS = SLO(1.0, 0.04)
GOALS = goals(SLO_OF_TESTS, prior=EASY)
ENGINE = Engine(EASY)


def seen_at(
    now: float,
    rate: float = 10.0,
    *,
    prefill: int = 2,
    decode: int = 2,
    pending: int = 0,
    queued: float = 0.0,
    running: float = 0.0,
    prompt: Signal | float = 1000.0,
    output: Signal | float = 100.0,
    prefill_steps: tuple[StepDelta, ...] = (),
    decode_steps: tuple[StepDelta, ...] = (),
    kv: float = 100_000.0,
) -> Observations:
    def signal(of: Signal | float) -> Signal:
        return Value(of, now) if isinstance(of, int | float) else of

    metrics = FleetMetrics(
        at=now,
        arrivals=Value(rate, now) if rate else Idle(now),
        bins=tuple(Bin(now - 15 * i, 15 * rate) for i in range(20, -1, -1)),
        prompt_tokens=signal(prompt),
        output_tokens=signal(output),
        roles=(
            RoleMetrics(
                "prefill",
                prefill - pending,
                steps=prefill_steps,
                outstanding_prompt_tokens=Value(queued, now),
            ),
            RoleMetrics(
                "decode",
                decode - pending,
                steps=decode_steps,
                running=Value(running, now),
                kv_capacity_tokens=Value(kv, now),
            ),
        ),
    )
    supply = (
        RoleSupply("prefill", prefill, prefill - pending, pending),
        RoleSupply("decode", decode, decode - pending, pending),
    )
    return Observations(metrics, supply)


def played(law: Any, *rounds: Observations, state: Any = None) -> tuple[Any, Decision]:
    state = law.start if state is None else state
    for one in rounds:
        state, decision = law.decide(state, one, GOALS, one.metrics.at)
    return state, decision


def replicas(decision: Decision) -> list[int]:
    return [target.replicas for target in decision.targets]


def decode_row(pods: int, sequences: float, context: float) -> tuple[StepDelta, ...]:
    """A hundred steps of each pod with so many sequences of so much context."""
    row = StepDelta(
        START, 4.0, 100, decode_sequences=100 * sequences, context_tokens=100 * sequences * context
    )
    return (row,) * pods


# --- the engine ---------------------------------------------------------------------------------


def test_long_prompts_take_full_steps_and_a_rest() -> None:
    assert ENGINE.prefill_s(1000) == pytest.approx(0.11)
    assert ENGINE.prefill_s(2048) == pytest.approx(0.01 + 0.2048)
    assert ENGINE.prefill_s(5000) == pytest.approx(3 * 0.01 + 0.5)
    assert ENGINE.prefill_s(0) == 0.0


def test_attention_counts_in_each_step() -> None:
    squared = Engine(replace(EASY, per_prompt_token_squared_s=1e-8))
    assert squared.prefill_s(3048) == pytest.approx(0.02 + 0.3048 + 1e-8 * (2048**2 + 1000**2))


@pytest.mark.parametrize(
    ("context", "limit_s", "batch"),
    [
        (500, 0.04, 100),  # (40 - 20)/0.2 ms
        (2000, 0.04, 50),  # 100,000 tokens of KV
        (100, 1.0, 256),  # the engine's own bound
        (500, 0.01, 1),  # not even one: the planner goes on with one
    ],
)
def test_the_best_batch_fits_time_memory_and_the_engine(
    context: float, limit_s: float, batch: int
) -> None:
    assert ENGINE.best_batch(context, limit_s) == batch


@pytest.mark.parametrize("law", [DynamoThroughput(), DynamoLoad(), LlmdSlo(), TokenScale()])
def test_planners_of_two_phases_leave_colocated_replicas_alone(law: Any) -> None:
    both = goals(SLO_OF_TESTS, prior=EASY, roles=("colocated",))
    one = replace(seen_at(START), supply=(RoleSupply("colocated", 3, 3),))
    _, decision = law.decide(law.start, one, both, START)
    assert replicas(decision) == [3]
    assert "colocated replicas stay" in decision.message


# --- Dynamo, throughput -------------------------------------------------------------------------


def test_a_kalman_filter_follows_a_ramp_and_begins_at_the_first_value() -> None:
    state = Kalman(100.0).predicted()
    assert (state.level, state.trend) == (100.0, 0.0)
    for value in range(110, 400, 10):
        state = state.measured(float(value)).predicted()
    assert state.level == pytest.approx(400.0, abs=3.0)
    assert state.trend == pytest.approx(10.0, abs=1.0)


def test_the_gain_of_the_second_measurement_by_hand() -> None:
    state = Kalman(0.0).predicted()
    assert state.level_variance == 2001.0
    assert state.covariance == 1000.0
    after = state.measured(10.0)
    assert after.level == pytest.approx(10 * 2001 / 2011)
    assert after.trend == pytest.approx(10 * 1000 / 2011)
    assert after.level_variance == pytest.approx(2001 * 10 / 2011)
    assert after.trend_variance == pytest.approx(1000.1 - 1000 * 1000 / 2011)


def test_dynamo_plans_at_the_end_of_each_interval() -> None:
    law = DynamoThroughput()
    rounds = [seen_at(START + 15 * i, rate=100.0) for i in range(13)]
    state, before = played(law, *rounds[:12])
    assert replicas(before) == [2, 2]
    assert "no interval has ended yet" in before.message
    state, after = played(law, rounds[12], state=state)
    # 100/s · 0.11 s = 11 busy prefill pods. A context of 1,050 has room for 95 sequences, whose
    # step takes 39 ms: 95/(100 · 0.039) = 24.4 requests/s.
    assert replicas(after) == [11, ceil(100 * 100 * 0.039 / 95)]
    assert state.at == START + 180


def test_dynamo_adds_prefill_where_a_prompt_alone_misses_the_limit() -> None:
    law = DynamoThroughput()
    rounds = [seen_at(START + 180 * i, rate=0.1, prompt=25_000.0) for i in range(2)]
    _, decision = played(law, *rounds)
    assert decision.replicas("prefill") == 3  # 13 steps: 2.63 s at a limit of 1 s


def test_dynamo_aims_below_the_limit_if_told_so() -> None:
    rounds = [seen_at(START + 180 * i, rate=100.0, prompt=200.0) for i in range(2)]
    _, tight = played(DynamoThroughput(itl=0.75), *rounds)
    assert tight.replicas("decode") == ceil(100 * 100 * 0.030 / 50)


def test_a_constant_predictor_takes_the_last_interval() -> None:
    law = DynamoThroughput(predict=False)
    rounds = [seen_at(START + 180 * i, rate=rate) for i, rate in enumerate((1, 10, 100))]
    _, decision = played(law, *rounds)
    assert decision.replicas("prefill") == 11


@pytest.mark.parametrize(
    ("signals", "role", "wanted"),
    [
        (({"rate": 100.0}, {"rate": 200.0}), "prefill", 28),  # 249/s · 0.11 s
        (({"prompt": 1000.0}, {"prompt": 2000.0}), "prefill", 27),  # 2,492 tokens: 0.269 s
        (({"output": 100.0}, {"output": 200.0}), "decode", 11),  # 88 sequences: 37.6 ms
    ],
)
def test_dynamo_expects_what_has_grown_to_grow_on(
    signals: tuple[dict[str, float], ...], role: RoleName, wanted: int
) -> None:
    """After 100 and 200 the filter expects 100 + 100 · (2001 + 1000)/2011 = 249."""
    usual = {"rate": 100.0}
    rounds = [
        seen_at(START + 180 * i, **(usual | of))  # type: ignore[arg-type]
        for i, of in enumerate((signals[0], *signals))
    ]
    _, decision = played(DynamoThroughput(), *rounds)
    assert decision.replicas(role) == wanted


def test_dynamo_without_a_profile_or_metrics_keeps_what_there_is() -> None:
    law = DynamoThroughput()
    blind = goals(SLO_OF_TESTS, prior=None)
    state, decision = law.decide(None, seen_at(START), blind, START)
    assert replicas(decision) == [2, 2]
    assert decision.rule is Rule.METRICS_UNAVAILABLE
    lost = replace(seen_at(START + 180), metrics=FleetMetrics(START + 180, Unknown("Away")))
    state, decision = played(law, seen_at(START), lost)
    assert replicas(decision) == [2, 2]
    assert state.at == START + 180


def test_missing_bins_are_made_up_for() -> None:
    few = FleetMetrics(START, Value(1.0, START), bins=tuple(Bin(START, 30.0) for _ in range(6)))
    assert dynamo_throughput.arrived(few, 15.0) == 360.0
    many = replace(few, bins=tuple(Bin(START, 30.0) for _ in range(50)))
    assert dynamo_throughput.arrived(many, 15.0) == 360.0
    assert dynamo_throughput.arrived(replace(few, bins=()), 15.0) == 0.0


# --- Dynamo, load -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("queued", "change"),
    [
        (9000.0, 1),  # 10,000 tokens in five steps: 1.05 s
        (8400.0, 0),  # 9,400 in 0.99 s; on one pod 17,800 tokens
        (3500.0, 0),  # on one pod 8,000 in 0.84 s, 0.73 s of it waiting; 0.71 s is 80 %
        (3000.0, -1),  # on one pod 7,000 in 0.74 s, 0.63 s of it waiting
    ],
)
def test_prefill_grows_by_the_next_ttft_and_shrinks_by_that_of_fewer_pods(
    queued: float, change: int
) -> None:
    assert dynamo_load.prefill_change(ENGINE, queued, 1000.0, 1.0, 2, 0.8) == change


def test_a_prompt_that_misses_alone_adds_a_pod_and_a_lone_pod_stays() -> None:
    assert dynamo_load.prefill_change(ENGINE, 0.0, 12_000.0, 1.25, 2, 0.8) == 1
    assert dynamo_load.prefill_change(ENGINE, 0.0, 9000.0, 1.0, 1, 0.8) == 0


@pytest.mark.parametrize(
    ("sequences", "change"),
    [
        (99.5, 1),  # 100.5 sequences: 40.1 ms
        (99.0, 0),  # 40.0 ms
        (30.0, 0),  # 60 and one on the pod that stays: 32.2 ms, more than 80 %
        (29.0, -1),  # 31.8 ms
    ],
)
def test_decode_grows_by_its_next_step_and_shrinks_by_that_of_fewer_pods(
    sequences: float, change: int
) -> None:
    assert dynamo_load.decode_change(ENGINE, sequences, 500.0, 0.04, 2, 0.8) == change


def test_decode_is_not_packed_beyond_its_memory() -> None:
    assert dynamo_load.decode_change(ENGINE, 20.0, 2499.0, 0.04, 2, 0.8) == -1
    assert dynamo_load.decode_change(ENGINE, 20.0, 2500.0, 0.04, 2, 0.8) == 0


def test_load_mode_waits_for_pods_that_start() -> None:
    law = DynamoLoad(floor=False)
    one = seen_at(START, pending=1, queued=1e6, running=1e4, decode_steps=decode_row(1, 90, 500))
    _, decision = played(law, one)
    assert replicas(decision) == [2, 2]
    assert {t.rule for t in decision.targets} == {Rule.SCALE_UP_PENDING}


def test_throughput_mode_gives_load_mode_its_least_replicas() -> None:
    rounds = [seen_at(START + 180 * i, rate=100.0) for i in range(2)]
    _, both = played(DynamoLoad(), *rounds)
    assert replicas(both) == [11, 5]
    assert both.message == (
        "prefill 2 → 11 (-1 by load, at least 11); decode 2 → 5 (-1 by load, at least 5)"
    )
    _, alone = played(DynamoLoad(floor=False), *rounds)
    assert replicas(alone) == [1, 1]


# --- llm-d, saturation --------------------------------------------------------------------------


def test_wva_adds_what_is_missing_and_removes_what_is_spare() -> None:
    law, four = Wva(), RoleSupply("decode", 4, 4)
    assert law.recommendation(four, Load(380.0, 100.0)) == 5  # 447 - 400
    assert law.recommendation(four, Load(340.0, 100.0)) == 4  # 400 - 400
    assert law.recommendation(four, Load(190.0, 100.0)) == 3  # 400 - 271
    assert law.recommendation(four, Load(0.0, 100.0)) == 1
    starting = RoleSupply("decode", 6, 4, 2)
    assert law.recommendation(starting, Load(380.0, 100.0)) == 6


def test_wva_holds_what_batches_need_against_memory() -> None:
    assert wva.of_batches(1000.0, 200.0) == pytest.approx(256 * 1100)
    assert wva.of_batches(1000.0, 100.0) == pytest.approx(2048 / 11 * 1050)


def test_wva_counts_the_context_of_running_sequences() -> None:
    law = Wva(kv=0.5)
    one = seen_at(START, running=200.0, decode_steps=decode_row(2, 100, 600))
    state, decision = played(law, one)
    # 120,000 tokens at 50,000 a replica: 120,000/0.85 - 100,000 = 41,176 more, one replica.
    assert state["decode"].replicas == 3
    assert decision.replicas("decode") == 3


def test_wva_publishes_once_a_minute() -> None:
    law = Wva(kv=0.5)
    heavy = decode_row(2, 100, 600)
    state, _ = played(law, seen_at(START))
    state, soon = played(law, seen_at(START + 45, running=200.0, decode_steps=heavy), state=state)
    assert soon.replicas("decode") == 2
    _, later = played(law, seen_at(START + 60, running=200.0, decode_steps=heavy), state=state)
    assert later.replicas("decode") == 3


def test_the_rule_for_prefill_adds_busy_replicas_and_the_queue() -> None:
    row = StepDelta(START, 12.0, 100, prefill_tokens=120_000, prefill_requests=120)
    one = seen_at(START, queued=600_000.0, prefill_steps=(row, row))
    state, _ = played(Wva(), one)
    # Busy 0.8 of the time, 1.6 replicas; 60 s of queue in 60 s: one more. 2.6/0.85 - 2 = 1.06.
    assert state["prefill"].replicas == 4


# --- llm-d, queueing model ----------------------------------------------------------------------


def test_the_chain_of_one_server_is_an_mm1_queue() -> None:
    state = llmd_slo.solve([10.0], 5.0)
    full = sum(0.5**n for n in range(12))
    assert state.in_service == pytest.approx(1 - 1 / full)
    assert state.served_s == pytest.approx(0.1)
    assert state.waited_s == pytest.approx(0.1, rel=0.01)


def test_the_chain_with_as_many_servers_as_requests_waits_for_none() -> None:
    state = llmd_slo.solve([10.0 * n for n in range(1, 40)], 20.0)
    assert state.in_service == pytest.approx(2.0)
    assert state.waited_s == pytest.approx(0.0, abs=1e-9)


def test_the_largest_rate_keeps_the_mean_latency_at_its_limit() -> None:
    phase = llmd_slo.decode_phase(EASY, 200.0, 100.0)
    rate = llmd_slo.largest_rate(phase, 0.03, first=False)
    assert rate is not None
    latency_s = llmd_slo.latency_s(phase, phase.rates(), rate, first=False)
    assert latency_s == pytest.approx(0.03, rel=1e-6)
    # Fifty sequences take 30 ms a token. One of them sees 49 others on average: 49/(100 · 0.03).
    assert rate == pytest.approx(49 / 3)


def test_a_limit_that_a_lone_request_misses_has_no_rate() -> None:
    phase = llmd_slo.decode_phase(EASY, 200.0, 100.0)
    assert llmd_slo.largest_rate(phase, 0.02, first=False) is None


def test_a_loose_limit_leaves_the_batch_as_the_bound() -> None:
    phase = llmd_slo.decode_phase(EASY, 200.0, 100.0)
    rates = phase.rates()
    assert phase.batch == 256
    assert llmd_slo.largest_rate(phase, 10.0, first=False) == pytest.approx(0.999 * rates[-1])


def test_the_queueing_model_divides_arrivals_by_the_rate_of_a_replica() -> None:
    law = LlmdSlo(itl=0.75)
    assert law.recommendation("decode", 100.0, 200.0, 100.0, EASY, SLO_OF_TESTS) == 7
    assert law.recommendation("prefill", 0.001, 200.0, 100.0, EASY, SLO_OF_TESTS) == 1
    assert law.recommendation("decode", 1.0, 200.0, 100.0, EASY, SLO(1.0, 0.01)) is None


def test_the_queueing_model_keeps_replicas_of_an_slo_that_it_cannot_meet() -> None:
    one, tight = seen_at(START, prefill=3, decode=4), goals(SLO(1.0, 0.01), prior=EASY)
    _, decision = LlmdSlo().decide({}, one, tight, START)
    assert decision.replicas("decode") == 4


def test_no_arrivals_want_one_replica_after_the_window_of_the_hpa() -> None:
    law = LlmdSlo()
    rounds = [seen_at(START + 15 * i, rate=0.0, prompt=Idle(START)) for i in range(21)]
    _, decision = played(law, *rounds)
    assert replicas(decision) == [1, 1]


# --- HeteroScale --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens_per_s", "wanted"),
    [(5200.0, 6), (4399.0, 4), (4401.0, 5), (3601.0, 4), (3599.0, 4), (2900.0, 3), (0.0, 0)],
)
def test_heteroscale_is_proportional_outside_of_ten_percent(
    tokens_per_s: float, wanted: int
) -> None:
    assert heteroscale.recommendation(4, tokens_per_s, 1000.0) == wanted


def test_prefill_follows_decode_in_the_ratio_of_the_start() -> None:
    law = HeteroScale(target=1000.0)
    # 100 steps of 225 sequences in 15 s: 1,500 tokens/s a pod.
    one = seen_at(START, prefill=1, decode=2, decode_steps=decode_row(2, 225, 100))
    state, decision = played(law, one)
    assert replicas(decision) == [2, 3]
    assert state.ratio == 0.5


def test_heteroscale_waits_between_moves_longer_before_one_down() -> None:
    law = HeteroScale(target=1000.0)
    busy, idle = decode_row(2, 225, 100), decode_row(3, 75, 100)
    state, _ = played(law, seen_at(START, decode_steps=busy))
    state, held = played(
        law, seen_at(START + 15, decode=3, decode_steps=decode_row(3, 225, 100)), state=state
    )
    assert held.replicas("decode") == 3
    assert "5 wanted" in held.message
    state, more = played(
        law, seen_at(START + 30, decode=3, decode_steps=decode_row(3, 225, 100)), state=state
    )
    assert more.replicas("decode") == 5
    state, held = played(law, seen_at(START + 315, decode=3, decode_steps=idle), state=state)
    assert held.replicas("decode") == 3
    _, fewer = played(law, seen_at(START + 330, decode=3, decode_steps=idle), state=state)
    assert fewer.replicas("decode") == 2


def test_heteroscale_grows_by_a_tenth_while_latency_misses() -> None:
    law = HeteroScale(target=1000.0)
    one = seen_at(START, prefill=5, decode=10, decode_steps=decode_row(10, 150, 100))
    _, calm = played(law, one)
    assert replicas(calm) == [5, 10]
    for name in ("ttft_attainment", "tpot_attainment"):
        late = replace(one, metrics=replace(one.metrics, **{name: Value(0.89, START)}))  # type: ignore[arg-type]
        assert replicas(played(law, late)[1]) == [6, 11]
        assert replicas(played(HeteroScale(target=1000.0, feedback=0.0), late)[1]) == [5, 10]
        met = replace(one, metrics=replace(one.metrics, **{name: Value(0.9, START)}))  # type: ignore[arg-type]
        assert replicas(played(law, met)[1]) == [5, 10]


# --- TokenScale ---------------------------------------------------------------------------------


def test_tokenscale_divides_arriving_tokens_by_the_velocity_of_a_replica() -> None:
    assert tokenscale.prefill_velocity(ENGINE) == pytest.approx(2048 / 0.2148)
    # 95 sequences of 1,050 tokens; 39 ms a step.
    velocity = tokenscale.decode_velocity(ENGINE, 1000.0, 100.0, 0.04)
    assert velocity == pytest.approx(95 / 3.9 * 1100)
    _, decision = played(TokenScale(), seen_at(START, rate=100.0))
    assert replicas(decision) == [11, 5]  # 100,000/9,534 and 110,000/26,795
    _, roomy = played(TokenScale(prefill=1.5, decode=2.0), seen_at(START, rate=100.0))
    assert replicas(roomy) == [16, 9]


def test_tokenscale_takes_the_newest_two_intervals() -> None:
    one = seen_at(START, rate=1.0).metrics
    quick = replace(one, bins=(*one.bins, Bin(START, 300.0), Bin(START, 600.0)))
    assert tokenscale.recent(quick, 15.0) == 30.0
    assert tokenscale.recent(replace(one, bins=()), 15.0) == 1.0
    assert tokenscale.recent(FleetMetrics(START, Unknown("Away")), 15.0) is None


def test_an_idle_fleet_of_tokenscale_needs_one_replica_of_each() -> None:
    _, decision = played(TokenScale(), seen_at(START, rate=0.0, prompt=Idle(START)))
    assert replicas(decision) == [1, 1]


def test_unknown_lengths_keep_what_there_is() -> None:
    lost: Mapping[str, Signal] = {"prompt": Unknown("NoSamples")}
    _, decision = played(TokenScale(), seen_at(START, **lost))  # type: ignore[arg-type]
    assert replicas(decision) == [2, 2]


def test_the_profile_of_the_simulator_is_what_planners_are_given() -> None:
    llama = Engine(PRESETS["llama-70b-h100-tp4"])
    assert llama.best_batch(1100.0, 0.06) == 80  # (60 - 28.8)/(0.2825 + 0.1034)
