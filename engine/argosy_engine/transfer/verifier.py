"""Checks the proof of a caller: a service-account token of this fleet, valid now, of the right pod.

The operator writes the peers file into a ConfigMap of the fleet (designs/0007-trust.md): the
cluster's public keys, and which service accounts may call which port. A token is verified once;
after that its hash stands for it until it expires or the keys change, so a request costs
microseconds. Callers are other pods.
"""

import hashlib
import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import jwt

from argosy_engine.errors import EngineError
from argosy_engine.transfer.callers import Port, Reason, Unproven
from argosy_engine.transfer.mounted_file import MountedFile

ALGORITHMS = ("RS256", "ES256", "ES384", "ES512")
"""With which an API server may sign service-account tokens (`--service-account-signing-key-file`).
None is symmetric, so a public key can never be taken for a shared secret."""

_VERSION = 1
_KEY_TYPES = ("RSA", "EC")


@dataclass(frozen=True, slots=True)
class Peers:
    """The content of the file."""

    required: bool
    """False: calls without a token are served, too. The operator writes False while pods of an
    older template still call without one."""

    issuer: str
    """`iss` of the cluster's tokens."""

    audience: str
    """One of `aud`: names the fleet, so that no other fleet's token counts here."""

    keys: Mapping[str, jwt.PyJWK]
    """Public keys by `kid`. While the cluster changes its key, the old and the new one."""

    callers: Mapping[Port, frozenset[str]]
    """`sub` of the accounts that may call each port."""


def parse_peers(text: str) -> Peers:
    """ValueError says which member of the file is wrong."""
    content = json.loads(text)
    if not isinstance(content, dict):
        raise ValueError("must hold a JSON object")
    version = content.get("version")
    if version != _VERSION:
        raise ValueError(f"version must be {_VERSION}, got {version!r:.40}")
    required = content.get("required")
    if not isinstance(required, bool):
        raise ValueError("required must be true or false")
    return Peers(
        required=required,
        issuer=_text(content, "issuer"),
        audience=_text(content, "audience"),
        keys=_keys(content.get("keys")),
        callers=_callers(content.get("callers")),
    )


def _text(content: Mapping[str, Any], name: str) -> str:
    value = content.get(name)
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name} must be a text that is not empty")
    return value


def _keys(value: object) -> dict[str, jwt.PyJWK]:
    if not isinstance(value, list):
        raise ValueError("keys must be a list of JSON Web Keys")
    keys = dict[str, jwt.PyJWK]()
    for entry in value:
        if isinstance(entry, dict) and entry.get("kty") in _KEY_TYPES and "d" not in entry:
            try:
                keys[str(entry["kid"])] = jwt.PyJWK.from_dict(entry)
            except (jwt.PyJWTError, KeyError, ValueError):
                continue  # a kind of key that this library does not know: others may do
    if not keys:
        raise ValueError("keys must hold at least one public RSA or EC key with a kid")
    return keys


def _callers(value: object) -> dict[Port, frozenset[str]]:
    if not isinstance(value, dict):
        raise ValueError("callers must be an object: port → list of accounts")
    for name, accounts in value.items():
        if name not in get_args(Port):
            raise ValueError(f"callers has {name!r:.40}; ports are {', '.join(get_args(Port))}")
        if not isinstance(accounts, list) or not all(isinstance(a, str) for a in accounts):
            raise ValueError(f"callers.{name} must be a list of accounts")
    return {port: frozenset(value.get(port, ())) for port in get_args(Port)}


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
    """Implements `transfer.callers.Verifier`."""

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
