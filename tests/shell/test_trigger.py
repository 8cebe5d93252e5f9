"""Which watch events begin a round of a fleet, and which watches are dead."""

from typing import Any

import pytest
from yarl import URL

from argosy_operator.shell.trigger import (
    BLIND_S,
    FIRST_S,
    KINDS,
    RENEWED_S,
    SILENT_S,
    AutoscalerChanges,
    Watches,
)


def autoscaler(cpu: str = "300m", **meta: Any) -> dict[str, Any]:
    return {
        "metadata": {"uid": "u", "name": "chat-gateway", "generation": 1, **meta},
        "status": {
            "currentMetrics": [{"containerResource": {"current": {"averageValue": cpu}}}],
            "conditions": [{"type": "ScalingActive", "status": "True", "reason": "ValidMetric"}],
        },
    }


@pytest.fixture
def changes() -> AutoscalerChanges:
    known = AutoscalerChanges()
    assert known.counts(None, autoscaler())
    return known


def test_a_newly_measured_cpu_needs_no_round(changes: AutoscalerChanges) -> None:
    assert not changes.counts("MODIFIED", autoscaler("350m"))
    assert not changes.counts(None, autoscaler("400m")), "the watch began again"


@pytest.mark.parametrize(
    "meta",
    [
        {"generation": 2},
        {"deletionTimestamp": "2026-01-01T00:00:00Z"},
        {"labels": {"a": "b"}},
        {"annotations": {"a": "b"}},
        {"ownerReferences": []},
    ],
    ids=lambda meta: next(iter(meta)),
)
def test_a_change_of_the_object_needs_one(changes: AutoscalerChanges, meta: dict[str, Any]) -> None:
    assert changes.counts("MODIFIED", autoscaler(**meta))


def test_an_autoscaler_that_cannot_scale_any_more_needs_one(changes: AutoscalerChanges) -> None:
    blind = autoscaler()
    blind["status"]["conditions"][0] |= {"status": "False", "reason": "FailedGetResourceMetric"}
    assert changes.counts("MODIFIED", blind)
    assert not changes.counts("MODIFIED", blind)


def test_its_end_needs_one_and_so_does_another_of_its_name(changes: AutoscalerChanges) -> None:
    assert changes.counts("DELETED", autoscaler())
    assert changes.counts("ADDED", autoscaler())


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def path(plural: str, *, watch: bool = True) -> URL:
    return URL(f"http://api/apis/apps/v1/namespaces/ns/{plural}?{'watch=true' * watch}")


def answer_all(watches: Watches, *but: str) -> None:
    for plural in KINDS:
        if plural not in but:
            watches.answer(path(plural), 200)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def watches(clock: Clock) -> Watches:
    """They have just begun, and each was answered."""
    watches = Watches(clock)
    watches.begin()
    answer_all(watches)
    return watches


def test_watches_that_are_renewed_live_for_hours(watches: Watches, clock: Clock) -> None:
    for _ in range(100):
        clock.now += RENEWED_S + 30 + SILENT_S  # once in vain
        assert watches.blind() is None
        answer_all(watches)


def test_one_watch_that_is_not_renewed_is_dead_and_named(watches: Watches, clock: Clock) -> None:
    for _ in range(3):
        clock.now += BLIND_S / 2
        answer_all(watches, "pods")
    dead = watches.blind() or ""
    assert "Pod (no answer for 360 s)" in dead
    assert "Service" not in dead


def test_a_list_is_no_watch_and_a_refusal_is_named(watches: Watches, clock: Clock) -> None:
    clock.now += BLIND_S + 1
    answer_all(watches, "pods")
    watches.answer(path("pods", watch=False), 200)
    watches.answer(path("pods"), 403)
    assert "Pod (the API server answers 403" in (watches.blind() or "")


def test_a_kind_whose_first_watch_does_not_begin_is_dead_sooner(clock: Clock) -> None:
    watches = Watches(clock)
    clock.now += 10 * BLIND_S
    assert watches.blind() is None, "a standby has none"
    watches.begin()
    answer_all(watches, "servingroles")
    clock.now += FIRST_S
    assert watches.blind() is None
    clock.now += 1
    assert "ServingRole" in (watches.blind() or "")
