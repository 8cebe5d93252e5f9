"""How a fleet verifies its callers, begins to and stops: no call of its own pods is refused."""

import json
from dataclasses import replace
from typing import Any

from argosy_operator.core.snapshot import names
from argosy_operator.core.snapshot.snapshot import verifies_callers
from tests.support.model import ISSUER, Model, condition, converged, fleet

PAIR = {"mode": "disaggregated"}


def peers_file(model: Model) -> Any:
    live = model.children.get(("ConfigMap", "chat-peers"))
    return live and json.loads(live["data"]["peers.json"])


def gateway_template(model: Model) -> Any:
    return model.children["Deployment", "chat-gateway"]["spec"]["template"]


def verified(model: Model) -> str:
    found = condition(model, "PeersVerified")
    return f"{found.status} {found.reason}"


def engines(model: Model) -> dict[str, bool]:
    """Whether the pods of each engine Deployment verify their callers."""
    return {
        name: verifies_callers(child)
        for (kind, name), child in model.children.items()
        if kind == "Deployment" and name != "chat-gateway"
    }


def test_a_new_fleet_requires_a_proof_from_its_first_round() -> None:
    model = Model(fleet(**PAIR))
    model.round()
    assert peers_file(model)["required"] is True
    assert all(engines(model).values())
    model.converge()
    assert verified(model) == "True AsSpecified"


def test_a_fleet_that_stops_verifying_keeps_the_gateways_tokens_until_no_engine_asks() -> None:
    model = converged(**PAIR)
    model.edit(security={"verifyPeers": False})
    model.round()
    assert sorted(engines(model).values()) == [False, False, True, True]
    assert peers_file(model)["required"] is False
    while any(engines(model).values()):
        assert "--token-file" in str(gateway_template(model))
        assert ("ConfigMap", "chat-peers") in model.children
        model.round()
        model.tick()
    model.converge()
    assert "--token-file" not in str(gateway_template(model))
    assert verified(model) == "False NotVerified"
    model.edit(security={"verifyPeers": True})
    model.round()
    assert True in engines(model).values()


def test_unknown_keys_hold_back_the_file_and_leave_the_one_that_exists() -> None:
    model = Model(fleet(), issuer=None)
    model.converge()
    assert (peers_file(model), verified(model)) == (None, "False KeysUnknown")
    model.issuer = ISSUER
    model.converge()
    assert (peers_file(model)["issuer"], verified(model)) == (ISSUER.url, "True AsSpecified")
    model.issuer = None
    assert model.round().actions == ()
    assert verified(model) == "True AsSpecified"


def test_new_keys_and_another_operator_reach_the_file_and_replace_no_pod() -> None:
    model = converged(**PAIR)
    pods = set(model.pods)
    new = {"kid": "new", "kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"}
    model.issuer = replace(ISSUER, keys=(new, *ISSUER.keys), operator="system:other")
    model.converge()
    assert [key["kid"] for key in peers_file(model)["keys"]] == ["new", "one"]
    assert peers_file(model)["callers"]["admin"] == ["system:other"]
    assert set(model.pods) == pods


def test_the_order_in_which_the_api_server_lists_its_keys_changes_nothing() -> None:
    new = {"kid": "new", "kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"}
    model = Model(fleet(), issuer=replace(ISSUER, keys=(new, *ISSUER.keys)))
    model.converge()
    model.issuer = replace(ISSUER, keys=(*ISSUER.keys, new))
    assert model.round().actions == ()


def test_a_changed_peers_file_is_put_back() -> None:
    """Who writes keys of his own into it could sign tokens for himself."""
    model = converged()
    live = model.children["ConfigMap", "chat-peers"]
    wanted = live["data"]
    model.children["ConfigMap", "chat-peers"] = {**live, "data": {"peers.json": "{}"}}
    model.converge()
    assert model.children["ConfigMap", "chat-peers"]["data"] == wanted


def test_a_gateways_token_is_for_its_own_fleet() -> None:
    (volume,) = [
        v for v in gateway_template(converged())["spec"]["volumes"] if v["name"] == "token"
    ]
    (source,) = volume["projected"]["sources"]
    assert source["serviceAccountToken"]["audience"] == names.audience("ns", "chat")
