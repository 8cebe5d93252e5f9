"""Metrics of a part of the fleet: the rest may carry any load, so nothing is removed."""

import pytest

from argosy_law.decide import decide
from argosy_law.decision import Rule
from argosy_law.goals import Windows
from argosy_law.observe import (
    FleetMetrics,
    Observations,
    RoleMetrics,
    Unknown,
)
from argosy_law.signals.samples import RECEIVED, Round, Series, assemble
from argosy_law.state import ScalingState
from tests.scaling.ramp import GOALS
from tests.scaling.test_decide import START, follow, metrics, supply

WINDOWS = Windows(scrape_s=1, rate_s=5, interval_s=2, down_hold_s=15, cold_start_s=6)
BOTH = frozenset({"gateway-a", "gateway-b"})


def counted(pod: str, *counts: float, until: float = 1000.0) -> Series:
    """A gateway's accepted requests, one sample a second, the newest at `until`."""
    first = until - len(counts) + 1
    labels = {"outcome": "accepted", "role": "gateway", "pod": pod}
    return Series(RECEIVED, labels, tuple((first + i, c) for i, c in enumerate(counts)))


def seen(*series: Series, ready: frozenset[str] = BOTH) -> FleetMetrics:
    return assemble(Round(1000.0, series, len(series), 2, ready), WINDOWS)


@pytest.mark.parametrize(
    "other",
    [
        counted("gateway-b", *[3.0] * 9, until=996.0),  # its last scrapes failed
        counted("gateway-b", 3.0),  # the first sample is no rate yet
        counted("gateway-c", *[3.0] * 9),  # another pod
    ],
)
def test_a_gateway_whose_samples_are_old_new_or_anothers_is_silent(other: Series) -> None:
    half = seen(counted("gateway-a", *[7.0] * 9), other)
    assert half.silent_gateways == ("gateway-b",)
    assert isinstance(half.arrivals, Unknown)


@pytest.mark.parametrize("counts", [[7.0] * 9, [2.0 * i for i in range(9)]])
def test_while_no_gateway_is_ready_the_demand_is_unknown(counts: list[float]) -> None:
    """Gateways turn unready when no engine can serve: no request arrives, but many may wait."""
    taken = Round(1000.0, (counted("gateway-a", *counts),), 1, 1, frozenset(), closed=True)
    reason = "GatewayDown: no gateway pod is ready, so requests cannot arrive"
    assert assemble(taken, WINDOWS).arrivals == Unknown(reason)


def test_nothing_is_removed_while_a_ready_gateway_is_silent() -> None:
    """The reported fault: the silent gateway carried all the traffic, and prefill went 2 → 1."""
    decision = follow(
        lambda now: metrics(now, 0.1, silent_gateways=("gateway-b",)), supply(3, 3), ticks=60
    )
    assert [t.replicas for t in decision.targets] == [3, 3]
    assert {t.rule for t in decision.targets} == {Rule.METRICS_UNAVAILABLE}
    assert decision.silent_gateways == ("gateway-b",)


def test_a_whole_hold_is_seen_after_the_gateway_came_back_before_anything_goes() -> None:
    state, supplies = ScalingState(), supply(3, 3)
    for i in range(40):  # quiet, and a gateway silent: its traffic is unknown
        now = START + 2 * i
        half = Observations(metrics(now, 0.1, silent_gateways=("gateway-b",)), supplies)
        state, _ = decide(state, half, GOALS, now)
    back = START + 80  # the round after the last silent one
    for i in range(30):
        now = back + 2 * i
        whole = metrics(now, 0, roles=(RoleMetrics("prefill", 3), RoleMetrics("decode", 3)))
        state, decision = decide(state, Observations(whole, supplies), GOALS, now)
        removed = any(t.replicas < t.current for t in decision.targets)
        assert not removed or now - (back - 2) >= GOALS.windows.down_hold_s
    assert removed
