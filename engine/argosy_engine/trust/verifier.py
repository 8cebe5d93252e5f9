"""Checks the proof of a caller: a service-account token of this fleet, valid now, of the right pod.

A token is verified once; after that its hash stands for it until it expires or the keys change, so
a request costs microseconds. Callers are other pods. Used from the event loops of ports 8000, 8001
and 8002, which are two threads: each step is one operation on a dict.
"""

import hashlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jwt

from argosy_engine.errors import EngineError
from argosy_engine.ports.callers import Port, Reason, Unproven
from argosy_engine.trust.mounted_file import MountedFile
from argosy_engine.trust.peers import ALGORITHMS, Peers, parse_peers

__all__ = ["LEEWAY_S", "Verifier"]

log = logging.getLogger(__name__)

LEEWAY_S = 60.0
"""By which the clocks of two nodes may differ."""
_LONGEST_TOKEN = 8192
_MOST_KNOWN = 4096
_REQUIRED = ("iss", "aud", "sub", "exp")


@dataclass(frozen=True, slots=True)
class _Token:
    """What a token with a valid signature says. Times are seconds since the epoch."""

    account: str
    begins_s: float
    ends_s: float


class _WrongError(EngineError):
    """Why a token proves nothing; becomes an `Unproven`."""

    def __init__(self, reason: Reason, what: str) -> None:
        super().__init__(what)
        self.reason: Reason = reason


class Verifier:
    """Implements `ports.callers.Verifier`."""

    def __init__(
        self,
        peers_file: Path,
        *,
        on_refused: Callable[[Port, Reason], None] = lambda _port, _reason: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Raises FileError if the file cannot be used. `on_refused` counts; it may be called on any
        thread. `clock` gives seconds since the epoch."""
        self._file = MountedFile(peers_file, parse_peers)
        self._on_refused = on_refused
        self._clock = clock
        self._known: tuple[Peers, dict[bytes, _Token]] = (self._file.value(), {})

    @property
    def required(self) -> bool:
        """Whether calls without a proof are refused."""
        return self._file.value().required

    def check(self, token: str | bytes | None, port: Port) -> Unproven | None:
        """None: the caller may call this port. `token` is what it showed, None for nothing."""
        peers = self._file.value()
        if not peers.required:
            return None
        try:
            found = self._token(peers, token)
            now = self._clock()
            if not found.begins_s - LEEWAY_S <= now < found.ends_s + LEEWAY_S:
                raise _WrongError("time", "the token has expired, or is not valid yet")
            if found.account not in peers.callers[port]:
                raise _WrongError("account", f"{found.account} may not call this port")
        except _WrongError as wrong:
            self._on_refused(port, wrong.reason)
            log.info("refused a call of port %s: %s: %s", port, wrong.reason, wrong)
            return Unproven(wrong.reason, _in_words(str(wrong), peers, port))
        return None

    def _token(self, peers: Peers, token: str | bytes | None) -> _Token:
        if not token:
            raise _WrongError("missing", "no token was shown")
        raw = token.encode("utf-8", "replace") if isinstance(token, str) else token
        if len(raw) > _LONGEST_TOKEN:
            raise _WrongError("malformed", f"the token is longer than {_LONGEST_TOKEN} bytes")
        of, known = self._known
        if of is not peers:
            known = {}
            self._known = (peers, known)
        key = hashlib.sha256(raw).digest()
        if (found := known.get(key)) is None:
            found = _verified(peers, raw)
            if len(known) >= _MOST_KNOWN:
                known.clear()  # hours of a large fleet's tokens; the next calls verify again
            known[key] = found
        return found


def _verified(peers: Peers, raw: bytes) -> _Token:
    """Signature, issuer, audience and form; times and account are checked at each call."""
    try:
        kid = jwt.get_unverified_header(raw).get("kid")
        key = peers.keys.get(str(kid))
        if key is None:
            raise _WrongError("key", f"the cluster has no key {kid!r:.60}")
        claims: dict[str, Any] = jwt.decode(
            raw,
            key,
            algorithms=list(ALGORITHMS),
            issuer=peers.issuer,
            audience=peers.audience,
            options={
                "require": list(_REQUIRED),
                "verify_exp": False,
                "verify_nbf": False,
                "verify_iat": False,
            },
        )
        token = _Token(
            account=str(claims["sub"]),
            begins_s=float(claims.get("nbf", claims.get("iat", 0))),
            ends_s=float(claims["exp"]),
        )
    except jwt.InvalidIssuerError:
        raise _WrongError("issuer", f"the token is not of the cluster {peers.issuer}") from None
    except jwt.InvalidAudienceError:
        raise _WrongError("audience", "the token is for another audience") from None
    except (jwt.InvalidSignatureError, jwt.InvalidAlgorithmError):
        raise _WrongError("signature", "the token's signature is wrong") from None
    except jwt.PyJWTError as error:
        raise _WrongError("malformed", f"the token cannot be read: {error!s:.200}") from None
    except (TypeError, ValueError, OverflowError):
        raise _WrongError("malformed", "a time of the token is no number") from None
    if not _names_a_pod(claims):
        raise _WrongError("pod", "the token is bound to no pod")
    return token


def _names_a_pod(claims: dict[str, Any]) -> bool:
    try:
        uid = claims["kubernetes.io"]["pod"]["uid"]
    except (KeyError, TypeError):
        return False
    return isinstance(uid, str) and uid != ""


def _in_words(what: str, peers: Peers, port: Port) -> str:
    accounts = " or ".join(sorted(peers.callers[port])) or "nobody"
    return (
        f"{what}. Show a service-account token of {accounts} for the audience {peers.audience}, "
        "as the kubelet mounts it into that account's pods"
    )
