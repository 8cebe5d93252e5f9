"""All objects of two fleets, as whole manifests in `expected/`, written by hand.

The first document of a file is the ServingDeployment, the others are what the operator applies for
it, in this order: who may call, the gateway's objects, then those of each role.
"""

from pathlib import Path
from typing import Any

import pytest
import yaml

from argosy_operator.api.v1alpha1 import ServingDeployment
from argosy_operator.core.snapshot import names
from argosy_operator.render import gateway, workload
from argosy_operator.render.engines import EnginePod
from argosy_operator.render.fleet import Callers, render_callers, render_network_policy, render_role
from tests.render.fleets import IMAGES, deployment, fleet
from tests.support.model import ISSUER

EXPECTED = Path(__file__).parent / "expected"
REVISION = "1a2b3c4d"


def documents(case: str) -> list[Any]:
    return list(yaml.safe_load_all((EXPECTED / f"{case}.yaml").read_text()))


def rendered(one: ServingDeployment) -> list[Any]:
    objects = render_callers(
        one, ISSUER, Callers.of(one, IMAGES), required=True
    ) + render_network_policy(one)
    objects += gateway.objects(one, IMAGES)
    for note in (names.INPUTS, names.TEMPLATE):  # digests: tests/shell/test_images.py
        del objects[-1]["metadata"]["annotations"][note]
    for name, _ in one.spec.active_roles():
        objects.append(workload.deployment(EnginePod.of(one, name, REVISION, IMAGES)))
        objects += render_role(one, name)
    return objects


WHOLE = [
    pytest.param(case, at, id=f"{case}: {child['kind']} {child['metadata']['name']}")
    for case in ("pd", "colocated")
    for at, child in enumerate(documents(case)[1:])
]


@pytest.mark.parametrize(("case", "at"), WHOLE)
def test_a_child_is_rendered_as_its_manifest_says(case: str, at: int) -> None:
    whole = documents(case)
    children = rendered(ServingDeployment.model_validate(whole[0]))
    assert len(children) == len(whole) - 1
    assert children[at] == whole[at + 1]


def gateway_of(one: ServingDeployment, account: str | None = None) -> Any:
    return gateway.objects(one, IMAGES, account=account)[-1]


def test_no_gateway_leaves_before_its_successor_is_ready_nor_before_clients_stop_coming() -> None:
    """maxUnavailable 0, and a preStop within the grace that the drain needs besides. The gateway
    ends itself after its drain, so the grace is that of any drain up to a minute."""
    spec = gateway_of(fleet(drain={"timeout": "31500ms"}))["spec"]
    assert spec["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    pod = spec["template"]["spec"]
    assert pod["containers"][0]["lifecycle"] == {"preStop": {"sleep": {"seconds": 5}}}
    assert pod["terminationGracePeriodSeconds"] == 5 + 60 + 10


# ServiceAccounts and Deployments as the API server returns them.
OLD, NEW = "2026-01-02T03:00:00Z", "2026-01-02T04:00:00Z"


def account(created: str | None) -> Any:
    return {"metadata": {"name": "chat-gateway", "uid": "account-2", "creationTimestamp": created}}


def live(created: str | None, **annotations: str) -> Any:
    template = {"metadata": {"annotations": annotations or None}}
    return {"metadata": {"creationTimestamp": created}, "spec": {"template": template}}


NAMES_IT = {names.ACCOUNT: "account-1"}


@pytest.mark.parametrize(
    ("of", "deployment", "uid"),
    [
        pytest.param(None, None, None, id="a new fleet"),
        pytest.param(account(OLD), None, None, id="the account is there first"),
        pytest.param(account(OLD), live(OLD), None, id="both were created together"),
        pytest.param(account(OLD), live(NEW), None, id="the pods are younger than the account"),
        pytest.param(account(NEW), live(OLD), "account-2", id="the account was created again"),
        pytest.param(
            account(NEW), live(OLD, **NAMES_IT), "account-2", id="the account was created twice"
        ),
        pytest.param(None, live(OLD), None, id="the account is gone"),
        pytest.param(None, live(OLD, **NAMES_IT), "account-1", id="the second account is gone"),
        pytest.param(account(None), live(OLD), None, id="an account without a time"),
        pytest.param(account(NEW), live(None), None, id="pods without a time"),
    ],
)
def test_gateway_pods_are_replaced_when_their_account_is_younger_than_they(
    of: Any, deployment: Any, uid: str | None
) -> None:
    """Their token is bound to the uid of the account that they started with."""
    assert gateway.account_of(of, deployment) == uid


def test_a_second_account_stands_in_the_template_of_the_gateways_pods() -> None:
    def annotations(uid: str | None) -> Any:
        return gateway_of(fleet(), uid)["spec"]["template"]["metadata"]["annotations"]

    assert annotations("account-2") == {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": "8081",
        "prometheus.io/path": "/metrics",
        "serving.argosy.dev/account": "account-2",
    }
    assert "serving.argosy.dev/account" not in annotations(None)


def test_a_fleet_without_gpus_tolerates_no_taint_and_asks_for_none() -> None:
    one = fleet(roles={"decode": {"resources": {"gpu": 0, "memory": "1Gi"}}})
    pod = deployment(one, "decode")["spec"]["template"]["spec"]
    assert "tolerations" not in pod
    assert pod["containers"][0]["resources"] == {
        "requests": {"cpu": "100m", "memory": "1Gi"},
        "limits": {"memory": "1Gi"},
    }
    assert [volume["name"] for volume in pod["volumes"]] == ["tmp", "weights", "peers", "token"]


@pytest.mark.parametrize(
    ("timeout", "seconds"), [("500ms", 1), ("1s", 1), ("1001ms", 2), ("90s", 90)]
)
def test_a_time_out_is_rounded_up_to_whole_seconds(timeout: str, seconds: int) -> None:
    one = fleet(kvTransfer={"timeout": timeout})
    args = deployment(one, "decode")["spec"]["template"]["spec"]["containers"][0]["args"]
    assert args[args.index("--kv-timeout-s") + 1] == str(seconds)


def test_gateways_note_their_template_and_what_they_were_made_from() -> None:
    """With another digest of the same inputs an upgrade would replace every gateway pod."""
    front = gateway.objects(fleet(), IMAGES, certificate="chat-tls", shows_token=False)[-1]
    notes = front["metadata"]["annotations"]
    assert notes[names.TEMPLATE] == str(gateway.TEMPLATE)
    assert notes[names.INPUTS] == "546d01079a94ec95"
    volumes = front["spec"]["template"]["spec"]["volumes"]
    (shown,) = (volume for volume in volumes if volume["name"] == names.TLS_VOLUME)
    assert shown["secret"]["secretName"] == "chat-tls"
