"""Gateways alone: while Prometheus has no metrics, replicas are added by them and none removed."""

from collections.abc import Iterator
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from argosy_law.decide import decide
from argosy_law.decision import Decision, Rule
from argosy_law.goals import Goals
from argosy_law.observe import (
    Bin,
    FleetMetrics,
    Idle,
    Observations,
    Unknown,
    Value,
    unknown_metrics,
)
from argosy_law.record import from_json, to_json
from argosy_law.signals.gateways import Heard, Load, Reading, fill_metrics, remember_readings
from argosy_law.state import ScalingState
from tests.scaling.ramp import ENGINE, GOALS
from tests.scaling.test_decide import START, metrics, supply

WINDOWS = GOALS.windows
WHY = "PrometheusTimeout: http://prometheus took over 5 s"
READY = frozenset({"g-1"})
WIDE = replace(
    GOALS, roles=tuple(replace(r, max=40) for r in GOALS.roles), gpu_budget=None, prior=ENGINE
)


def work(answered: float = 0.0, outstanding: float = 0.0, decoding: float = 0.0) -> Load:
    """Prompts of 2000 tokens, answers of 60."""
    return Load(outstanding, decoding, answered, 2000 * answered, 4.1e6 * answered, 60 * answered)


def said(at: float, accepted: float, pod: str = "g-1", waiting: float = 0.0, **load: float):
    return Reading(pod, at, accepted, 0.0, waiting, work(**load))


def history(*readings: Reading, skew_s: float = 0.0) -> Heard:
    return Heard(readings, skew_s)


def alone_at(now: float, told: Heard, ready: frozenset[str] = READY) -> FleetMetrics:
    return fill_metrics(unknown_metrics(now, WHY), told, ready, now, WINDOWS)[0]


def rounds(rate: float, n: int = 8, **load: float) -> Iterator[tuple[float, FleetMetrics]]:
    """Rounds without Prometheus, while requests arrive at this rate."""
    told = Heard()
    for i in range(n):
        now = START + 2 * i
        reading = said(now, rate * 2 * i, answered=rate * 2 * i / 2, **load)
        told = remember_readings(told, [reading], now, WINDOWS)
        yield now, alone_at(now, told)


def decided(
    measured: Iterator[tuple[float, FleetMetrics]], goals: Goals = WIDE, replicas: int = 1
) -> list[Decision]:
    state, supplies, decisions = ScalingState(), supply(replicas, replicas), []
    for now, seen in measured:
        state, decision = decide(state, Observations(seen, supplies), goals, now)
        decisions.append(decision)
        supplies = supply(decision.replicas("prefill"), decision.replicas("decode"))
    return decisions


def test_arrivals_are_counted_from_two_answers_on() -> None:
    first = alone_at(1000.0, history(said(1000.0, 10)))
    assert first == unknown_metrics(1000.0, WHY)
    two = alone_at(1004.0, history(said(1000.0, 10), said(1004.0, 30)))
    assert two.arrivals == Value(5.0, 1004.0)
    assert two.bins == tuple(Bin(1001.0 + i, 5.0) for i in range(4))
    assert two.gateways_alone == WHY
    flat = alone_at(1004.0, history(said(1000.0, 10), said(1004.0, 10)))
    assert flat.arrivals == Idle(1004.0)


def test_what_gateways_know_of_lengths_queues_and_sequences_is_taken() -> None:
    before = said(1000.0, 10, answered=4)
    now = said(1002.0, 12, answered=8, waiting=500, outstanding=1500, decoding=7)
    seen = alone_at(1002.0, history(before, now))
    assert seen.prompt_tokens == Value(2000, 1002.0)
    assert seen.prompt_tokens_squared == Value(4.1e6, 1002.0)
    assert seen.output_tokens == Value(60, 1002.0)
    assert seen.role("prefill").outstanding_prompt_tokens == Value(2000, 1002.0)
    assert seen.role("decode").running == Value(7, 1002.0)
    assert seen.role("colocated").running == Value(7, 1002.0)
    assert seen.role("colocated").outstanding_prompt_tokens == Value(2000, 1002.0)
    assert all(role.pods_reporting == 0 for role in seen.roles)
    assert isinstance(seen.attainment, Unknown)


def test_metrics_of_prometheus_stay_what_they_are() -> None:
    told = history(said(1000.0, 10), said(1002.0, 999))
    measured = replace(metrics(1002.0, 3.0), clock_skew_s=7.0)
    seen, after = fill_metrics(measured, told, READY, 1009.0, WINDOWS)
    assert seen is measured
    assert after == replace(told, skew_s=7.0)


def test_replicas_are_added_for_a_burst_without_any_answer_of_prometheus() -> None:
    decisions = decided(rounds(20.0))
    assert decisions[-1].replicas("prefill") > 4
    assert decisions[-1].replicas("decode") > 1
    assert decisions[-1].gateways_alone == WHY
    assert decisions[-1].active
    assert WHY in decisions[-1].message
    assert "none is removed" in decisions[-1].message
    assert from_json(Decision, to_json(decisions[-1])) == decisions[-1]


def test_nothing_is_removed_however_long_gateways_alone_say_that_nobody_comes() -> None:
    last = decided(rounds(0.0, n=60), replicas=3)[-1]
    assert [t.replicas for t in last.targets] == [3, 3]
    assert {t.rule for t in last.targets} == {Rule.GATEWAYS_ALONE}
    assert last.gateways_alone == WHY


def test_the_hold_begins_when_prometheus_answers_again() -> None:
    state, supplies = ScalingState(), supply(3, 3)
    for now, seen in rounds(0.0, n=40):
        state, _ = decide(state, Observations(seen, supplies), WIDE, now)
    back = START + 80
    for i in range(30):
        now = back + 2 * i
        whole = metrics(now, 0)
        state, decision = decide(state, Observations(whole, supplies), WIDE, now)
        removed = any(t.replicas < t.current for t in decision.targets)
        assert not removed or now - (back - 2) >= WINDOWS.down_hold_s
    assert removed


numbers = st.floats(0, 1e6) | st.sampled_from([0.0, 1e12])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["g-1", "g-2"]), numbers, numbers, numbers, numbers, st.booleans()
        ),
        max_size=20,
    ),
    st.integers(1, 40),
    st.integers(1, 40),
)
def test_whatever_gateways_say_alone_nothing_raises_and_nothing_is_removed(
    told: list[tuple[str, float, float, float, float, bool]], prefill: int, decode: int
) -> None:
    state, supplies, kept = ScalingState(), supply(prefill, decode), Heard()
    for i, (pod, accepted, waiting, decoding, answered, old) in enumerate(told):
        now = START + 2 * i
        load = None if old else work(answered, waiting, decoding)
        reading = Reading(pod, now, accepted, 0.0, waiting, load)
        kept = remember_readings(kept, [reading], now, WINDOWS)
        seen, kept = fill_metrics(unknown_metrics(now, WHY), kept, READY, now, WINDOWS)
        state, decision = decide(state, Observations(seen, supplies), WIDE, seen.at)
        for target in decision.targets:
            assert target.current <= target.replicas <= 40
        supplies = supply(decision.replicas("prefill"), decision.replicas("decode"))
