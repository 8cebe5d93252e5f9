"""How a fleet comes to speak TLS and how it stops: a gateway always can call the engines there are,
and a fleet without a certificate stays as it is."""

from dataclasses import replace
from typing import Any

import pytest

from argosy_operator.core.snapshot import names, snapshot
from argosy_operator.core.snapshot.snapshot import certificate_of
from argosy_operator.shell import gather
from tests.support.model import Model, condition, converged, fleet

PAIR = {"mode": "disaggregated"}
TLS = {"tls": {"secretName": "chat-tls"}}


def template(model: Model, name: str = "chat-gateway") -> Any:
    return model.children["Deployment", name]["spec"]["template"]


def engines(model: Model) -> dict[str, str | None]:
    """The Secret of each engine Deployment."""
    return {
        name: certificate_of(child)
        for (kind, name), child in model.children.items()
        if kind == "Deployment" and name != "chat-gateway"
    }


def secured(model: Model) -> str:
    found = condition(model, "TransportSecured")
    return f"{found.status} {found.reason}"


def gateways(model: Model, *, tls: bool) -> None:
    """Kubernetes has, or has not, replaced the gateway's pods."""
    model.pods = {
        uid: replace(pod, tls=tls) if pod.role == "gateway" else pod
        for uid, pod in model.pods.items()
    }


def test_a_new_fleet_speaks_tls_from_its_first_round() -> None:
    model = Model(fleet(**PAIR, security=TLS))
    model.round()
    assert set(engines(model).values()) == {"chat-tls"}
    assert "--tls-dir" in str(template(model))
    model.converge()
    assert secured(model) == "True AsSpecified"


def test_engine_pods_stay_until_every_gateway_can_call_those_with_tls() -> None:
    model = converged(**PAIR)
    before = engines(model)
    assert secured(model) == "False NoCertificate"
    model.edit(security=TLS)
    gateways(model, tls=False)
    model.converge()
    assert "--tls-dir" in str(template(model))
    assert engines(model) == before
    assert secured(model) == "False CertificateNotUsed"
    gateways(model, tls=True)
    model.converge()
    assert set(engines(model).values()) == {"chat-tls"}
    assert len(engines(model)) == 2
    assert secured(model) == "True AsSpecified"


def test_engines_with_tls_stay_while_a_gateway_without_it_is_there() -> None:
    model = converged(**PAIR, security=TLS)
    before = engines(model)
    gateways(model, tls=False)
    model.converge()
    assert engines(model) == before


def test_engines_with_tls_of_another_operator_stay_while_a_gateway_is_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as newer:
        newer.setattr(gather, "TEMPLATE", 99)
        newer.setattr(snapshot, "TEMPLATE", 99)
        model = converged(**PAIR, security=TLS)
    before = engines(model)
    gateways(model, tls=False)
    model.converge()
    assert engines(model) == before
    model.edit(engine={"maxNumSeqs": 8})
    model.round()
    assert sorted(map(str, engines(model).values())) == ["None", "None", "chat-tls", "chat-tls"]


def test_a_fleet_that_stops_keeps_the_gateways_certificate_until_no_engine_speaks_tls() -> None:
    model = converged(**PAIR, security=TLS)
    model.edit(security={})
    model.round()
    assert sorted(map(str, engines(model).values())) == ["None", "None", "chat-tls", "chat-tls"]
    while any(engines(model).values()):
        volumes = template(model)["spec"]["volumes"]
        assert {"chat-tls"} == {v["secret"]["secretName"] for v in volumes if "secret" in v}
        model.round()
        model.tick()
    model.converge()
    assert "--tls-dir" not in str(template(model))
    assert secured(model) == "False NoCertificate"


def test_the_pods_of_a_fleet_mount_three_keys_of_the_secret_and_say_that_they_speak_tls() -> None:
    model = converged(**PAIR, security=TLS)
    keys = ["tls.crt", "tls.key", "ca.crt"]
    source = {"secretName": "chat-tls", "items": [{"key": key, "path": key} for key in keys]}
    mount = {"name": "tls", "mountPath": "/var/run/argosy/tls", "readOnly": True}
    for name in ("chat-gateway", *engines(model)):
        made = template(model, name)
        (container,) = made["spec"]["containers"]
        assert {"name": "tls", "secret": source} in made["spec"]["volumes"]
        assert mount in container["volumeMounts"]
        at = container["args"].index("--tls-dir")
        assert container["args"][at + 1] == "/var/run/argosy/tls"
        says = made["metadata"]["annotations"].get(names.TLS)
        assert says == (None if name == "chat-gateway" else "true")
