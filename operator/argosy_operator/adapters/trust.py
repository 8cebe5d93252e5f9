"""Service-account tokens of this cluster: who signs them, and the operator's own.

The API server publishes its issuer and public keys to every service account. `render/fleet.py` puts
them into the fleets' peers files, `engines.py` shows the operator's tokens to engines.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from argosy_operator.adapters.protocols import ClusterError
from argosy_operator.core.snapshot import names
from argosy_operator.core.snapshot.objects import FleetKey, Object, seconds
from argosy_operator.core.snapshot.snapshot import Issuer

log = logging.getLogger("argosy.trust")

DISCOVERY, KEYS = "/.well-known/openid-configuration", "/openid/v1/jwks"
LOOK_AGAIN_S = 300.0
"""A cluster that changes its key publishes the new one long before it signs with it."""
TRY_AGAIN_S = 10.0
TOKEN_S = 3600
_MEMBERS = ("kid", "kty", "alg", "use", "n", "e", "crv", "x", "y")


@dataclass(frozen=True, slots=True)
class Account:
    """This process' own service account and pod."""

    namespace: str
    name: str
    pod: str
    pod_uid: str

    @property
    def subject(self) -> str:
        return names.account_subject(self.namespace, self.name)


class Tokens(Protocol):
    """What is asked of the API server: `ApiCluster`."""

    async def page(self, path: str) -> Object: ...

    async def token(self, namespace: str, account: str, spec: Object) -> Object: ...


class ClusterTrust:
    """`protocols.TrustSource`, and the operator's tokens."""

    def __init__(
        self,
        api: Tokens,
        account: Account | None,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`account`: None for an operator outside of a cluster, which shows no tokens."""
        self._api, self._account = api, account
        self._monotonic, self._clock = monotonic, clock
        self._issuer: Issuer | None = None
        self._look_at = 0.0
        self._looking = asyncio.Lock()
        self._tokens: dict[FleetKey, tuple[str, float]] = {}

    async def issuer(self) -> Issuer | None:
        """Asked again every five minutes. While the API server does not answer, what it said
        before; None if it never did. As long as nothing is known, rounds that ask while it is asked
        wait for its answer: without the keys, a new fleet's pods would be created before the file
        that they mount."""
        if self._issuer is not None and self._looking.locked():
            return self._issuer
        async with self._looking:
            if self._monotonic() >= self._look_at:
                await self._look()
        return self._issuer

    async def _look(self) -> None:
        again_s = TRY_AGAIN_S
        try:
            discovery = await self._api.page(DISCOVERY)
            keys = await self._api.page(KEYS)
            self._issuer = Issuer(
                url=str(discovery["issuer"]),
                keys=tuple(
                    {member: str(key[member]) for member in _MEMBERS if member in key}
                    for key in keys["keys"]
                ),
                operator=None if self._account is None else self._account.subject,
            )
            again_s = LOOK_AGAIN_S
        except ClusterError as error:
            log.warning("the cluster's public keys cannot be read: %s", error)
        except (KeyError, TypeError) as error:
            log.warning("the cluster's public keys are in no known form: %r", error)
        # From the answer on: after one that came late, those who waited do not ask again.
        self._look_at = self._monotonic() + again_s

    async def token(self, fleet: FleetKey) -> str | None:
        """A token for the fleet's engines, asked for again after 80 % of its time. None without an
        account, or if the API server gives none."""
        if self._account is None:
            return None
        known = self._tokens.get(fleet)
        if known is not None and self._clock() < known[1]:
            return known[0]
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "name": self._account.pod,
            "uid": self._account.pod_uid,
        }
        spec = {
            "audiences": [names.audience(*fleet)],
            "expirationSeconds": TOKEN_S,
            "boundObjectRef": pod,
        }
        try:
            got = await self._api.token(self._account.namespace, self._account.name, spec)
            ends_at = seconds(got["expirationTimestamp"]) or 0.0
            token = str(got["token"])
        except (ClusterError, KeyError, TypeError) as error:
            log.warning("no token for the engines of %s/%s: %s", *fleet, error)
            return None
        now = self._clock()
        self._tokens[fleet] = token, now + 0.8 * (ends_at - now)
        return token
