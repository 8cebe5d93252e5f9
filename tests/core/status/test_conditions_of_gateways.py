"""What the conditions say of the number of gateways, where it follows their load."""

import pytest

from tests.core.status.worlds import GATEWAY, GENERATION, Row, World, compare, pod

RANGE = {"routing": {"autoscaling": {"min": 1, "max": 4}}}
EXTERNAL = {"routing": {"replicas": 1, "autoscaling": {"policy": "External"}}}
ENGINE = pod("colocated")
ABLE = ("True", "ReadyForNewScale", "recommended size matches current size")
BLIND = {
    "AbleToScale": ABLE,
    "ScalingActive": (
        "False",
        "FailedGetContainerResourceMetric",
        "the server could not find the requested resource (get pods.metrics.k8s.io).",
    ),
}
SEES = {"AbleToScale": ABLE, "ScalingActive": ("True", "ValidMetricFound", "it was able")}
GONE = {**SEES, "AbleToScale": ("False", "FailedGetScale", "")}
FEW = {"updatedReplicas": 1, "replicas": 1, "availableReplicas": 1}
TOO_FEW = {"RolledOut": "False Starting", "Reconciling": "True Starting"}

ROWS = [
    Row(
        "the spec says a number",
        World(),
        {"GatewayScalingActive": "False PolicyNone"},
    ),
    Row(
        "a scaler of the user's own",
        World(EXTERNAL),
        {"GatewayScalingActive": "False ExternalOwner"},
    ),
    Row(
        "our autoscaler is new",
        World(RANGE),
        {"GatewayScalingActive": "Unknown Unknown"},
    ),
    Row(
        "the cluster has no CPU metrics, and the fleet is not stalled for it",
        World(RANGE, autoscaler=BLIND),
        {"GatewayScalingActive": "False AutoscalerBlind"},
    ),
    Row(
        "it cannot read the Deployment, and gives no reason",
        World(RANGE, autoscaler=GONE),
        {"GatewayScalingActive": "False AutoscalerBlind"},
    ),
    Row(
        "it scales",
        World(RANGE, autoscaler=SEES),
        {"GatewayScalingActive": "True AsSpecified"},
    ),
    Row(
        "fewer than min are available",
        World({"routing": {"autoscaling": {"min": 2, "max": 4}}}, gateways=FEW, autoscaler=SEES),
        {**TOO_FEW, "GatewayScalingActive": "True AsSpecified"},
    ),
    Row(
        "it has asked for four, and the third does not start: the spec asks for one",
        World(
            RANGE,
            deployed={"gateway": 4},
            gateways={"updatedReplicas": 4, "replicas": 4, "availableReplicas": 2},
            autoscaler=SEES,
        ),
        {"GatewayScalingActive": "True AsSpecified"},
    ),
    Row(
        "gateways of before are left",
        World(
            RANGE,
            gateways={"updatedReplicas": 1, "replicas": 2, "availableReplicas": 2},
            autoscaler=SEES,
        ),
        {
            "RolledOut": "False RollingOut",
            "Reconciling": "True RollingOut",
            "GatewayScalingActive": "True AsSpecified",
        },
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.words)
def test_the_condition_says_who_sizes_the_gateways(row: Row) -> None:
    found, expected = compare(row)
    assert found == expected


SEEN_LATER = {"observedGeneration": GENERATION - 1}
BEFORE = {"RolledOut": "True RolledOut", "Servable": "True AsSpecified"}


@pytest.mark.parametrize("spec", [RANGE, EXTERNAL], ids=["a range", "External"])
def test_another_number_of_gateways_is_no_rollout(spec: dict[str, object]) -> None:
    """The Deployment's generation counts a scaling, too."""
    world = World(spec, pods=(ENGINE, GATEWAY), gateways=SEEN_LATER, before=BEFORE)
    found, _ = compare(Row("", world, {}))
    assert (found["RolledOut"], found["Reconciling"]) == (
        "True RolledOut",
        "False AsSpecified",
    )


def test_an_edit_of_the_template_that_its_controller_has_not_seen_is_a_rollout() -> None:
    world = World(RANGE, pods=(ENGINE, GATEWAY), gateways=SEEN_LATER)
    found, _ = compare(Row("", world, {}))
    assert found["RolledOut"] == "False RollingOut"
