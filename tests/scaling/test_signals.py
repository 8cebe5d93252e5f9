"""Signals from samples: exact values, the words of each reason, and where limits are."""

from dataclasses import replace
from math import inf, nan

import pytest

from argosy_law.goals import Windows
from argosy_law.observe import (
    Bin,
    FleetMetrics,
    Idle,
    RoleMetrics,
    Signal,
    StepDelta,
    Unknown,
    Value,
)
from argosy_law.signals import lengths, validity
from argosy_law.signals.samples import (
    ENGINE_CACHED,
    ENGINE_PROMPTS,
    KV_CAPACITY,
    MOST_STEP_ROWS,
    OUTSTANDING,
    PROMPTS,
    PROMPTS_SQUARED,
    RECEIVED,
    RUNNING,
    STEP_COUNTERS,
    WAITING,
    Round,
    Series,
    arrival_bins,
    assemble,
    cumulated,
    increase,
)
from argosy_law.size.work import BEYOND
from argosy_law.state import Lengths
from tests.scaling import known

WINDOWS = Windows(scrape_s=10.0, rate_s=40.0, interval_s=20.0, down_hold_s=100.0)
NOW = 1_000_000.0


def series(name: str, *values: float, end: float = NOW, **labels: str) -> Series:
    """One value a scrape, the last one at `end`."""
    count = len(values)
    return Series(
        name, labels, tuple((end - 10.0 * (count - 1 - i), v) for i, v in enumerate(values))
    )


def received(*values: float, pod: str = "g", outcome: str = "accepted", end: float = NOW) -> Series:
    return series(RECEIVED, *values, end=end, pod=pod, outcome=outcome)


def seen(*of: Series, ready: tuple[str, ...] = (), **more: object) -> FleetMetrics:
    whole = Round(NOW, of, 1, 1, frozenset(ready))
    return assemble(replace(whole, **more), WINDOWS)  # type: ignore[arg-type]


# --- counters -------------------------------------------------------------------------------------


def test_a_counter_that_falls_began_again_from_nothing() -> None:
    one = series("x", 5.0, 9.0, 2.0, 2.0, 6.0)
    assert [total for _, total in cumulated(one.samples)] == [0.0, 4.0, 6.0, 6.0, 10.0]
    assert increase(one, NOW - 100) == 10.0
    assert increase(one, NOW - 25.0) == 5.0, "half of the interval in which it began again counts"
    assert increase(one, NOW) == 0.0


def test_a_bin_is_made_only_where_its_whole_interval_was_seen() -> None:
    grown = series("x", *(3.0 * n for n in range(5)), end=NOW + 4.0)
    assert arrival_bins([grown], WINDOWS, NOW + 4.0) == tuple(
        Bin(NOW - 10.0 * k, pytest.approx(3.0)) for k in (2, 1, 0)
    )
    late = series("x", 1.0, 2.0, end=NOW - 20.0)
    both = arrival_bins([grown, late], WINDOWS, NOW + 4.0)
    assert both[-1].end == NOW - 20.0, "a pod whose sample is fresh holds the last bin back"
    gone = series("x", 1.0, 2.0, end=NOW - 30.0)
    assert arrival_bins([grown, gone], WINDOWS, NOW + 4.0)[-1].end == NOW
    assert arrival_bins([gone], WINDOWS, NOW + 4.0) == ()


def test_arrivals_are_those_of_the_rate_window_or_of_the_time_that_was_seen() -> None:
    assert seen(received(0.0, 0.0, 20.0, 40.0, 60.0, 80.0)).arrivals == Value(2.0, NOW)
    assert seen(received(7.0, 27.0)).arrivals == Value(2.0, NOW)
    both = seen(received(0.0, 20.0), received(0.0, 10.0, outcome="shed"))
    assert both.arrivals == Value(3.0, NOW), "who was shed came, too"
    other = seen(received(0.0, 20.0), received(0.0, 10.0, outcome="invalid"))
    assert other.arrivals == Value(2.0, NOW)
    assert seen(received(5.0, 5.0), ready=("g",)).arrivals == Idle(NOW)


@pytest.mark.parametrize(
    ("of", "more", "reason"),
    [
        (
            (received(0.0, 1.0),),
            {"gateway_targets": 0},
            "NoGatewayTarget: Prometheus scrapes no gateway of this fleet",
        ),
        (
            (received(0.0, 1.0),),
            {"gateways_up": 0},
            "GatewayDown: no gateway answers Prometheus' scrapes",
        ),
        (
            (received(0.0, 1.0),),
            {"closed": True},
            "GatewayDown: no gateway pod is ready, so requests cannot arrive",
        ),
        (
            (received(0.0, nan), received(0.0, 1.0, pod="h")),
            {},
            f"NotANumber: {RECEIVED} is NaN, infinite or negative",
        ),
        ((), {}, f"NoSamples: {RECEIVED} has no samples"),
        (
            (received(0.0, 1.0, end=NOW - 30.1),),
            {},
            "Stale: the newest sample is older than three scrape intervals (30 s)",
        ),
        (
            (received(5.0),),
            {},
            "FirstSample: one sample of the arrivals is no rate yet",
        ),
        (
            (received(5.0, 5.0),),
            {"ready_gateways": frozenset({"g", "i", "h"})},
            "GatewaySilent: Prometheus has no fresh samples of h, i",
        ),
    ],
)  # fmt: skip
def test_why_arrivals_are_not_known_is_said(
    of: tuple[Series, ...], more: dict[str, object], reason: str
) -> None:
    assert seen(*of, **more).arrivals == Unknown(reason)


# --- means ----------------------------------------------------------------------------------------


def test_means_are_sums_over_counts_of_the_window() -> None:
    of = (
        series(f"{PROMPTS}_sum", 0.0, 900.0),
        series(f"{PROMPTS}_count", 0.0, 3.0),
        series(PROMPTS_SQUARED, 0.0, 300_000.0),
    )
    found = seen(*of)
    assert found.prompt_tokens == Value(300.0, NOW)
    assert found.prompt_tokens_squared == Value(100_000.0, NOW)
    assert found.output_tokens == Unknown("NoSamples")
    flat = seen(series(f"{PROMPTS}_sum", 5.0, 5.0), series(f"{PROMPTS}_count", 1.0, 1.0))
    assert flat.prompt_tokens == Idle(NOW)
    broken = seen(series(f"{PROMPTS}_sum", 0.0, inf), *of[1:])
    assert broken.prompt_tokens == Unknown(
        f"NotANumber: {PROMPTS}_sum is NaN, infinite or negative"
    )


def test_the_share_in_caches_is_that_of_pods_that_compute_prompts() -> None:
    def counters(role: str, cached: float, prompts: float) -> tuple[Series, Series]:
        return (
            series(ENGINE_CACHED, 0.0, cached, role=role),
            series(ENGINE_PROMPTS, 0.0, prompts, role=role),
        )

    assert seen(*counters("prefill", 25.0, 100.0)).cached_share == Value(0.25, NOW)
    assert seen(*counters("colocated", 50.0, 100.0)).cached_share == Value(0.5, NOW)
    assert seen(*counters("decode", 100.0, 100.0)).cached_share == Unknown("NoSamples")
    mixed = seen(*counters("prefill", 25.0, 100.0), *counters("decode", 100.0, 100.0))
    assert mixed.cached_share == Value(0.25, NOW)


def test_what_waits_in_gateways_counts_by_the_share_that_is_computed() -> None:
    of = (
        series(OUTSTANDING, 100.0, role="prefill", pod="p"),
        series(ENGINE_CACHED, 0.0, 25.0, role="prefill"),
        series(ENGINE_PROMPTS, 0.0, 100.0, role="prefill"),
        series(WAITING, 40.0, pod="g"),
    )
    assert seen(*of).role("prefill").outstanding_prompt_tokens == Value(130.0, NOW)
    told = seen(*of, series(WAITING, nan, pod="h")).role("prefill").outstanding_prompt_tokens
    assert told == Unknown(f"NotANumber: {WAITING} is NaN, infinite or negative")


def test_buckets_are_differences_of_cumulative_counters_of_all_pods() -> None:
    def bucket(edge: str, grown: float) -> Series:
        return series(f"{PROMPTS}_bucket", 0.0, grown, le=edge)

    found = seen(bucket("10", 3.0), bucket("10", 1.0), bucket("20", 9.0), bucket("+Inf", 10.0))
    assert found.prompts == ((10.0, 4.0), (20.0, 5.0), (BEYOND, 1.0))
    without = series(f"{PROMPTS}_bucket", 0.0, 4.0)
    odd = seen(bucket("ten", 3.0), bucket("0", 5.0), bucket("-1", 5.0), bucket("5", 2.0), without)
    assert odd.prompts == ((5.0, 2.0),)
    assert seen(bucket("10", 3.0), bucket("20", nan)).prompts == ()


# --- engines --------------------------------------------------------------------------------------


def steps(pod: str, seconds: float, count: float, end: float = NOW) -> list[Series]:
    numbers = dict.fromkeys(STEP_COUNTERS, 0.0)
    numbers |= {"argosy_step_seconds_total": seconds, "argosy_steps_total": count}
    return [
        series(name, 0.0, n / 2, n, end=end, pod=pod, role="decode") for name, n in numbers.items()
    ]


def test_step_counters_grow_by_those_of_the_newest_interval() -> None:
    (row,) = seen(*steps("d", 8.0, 40.0)).role("decode").steps
    assert row == StepDelta(NOW, 8.0, 40.0, pod="d")
    assert seen(*steps("d", 8.0, 0.0)).role("decode").steps == ()
    stale = seen(*steps("d", 8.0, 40.0, end=NOW - 30.1))
    assert stale.role("decode").steps == ()
    pods = [one for n in range(10) for one in steps(f"d-{n}", 1.0 + n, 10.0)]
    rows = seen(*pods).role("decode").steps
    assert len(rows) == MOST_STEP_ROWS == 8
    assert [row.seconds for row in rows] == [1.0 + n for n in range(8)], "in the order of names"
    broken = [replace(one, samples=((NOW, nan),)) for one in steps("e", 1.0, 1.0)[:1]]
    both = seen(*steps("d", 8.0, 40.0), *steps("e", 1.0, 1.0)[1:], *broken)
    assert [row.seconds for row in both.role("decode").steps] == [8.0]


def test_gauges_are_sums_over_the_pods_that_live_and_report() -> None:
    of = (
        series(RUNNING, 3.0, pod="a", role="decode"),
        series(RUNNING, 4.0, pod="b", role="decode", end=NOW - 30.0),
        series(RUNNING, 50.0, pod="c", role="decode", end=NOW - 30.1),
        series(RUNNING, 70.0, pod="p", role="prefill"),
        series(KV_CAPACITY, 900.0, pod="a", role="decode"),
        series(KV_CAPACITY, 800.0, pod="b", role="decode"),
    )
    role = seen(*of).role("decode")
    assert (role.pods_reporting, role.running) == (2, Value(7.0, NOW))
    assert role.kv_capacity_tokens == Value(800.0, NOW)
    live = assemble(Round(NOW, of, 1, 1), WINDOWS, frozenset({"a"})).role("decode")
    assert (live.pods_reporting, live.running) == (1, Value(3.0, NOW))
    assert live.kv_capacity_tokens == Value(900.0, NOW)
    none = seen(series(KV_CAPACITY, 0.0, pod="a", role="decode")).role("decode")
    assert none.kv_capacity_tokens == Unknown("NoSamples")
    assert none.running == Unknown("NoSamples")
    bad = seen(*of, series(RUNNING, -1.0, pod="d", role="decode")).role("decode")
    assert bad.running == Unknown(f"NotANumber: {RUNNING} is NaN, infinite or negative")


# --- what can be true -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "possible"),
    [
        (StepDelta(1.0, 1.0, 1.0), True),
        (StepDelta(1.0, 1.0, 0.99), False),
        (StepDelta(1.0, 1e-6, 1.0), True),
        (StepDelta(1.0, 0.9e-6, 1.0), False),
        (StepDelta(1.0, 0.9e9, 1.0), True),
        (StepDelta(1.0, 1e9, 1.0), False),
        (StepDelta(1.0, 1.0, 2.0, prefill_tokens=1.9e9), True),
        (StepDelta(1.0, 1.0, 2.0, prefill_tokens=2e9), False),
        (StepDelta(1.0, 1.0, 2.0, decode_sequences=2e9), False),
        (StepDelta(1.0, 1.0, 2.0, context_tokens=2e9), False),
        (StepDelta(1.0, 1.0, 2.0, prefill_requests=nan), False),
        (StepDelta(nan, 1.0, 2.0), False),
    ],
)
def test_a_row_that_no_engine_could_write_is_left_out(row: StepDelta, possible: bool) -> None:
    role = RoleMetrics("decode", 1, steps=(row,))
    checked = validity.validated(FleetMetrics(NOW, Idle(NOW), roles=(role,)))
    assert (checked.roles[0].steps == (row,)) is possible


@pytest.mark.parametrize(
    ("signal", "checked"),
    [
        (Value(0.0, NOW), Value(0.0, NOW)),
        (
            Value(-1.0, NOW),
            Unknown("NotANumber: negative, infinite, NaN or too large for any fleet"),
        ),
        (Value(1.0, nan), Unknown("NotANumber: the time of the sample")),
        (Idle(inf), Unknown("NotANumber: the time of the sample")),
        (Idle(NOW), Idle(NOW)),
        (Unknown("x"), Unknown("x")),
    ],
)
def test_every_signal_of_a_round_is_checked(signal: Signal, checked: Signal) -> None:
    names = ("arrivals", "prompt_tokens", "prompt_tokens_squared", "output_tokens", "cached_share",
             "kv_transfer_s", "attainment", "ttft_attainment", "tpot_attainment")  # fmt: skip
    of_role = ("running", "outstanding_prompt_tokens", "kv_capacity_tokens")
    role = replace(RoleMetrics("decode"), **dict.fromkeys(of_role, signal))  # type: ignore[arg-type]
    whole = replace(FleetMetrics(NOW, signal, roles=(role,)), **dict.fromkeys(names, signal))  # type: ignore[arg-type]
    found = validity.validated(whole)
    assert {name: getattr(found, name) for name in names} == dict.fromkeys(names, checked)
    assert {name: getattr(found.roles[0], name) for name in of_role} == dict.fromkeys(
        of_role, checked
    )


def test_counts_shares_and_buckets_that_cannot_be_are_left_out() -> None:
    whole = FleetMetrics(
        NOW,
        Idle(NOW),
        bins=(Bin(1.0, 2.0), Bin(nan, 2.0), Bin(2.0, -1.0)),
        cached_share=Value(1.0, NOW),
        prompts=((BEYOND, 1.0),),
        answers=((BEYOND + 1, 1.0),),
        scored=nan,
    )
    found = validity.validated(whole)
    assert found.bins == (Bin(1.0, 2.0),)
    assert found.cached_share == Value(1.0, NOW)
    assert (found.prompts, found.answers) == (((BEYOND, 1.0),), ())
    assert found.scored == 0.0
    more = validity.validated(replace(whole, cached_share=Value(1.01, NOW), prompts=((0.0, 1.0),)))
    assert more.cached_share == Unknown("NotAShare: more than all")
    assert more.prompts == ()
    assert validity.validated(replace(whole, scored=5.0)).scored == 5.0
    assert validity.validated(replace(whole, answers=((5.0, -1.0),))).answers == ()


def test_each_role_names_the_signals_that_it_lacks() -> None:
    blind = FleetMetrics(NOW, Idle(NOW))
    assert validity.unknown_signals("prefill", blind) == (
        "attainment", "prompt_tokens", "prompt_tokens_squared", "outstanding_prompt_tokens",
    )  # fmt: skip
    assert validity.unknown_signals("decode", blind) == (
        "attainment", "prompt_tokens", "output_tokens", "kv_transfer_s", "running",
        "kv_capacity_tokens",
    )  # fmt: skip
    assert validity.unknown_signals("colocated", blind) == (
        "attainment", "prompt_tokens", "prompt_tokens_squared", "output_tokens", "running",
        "kv_capacity_tokens",
    )  # fmt: skip
    assert validity.unknown_signals("decode", known.metrics(NOW, 1.0, {"decode": 1})) == ()


# --- lengths --------------------------------------------------------------------------------------


def test_before_an_answer_a_request_is_guessed_from_steps_or_from_a_public_trace() -> None:
    nothing = lengths.work(Lengths(), FleetMetrics(NOW, Idle(NOW)))
    assert (nothing.prompt, nothing.prompt_squared, nothing.output) == (
        1200.0,
        2 * 1200.0**2,
        200.0,
    )
    row = StepDelta(NOW, 1.0, 10.0, prefill_tokens=900.0, prefill_requests=3.0)
    stepped = FleetMetrics(NOW, Idle(NOW), roles=(RoleMetrics("prefill", 1, steps=(row, row)),))
    assert lengths.work(Lengths(cached=0.5), stepped).prompt == 300.0
    assert lengths.work(Lengths(cached=0.5), stepped).cached == 0.0
    assert lengths.work(Lengths(prompt=40.0, cached=0.5), stepped).cached == 0.5
    one = replace(row, prefill_requests=0.4)
    few = replace(stepped, roles=(RoleMetrics("prefill", 1, steps=(one, one)),))
    assert lengths.work(Lengths(), few).prompt == 1200.0
    tiny = replace(row, prefill_tokens=0.1)
    small = replace(stepped, roles=(RoleMetrics("prefill", 1, steps=(tiny,)),))
    assert lengths.work(Lengths(), small).prompt == 1.0
