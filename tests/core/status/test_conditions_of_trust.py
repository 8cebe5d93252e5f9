"""What the conditions say about who may call the engine pods."""

import pytest

from tests.core.status.worlds import GATEWAY, Row, World, pod, told

OFF = {"security": {"verifyPeers": False}}
VLLM = {
    "model": {"uri": "pvc://models/m"},
    "engine": {"type": "vllm", "image": "vllm/vllm-openai:v0.32.0"},
}
ROWS = [
    Row(
        "every pod shows and verifies a token",
        World(),
        {"PeersVerified": "True AsSpecified"},
        {},
    ),
    Row(
        "the user turned it off",
        World(OFF),
        {"PeersVerified": "False NotVerified"},
        {
            "NotVerified": "spec.security.verifyPeers is false: engine pods serve everyone who "
            "reaches them"
        },
    ),
    Row(
        "another engine asks for no token",
        World(VLLM),
        {"PeersVerified": "False NotVerified"},
        {
            "NotVerified": "engines of spec.engine.type vllm and sglang ask their callers "
            "for no token: they serve everyone who reaches them"
        },
    ),
    Row(
        "the API server has not said who signs its tokens",
        World(issuer=None, fails={"ConfigMap/": (None, "")}),
        {"PeersVerified": "False KeysUnknown"},
        {
            "KeysUnknown": "the public keys of the cluster's service accounts cannot be read: new "
            "engine pods do not start"
        },
    ),
    Row(
        "a gateway pod of before shows no token",
        World(pods=(pod("colocated"), GATEWAY, pod("gateway", 2, "", shows_token=False))),
        {"PeersVerified": "False RollingOut"},
        {},
    ),
    Row(
        "a gateway pod of before is being deleted and still calls engines",
        World(
            pods=(
                pod("colocated"),
                GATEWAY,
                pod("gateway", 2, "", shows_token=False, terminating=True),
            )
        ),
        {
            "Reconciling": "True RollingOut",
            "RolledOut": "False RollingOut",
            "PeersVerified": "False RollingOut",
        },
    ),
    Row(
        "a gateway pod of before has ended",
        World(
            pods=(
                pod("colocated"),
                GATEWAY,
                pod("gateway", 2, "", shows_token=False, phase="Succeeded"),
            )
        ),
        {"PeersVerified": "True AsSpecified"},
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.words)
def test_the_condition_says_whether_callers_are_verified(row: Row) -> None:
    found, expected = told(row)
    assert found == expected
