"""What the conditions say of a fleet behind a gateway of the cluster."""

import pytest

from argosy_operator.core.snapshot.actions import ErrorKind
from tests.core.status.worlds import Row, World, pod, told

EPP = {
    "routing": {"gateway": "epp"},
    "security": {"verifyPeers": False, "networkPolicy": False},
}
ENGINE, PICKER = pod("colocated"), pod("endpoint-picker", revision="")
OPEN = {"PeersVerified": "False VerificationOff"}
UNKNOWN = (ErrorKind.NOT_FOUND, "404 page not found")
URL = (
    "https://github.com/kubernetes-sigs/gateway-api-inference-extension/releases/download/v1.2.1/"
    "manifests.yaml"
)
ROWS = [
    Row("a picker and an engine serve", World(EPP, pods=(ENGINE, PICKER)), OPEN),
    Row(
        "the picker is not ready",
        World(EPP, pods=(ENGINE, pod("endpoint-picker", revision="", ready=False))),
        OPEN
        | {"Ready": "False GatewayNotReady", "Reconciling": "True GatewayNotReady"}
        | {"RolledOut": "False GatewayNotReady"},
        {
            "GatewayNotReady": "no endpoint picker is ready. See kubectl get pods -l "
            "serving.argosy.dev/fleet=chat,serving.argosy.dev/role=endpoint-picker"
        },
    ),
    Row(
        "a gateway pod of the same name's last fleet is no picker",
        World(EPP, pods=(ENGINE, pod("gateway", revision=""))),
        OPEN
        | {"Ready": "False GatewayNotReady", "Reconciling": "True GatewayNotReady"}
        | {"RolledOut": "False GatewayNotReady"},
    ),
    Row(
        "the pool was deleted and cannot be made for a moment",
        World(
            EPP,
            pods=(ENGINE, PICKER),
            fails={"InferencePool/": (ErrorKind.CONFLICT, "written meanwhile")},
        ),
        OPEN
        | {"Ready": "False GatewayNotReady", "Reconciling": "True GatewayNotReady"}
        | {"RolledOut": "False GatewayNotReady"},
    ),
    Row(
        "the cluster does not know the kind",
        World(EPP, pods=(ENGINE,), fails={"InferencePool/": UNKNOWN}),
        OPEN
        | {
            "Ready": "False InferencePoolsUnknown",
            "Reconciling": "False InferencePoolsUnknown",
            "Stalled": "True InferencePoolsUnknown",
        }
        | {"RolledOut": "False InferencePoolsUnknown"},
        {
            "InferencePoolsUnknown": "routing.gateway is epp, and the API server does not know "
            "InferencePool (inference.networking.k8s.io/v1). Install it: kubectl apply -f "
            f"{URL}. The operator tries again by itself"
        },
    ),
    Row(
        "the picker's image does not exist",
        World(
            EPP,
            pods=(
                ENGINE,
                pod("endpoint-picker", revision="", ready=False, waiting=("ErrImagePull", "no")),
            ),
        ),
        OPEN
        | {
            "Ready": "False GatewayNotReady",
            "Reconciling": "False ImagePullFailed",
            "Stalled": "True ImagePullFailed",
        }
        | {"RolledOut": "False GatewayNotReady"},
        {
            "ImagePullFailed": "pod chat-endpoint-picker-1 cannot pull its image: no. Correct "
            "images.endpointPicker in the values of the operator's chart, or copy the image to "
            "where the nodes can pull it"
        },
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.words)
def test_the_conditions_say_what_the_pool_lacks(row: Row) -> None:
    found, expected = told(row)
    assert found == expected
