"""What the conditions say about who may call the engine pods."""

import pytest

from tests.core.status.worlds import GATEWAY, Row, World, compare, pod

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
    ),
    Row(
        "the user turned it off",
        World(OFF),
        {"PeersVerified": "False NotVerified"},
    ),
    Row(
        "another engine asks for no token",
        World(VLLM),
        {"PeersVerified": "False NotVerified"},
    ),
    Row(
        "the API server has not said who signs its tokens",
        World(issuer=None, fails={"ConfigMap/": (None, "")}),
        {"PeersVerified": "False KeysUnknown"},
    ),
    Row(
        "a gateway pod of before shows no token",
        World(pods=(pod("colocated"), GATEWAY, pod("gateway", 2, "", shows_token=False))),
        {"PeersVerified": "False RollingOut"},
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
    found, expected = compare(row)
    assert found == expected
