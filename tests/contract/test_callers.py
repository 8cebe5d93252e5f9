"""What the operator renders and shows is what the engine verifies."""

import httpx
import pytest

from argosy_engine.server.admin import Admin
from argosy_engine.transfer.verifier import Verifier
from argosy_operator.adapters.engines import HttpEngines
from argosy_operator.core.snapshot import names
from argosy_operator.core.snapshot.snapshot import Issuer
from argosy_operator.render import gateway, workload
from argosy_operator.render.common import PEERS_FILE
from argosy_operator.render.engines import EnginePod
from argosy_operator.render.fleet import Callers, render_callers
from tests.engine.trust.tokens import Signer
from tests.render.fleets import IMAGES, fleet

OPERATOR = "system:serviceaccount:argosy-system:argosy"
ISSUER = "https://cluster"
CHAT = ("prod", "chat")
SIGNER = Signer("one")


def pod_of(deployment):
    return deployment["spec"]["template"]["spec"]


def token_of(deployment):
    """As the kubelet would make it for a pod of this Deployment."""
    spec = pod_of(deployment)
    account = names.account_subject("prod", spec["serviceAccountName"])
    (volume,) = (v for v in spec["volumes"] if v["name"] == "token")
    (source,) = volume["projected"]["sources"]
    audience = source["serviceAccountToken"]["audience"]
    return SIGNER.token(account, iss=ISSUER, aud=[audience])


@pytest.fixture
def verifier(tmp_path):
    """With the file that the operator renders."""
    issuer = Issuer(ISSUER, (SIGNER.public,), OPERATOR)
    (_, config_map) = render_callers(fleet(), issuer, Callers.of(fleet(), IMAGES), required=True)
    file = tmp_path / PEERS_FILE
    file.write_text(config_map["data"][PEERS_FILE])
    return Verifier(file)


def test_gateways_and_engines_are_taken_where_they_call_and_nowhere_else(verifier) -> None:
    front = next(o for o in gateway.objects(fleet(), IMAGES) if o["kind"] == "Deployment")
    decode = workload.deployment(EnginePod.of(fleet(), "decode", "0" * 8, IMAGES))
    taken = {
        (name, port)
        for name, deployment in (("gateway", front), ("engine", decode))
        for port in ("api", "kv", "admin")
        if verifier.check(token_of(deployment), port) is None
    }
    assert taken == {("gateway", "api"), ("engine", "kv")}


def test_a_pod_of_another_fleet_is_taken_nowhere(verifier) -> None:
    other = next(o for o in gateway.objects(fleet("code"), IMAGES) if o["kind"] == "Deployment")
    unproven = verifier.check(token_of(other), "api")
    assert unproven is not None
    assert unproven.reason == "audience"


@pytest.mark.parametrize(
    ("account", "meant", "answers"),
    [
        (OPERATOR, "uid-1", True),
        (OPERATOR, "uid-2", False),
        ("system:serviceaccount:prod:chat-gateway", "uid-1", False),
        (None, "uid-1", False),
    ],
)
async def test_an_engine_obeys_the_operator_that_means_it(
    verifier, account, meant, answers
) -> None:
    async def token(key):
        audience = names.audience(*key)
        return account and SIGNER.token(account, iss=ISSUER, aud=[audience])

    engines = HttpEngines(token)
    await engines.close()
    app = Admin(verifier=verifier, pod_uid="uid-1").app()
    engines._http = httpx.AsyncClient(transport=httpx.ASGITransport(app))
    load = await engines.load("10.0.0.1", CHAT, meant)
    assert (load is not None) is answers
    await engines.close()
