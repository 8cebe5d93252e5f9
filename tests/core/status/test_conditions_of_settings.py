"""What the conditions say while gateways do not use the settings of the spec."""

from dataclasses import replace

import pytest

from argosy_operator.api.conditions import Reason
from argosy_operator.core.snapshot.objects import rfc3339
from argosy_operator.core.snapshot.pods import GatewayLoad, SettingsRead
from tests.core.status.worlds import (
    NOW,
    ROLLED_OUT,
    Row,
    World,
    compare,
    leaving,
    pod,
    settings_read,
    status,
    unready,
)

A, B, C = (pod("gateway", n, revision="", ip=f"10.0.0.{n}") for n in (1, 2, 3))
ENGINE = pod("colocated")
OLDER = GatewayLoad(0, 1.0, settings=SettingsRead("0123456789abcdef"))
FROM_BEFORE = GatewayLoad(0, 1.0)
NEW = settings_read()
REFUSES = settings_read("--max-queue must be at least 1.")
JUST_NOW = rfc3339(NOW - 4)
LATELY = rfc3339(NOW - 30)
PENDING = {
    "RolledOut": "False GatewaySettingsPending",
    "Reconciling": "True GatewaySettingsPending",
}
UNKNOWN = {
    "RolledOut": "False GatewaySettingsPending",
    "Reconciling": "True GatewaySettingsPending",
}
REFUSED = {
    "RolledOut": "False GatewaySettingsRefused",
    "Reconciling": "False GatewaySettingsRefused",
    "Stalled": "True GatewaySettingsRefused",
}
WAITED_FOR = (
    "not say whether the settings in ConfigMap chat-gateway are in use: port 8081 does not answer "
    "the operator. 30 s after the settings were written this is not waited for any more"
)


def world(*gateways: GatewayLoad | None, **more: object) -> World:
    """The first gateways of A, B and C answered this, in their order."""
    pods = (A, B, C)[: len(gateways)]
    said = {pod.name: answer for pod, answer in zip(pods, gateways, strict=True)}
    known = {"pods": (ENGINE, *pods), "said": said, "settings_at": JUST_NOW}
    return World(**{**known, **more})  # type: ignore[arg-type]


ROWS = [
    Row("all gateways use them", world(NEW, NEW), {}),
    Row("gateways from before do not say, and count as current", world(FROM_BEFORE, NEW), {}),
    Row(
        "one uses older ones",
        world(NEW, OLDER),
        PENDING,
    ),
    Row(
        "two use older ones, for longer than a read takes",
        world(OLDER, OLDER, NEW, settings_at=LATELY, spec={"routing": {"replicas": 3}}),
        PENDING,
    ),
    Row("one has read none", world(NEW, GatewayLoad(0, 1.0, settings=SettingsRead(""))), PENDING),
    Row(
        "this round is to write them, and what gateways say does not matter",
        world(NEW, NEW, settings="[]"),
        PENDING,
    ),
    Row(
        "an older gateway that is not asked cannot have them before they are written",
        World(pods=(ENGINE, A), settings="[]"),
        PENDING,
    ),
    Row(
        "one refuses them",
        world(NEW, REFUSES),
        REFUSED,
    ),
    Row("one has refused older ones and reads again soon", world(
        GatewayLoad(0, 1.0, settings=SettingsRead("0123456789abcdef", "no"))
    ), PENDING),
    Row(
        "one refuses them while pods are replaced, which may mend it",
        world(REFUSES, gateways={"updatedReplicas": 0}, spec={"routing": {"replicas": 1}},
              said={A.name: settings_read("no", routing={"replicas": 1})}),
        {"RolledOut": "False RollingOut", "Reconciling": "True RollingOut"},
    ),
    Row(
        "one does not answer",
        world(NEW, None),
        UNKNOWN,
    ),
    Row(
        "none answers",
        world(None, None),
        UNKNOWN,
    ),
    Row(
        "one does not answer for half a minute: it has read them, and the message is honest",
        world(NEW, None, settings_at=LATELY),
        {},
    ),
    Row(
        "neither answers for half a minute",
        world(None, None, settings_at=LATELY),
        {},
    ),
    Row(
        "one that does not answer is younger than the settings: it was not Ready before it read "
        "them",
        world(None, pods=(ENGINE, replace(A, created_at=NOW - 4))),
        {},
    ),
    Row(
        "one that does not answer is a second older",
        world(None, pods=(ENGINE, replace(A, created_at=NOW - 5))),
        UNKNOWN,
    ),
    Row(
        "clients reach no gateway that is not Ready",
        world(NEW, pods=(ENGINE, A, unready("gateway", 2, revision="", ip="10.0.0.2")),
              said={A.name: NEW, "chat-gateway-2": OLDER}),
        {},
    ),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.words)
def test_the_conditions_say_whether_gateways_use_the_settings(row: Row) -> None:
    found, expected = compare(row)
    assert found == expected


@pytest.mark.parametrize("answer", [OLDER, REFUSES, None], ids=["older", "refused", "silent"])
def test_a_fleet_that_was_rolled_out_stays_so(answer: GatewayLoad | None) -> None:
    """Its gateways are asked for other reasons, too."""
    found, expected = compare(Row("", world(NEW, answer, before=ROLLED_OUT), {}))
    assert found == expected


def test_what_was_said_of_gateways_that_did_not_answer_stays_until_the_next_edit() -> None:
    """They are not asked any more. Another message would be one more write of the status."""
    conditions = status(world(None, settings_at=LATELY)).model_dump(by_alias=True, mode="json")
    (first,) = (c for c in conditions["conditions"] if c["type"] == "RolledOut")
    assert "is not known" in first["message"]
    for seen, message in ((1, first["message"]), (0, Reason.ROLLED_OUT.meaning)):
        before = {"conditions": [first | {"observedGeneration": seen}]}
        again = status(World(pods=(ENGINE, A), status=before))
        (said,) = (c for c in again.conditions if c.type == "RolledOut")
        assert (said.status, said.message) == ("True", message)


def test_a_gateway_that_leaves_is_not_waited_for() -> None:
    gone = leaving("gateway", 2, ip="10.0.0.2", terminating=True)
    found, _ = compare(Row("", world(NEW, pods=(ENGINE, A, gone), before=ROLLED_OUT), {}))
    assert found["RolledOut"] == "True RolledOut"
