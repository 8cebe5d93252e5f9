"""What the operator learns of the cluster's tokens, and the tokens that it shows to engines."""

import asyncio
from typing import Any

import pytest

from argosy_operator.adapters.protocols import ClusterError
from argosy_operator.adapters.trust import Account, ClusterTrust
from argosy_operator.core.snapshot.actions import ErrorKind
from argosy_operator.core.snapshot.objects import rfc3339
from argosy_operator.core.snapshot.snapshot import Issuer

ACCOUNT = Account("argosy-system", "argosy", "argosy-1", "uid-1")
RSA = {"kid": "one", "kty": "RSA", "alg": "RS256", "use": "sig", "n": "AQAB", "e": "AQAB"}
EC = {"kid": "two", "kty": "EC", "alg": "ES256", "crv": "P-256", "x": "AA", "y": "AA"}
REFUSED = ClusterError(ErrorKind.FORBIDDEN, "get /openid/v1/jwks", "no")


class Api:
    """Publishes `keys` and hands out tokens that count 1,000 s."""

    def __init__(self) -> None:
        self.now = 1_000_000.0
        self.keys: Any = [RSA]
        self.error: ClusterError | None = None
        self.pages: list[str] = []
        self.asked: list[tuple[str, str, Any]] = []
        self.reached = asyncio.Event()
        self.answering = asyncio.Event()
        """Cleared: no page is answered until it is set."""
        self.answering.set()
        self.takes_s = 0.0
        """Seconds from a question to its answer."""

    def clock(self) -> float:
        return self.now

    async def page(self, path: str) -> Any:
        self.pages.append(path)
        self.reached.set()
        await asyncio.sleep(0)
        await self.answering.wait()
        self.now += self.takes_s
        if self.error is not None:
            raise self.error
        if path == "/.well-known/openid-configuration":
            return {"issuer": "https://cluster", "jwks_uri": "https://elsewhere/keys"}
        return {"keys": self.keys}

    async def token(self, namespace: str, account: str, spec: Any) -> Any:
        self.asked.append((namespace, account, spec))
        if self.error is not None:
            raise self.error
        ends = rfc3339(self.now + 1000)
        return {"token": f"token-{len(self.asked)}", "expirationTimestamp": ends}


@pytest.fixture
def api() -> Api:
    return Api()


@pytest.fixture
def trust(api: Api) -> ClusterTrust:
    return ClusterTrust(api, ACCOUNT, monotonic=api.clock, clock=api.clock)


async def test_the_issuer_is_what_the_api_server_publishes_about_itself(
    api: Api, trust: ClusterTrust
) -> None:
    api.keys = [{**RSA, "x5c": ["a certificate"]}, EC]
    operator = "system:serviceaccount:argosy-system:argosy"
    assert await trust.issuer() == Issuer("https://cluster", (RSA, EC), operator)
    assert api.pages == ["/.well-known/openid-configuration", "/openid/v1/jwks"]
    outside = await ClusterTrust(api, None, monotonic=api.clock).issuer()
    assert outside is not None
    assert outside.operator is None


async def test_rounds_that_ask_at_once_get_the_same_answer(api: Api, trust: ClusterTrust) -> None:
    """The second of two new fleets got no keys, and its pods waited for a file."""
    first, second = await asyncio.gather(trust.issuer(), trust.issuer())
    assert first is not None
    assert first == second
    assert len(api.pages) == 2, "it is asked once"


async def test_keys_are_looked_up_again_after_five_minutes(api: Api, trust: ClusterTrust) -> None:
    before = await trust.issuer()
    api.keys = [RSA, EC]
    api.now += 299
    assert await trust.issuer() is before
    assert len(api.pages) == 2
    api.now += 1
    after = await trust.issuer()
    assert after is not None
    assert after.keys == (RSA, EC)


@pytest.mark.parametrize("keys", [None, "x", [5]])
async def test_what_cannot_be_read_leaves_what_was_known_and_is_tried_again_soon(
    api: Api, trust: ClusterTrust, keys: Any
) -> None:
    known = await trust.issuer()
    api.now += 300
    api.keys = keys
    assert await trust.issuer() is known
    api.keys = [EC]
    api.now += 9
    assert await trust.issuer() is known
    api.now += 1
    found = await trust.issuer()
    assert found is not None
    assert found.keys == (EC,)


async def test_each_fleet_gets_a_token_of_its_own_bound_to_this_pod(
    api: Api, trust: ClusterTrust
) -> None:
    """An engine, whose image users choose, could show what it was shown to other fleets."""
    assert await trust.token(("ns", "chat")) == "token-1"
    assert await trust.token(("ns", "code")) == "token-2"
    assert await trust.token(("ns", "chat")) == "token-1"
    pod = {"apiVersion": "v1", "kind": "Pod", "name": "argosy-1", "uid": "uid-1"}
    spec = {"audiences": ["argosy.dev/ns/chat"], "expirationSeconds": 3600, "boundObjectRef": pod}
    assert api.asked[0] == ("argosy-system", "argosy", spec)
    assert api.asked[1][2]["audiences"] == ["argosy.dev/ns/code"]


async def test_a_token_is_renewed_after_four_fifths_of_its_time(
    api: Api, trust: ClusterTrust
) -> None:
    await trust.token(("ns", "chat"))
    api.now += 799
    assert await trust.token(("ns", "chat")) == "token-1"
    api.now += 1
    assert await trust.token(("ns", "chat")) == "token-2"


async def test_without_an_account_or_an_answer_no_token_is_shown(
    api: Api, trust: ClusterTrust
) -> None:
    assert await ClusterTrust(api, None).token(("ns", "chat")) is None
    assert api.asked == []
    api.error = REFUSED
    assert await trust.token(("ns", "chat")) is None
