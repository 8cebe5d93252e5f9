"""Which Events are published, and the object that is sent for one."""

import re
from typing import Any

import pytest

from argosy_operator.api.v1alpha1 import ServingDeployment, ServingDeploymentStatus
from argosy_operator.core.snapshot.actions import (
    Event,
    handovers_fail,
    manifest,
    stalled,
    unpublished,
)

AT = 1767323045.25  # 2026-01-02T03:04:05.25Z


def fleet(uid: str = "1234-5678") -> ServingDeployment:
    return ServingDeployment.model_validate(
        {
            "metadata": {"name": "chat", "namespace": "prod", "uid": uid},
            "spec": {"model": {"uri": "sim://opt-13b-a100"}},
        }
    )


def sent(event: Event, at: float = AT, reporter: str = "argosy-operator-0") -> Any:
    return manifest(fleet(), event, at, reporter)


def test_an_event_is_published_about_the_fleet_as_kubernetes_expects_it() -> None:
    event = sent(Event("Scaled", "decode 2 to 3"))
    name = event["metadata"].pop("name")
    assert re.fullmatch(r"chat\.[0-9a-f]{16}", name)
    assert event == {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"namespace": "prod"},
        "eventTime": "2026-01-02T03:04:05.250000Z",
        "reportingController": "serving.argosy.dev/operator",
        "reportingInstance": "argosy-operator-0",
        "action": "Reconcile",
        "reason": "Scaled",
        "type": "Normal",
        "note": "decode 2 to 3",
        "regarding": {
            "apiVersion": "serving.argosy.dev/v1alpha1",
            "kind": "ServingDeployment",
            "name": "chat",
            "namespace": "prod",
            "uid": "1234-5678",
        },
    }


SAME = {"reason": "Scaled", "message": "decode 2 to 3", "at": AT, "uid": "1234-5678"}


@pytest.mark.parametrize(
    ("other", "same"),
    [
        ({}, True),
        ({"at": AT + 0.5}, True),
        ({"at": AT + 1}, False),
        ({"reason": "Draining"}, False),
        ({"message": "decode 3 to 4"}, False),
        ({"uid": "9999"}, False),
    ],
    ids=str,
)
def test_an_event_that_is_sent_again_has_the_name_of_the_first(other: Any, same: bool) -> None:
    def name(of: Any) -> str:
        event = manifest(fleet(of["uid"]), Event(of["reason"], of["message"]), of["at"], "r")
        return str(event["metadata"]["name"])

    assert (name(SAME) == name(SAME | other)) is same


@pytest.mark.parametrize(
    ("message", "note"),
    [
        ("x" * 1024, "x" * 1024),
        ("x" * 1025, "x" * 1024),
        ("x" + "é" * 600, "x" + "é" * 511),
        ("xx" + "█" * 400, "xx" + "█" * 340),
    ],
    ids=["1,024 letters", "one more", "letters of two bytes", "a progress bar"],
)
def test_a_note_has_at_most_the_1024_bytes_that_the_api_server_takes(
    message: str, note: str
) -> None:
    assert sent(Event("ContainerCrashing", message))["note"] == note


NOW = 10_000.0
DRAINING = Event("Draining", "decode: a, b")
SCALED = Event("Scaled", "decode 2 to 3")


@pytest.mark.parametrize(
    ("event", "published", "again"),
    [
        pytest.param(DRAINING, {}, True, id="never published"),
        pytest.param(DRAINING, {"Draining: decode: a, b": NOW - 3599}, False, id="this hour"),
        pytest.param(DRAINING, {"Draining: decode: a, b": NOW - 3600}, True, id="an hour ago"),
        pytest.param(DRAINING, {"Draining: decode: c": NOW}, True, id="other words"),
        pytest.param(DRAINING, {"PutBack: decode: a, b": NOW}, True, id="another reason"),
        pytest.param(SCALED, {"Scaled: decode 2 to 3": NOW}, True, id="a change of replicas"),
    ],
)
def test_the_same_event_is_published_once_an_hour_and_every_change_of_replicas(
    event: Event, published: dict[str, float], again: bool
) -> None:
    new, known = unpublished([event], published, NOW)
    assert new == ((event,) if again else ())
    key = f"{event.reason}: {event.message}"
    assert known[key] == (NOW if again else published[key])


def status(*conditions: tuple[str, str, str]) -> ServingDeploymentStatus:
    """A status with these conditions: type, status and reason."""
    return ServingDeploymentStatus.model_validate(
        {
            "conditions": [
                {
                    "type": type_,
                    "status": value,
                    "reason": reason,
                    "message": f"{reason} in words",
                    "observedGeneration": 1,
                    "lastTransitionTime": "2026-01-02T03:04:05Z",
                }
                for type_, value, reason in conditions
            ]
        }
    )


WELL = status(("Ready", "True", "Serving"), ("Stalled", "False", "AsSpecified"))
STALLED = status(("Ready", "False", "NoPods"), ("Stalled", "True", "ImagePullFailed"))
OTHERWISE = status(("Ready", "False", "NoPods"), ("Stalled", "True", "QuotaExceeded"))


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        pytest.param(WELL, STALLED, "ImagePullFailed", id="it has just become stalled"),
        pytest.param(status(), STALLED, "ImagePullFailed", id="in its first round"),
        pytest.param(OTHERWISE, STALLED, "ImagePullFailed", id="for another reason than before"),
        pytest.param(STALLED, STALLED, None, id="for the same reason as before"),
        pytest.param(STALLED, WELL, None, id="no longer"),
        pytest.param(WELL, WELL, None, id="never"),
    ],
)
def test_a_fleet_that_becomes_stalled_is_a_warning_with_the_conditions_words(
    before: ServingDeploymentStatus, after: ServingDeploymentStatus, reason: str | None
) -> None:
    wanted = reason and Event(reason, f"{reason} in words", warning=True)
    assert stalled(before, after) == wanted


def handing_over(said: str, reason: str) -> ServingDeploymentStatus:
    condition = {"type": "KVTransferHealthy", "status": said, "reason": reason, "message": "words"}
    when = {"lastTransitionTime": "2026-01-01T00:00:00Z"}
    return ServingDeploymentStatus.model_validate({"conditions": [condition | when]})


HEALTHY, FAILING = handing_over("True", "AsSpecified"), handing_over("False", "HandoversFail")


@pytest.mark.parametrize(
    ("before", "after", "sends"),
    [
        pytest.param(HEALTHY, FAILING, True, id="it has just begun"),
        pytest.param(WELL, FAILING, True, id="in the operator's first round"),
        pytest.param(FAILING, FAILING, False, id="as before"),
        pytest.param(FAILING, HEALTHY, False, id="no longer"),
        pytest.param(HEALTHY, HEALTHY, False, id="never"),
        pytest.param(FAILING, WELL, False, id="unknown"),
    ],
)
def test_handovers_that_begin_to_fail_are_a_warning_with_the_conditions_words(
    before: ServingDeploymentStatus, after: ServingDeploymentStatus, sends: bool
) -> None:
    wanted = Event("HandoversFail", "words", warning=True) if sends else None
    assert handovers_fail(before, after) == wanted
