"""Which watch events begin a round of a fleet."""

from typing import Any

import pytest

from argosy_operator.shell.trigger import AutoscalerChanges


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
