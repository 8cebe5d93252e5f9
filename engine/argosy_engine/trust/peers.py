"""The peers file: the cluster's public keys, and which service accounts may call which port.

The operator writes it into a ConfigMap of the fleet (designs/0007-trust.md); `verifier.py` uses it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

import jwt

from argosy_engine.ports.callers import Port

__all__ = ["ALGORITHMS", "Peers", "parse_peers"]

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
