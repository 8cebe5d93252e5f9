"""A cluster's signing keys, the peers file of a fleet, and tokens as the kubelet mounts them."""

import json
import time
from pathlib import Path

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa

ISSUER, AUDIENCE = "https://kubernetes.default.svc", "argosy.dev/ns/chat"
GATEWAY = "system:serviceaccount:ns:chat-gateway"
ENGINE = "system:serviceaccount:ns:chat-engine"
OPERATOR = "system:serviceaccount:argosy-system:argosy"
CALLERS = {"api": [GATEWAY], "kv": [ENGINE], "admin": [OPERATOR]}
POD = {"kubernetes.io": {"namespace": "ns", "pod": {"name": "p", "uid": "pod-uid"}}}


class Signer:
    """One key pair of an API server."""

    def __init__(self, kid: str, algorithm: str = "RS256") -> None:
        self.kid, self.algorithm = kid, algorithm
        if algorithm == "RS256":
            self.private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
            self.kind = jwt.algorithms.RSAAlgorithm
        else:
            self.private = ec.generate_private_key(ec.SECP256R1())
            self.kind = jwt.algorithms.ECAlgorithm

    @property
    def public(self) -> dict[str, object]:
        """As /openid/v1/jwks has it."""
        key = self.kind.to_jwk(self.private.public_key(), as_dict=True)
        return {**key, "kid": self.kid, "use": "sig", "alg": self.algorithm}

    @property
    def secret(self) -> dict[str, object]:
        """The private key, which belongs in no file of ours."""
        return {**self.kind.to_jwk(self.private, as_dict=True), "kid": self.kid}

    def token(self, account: str = GATEWAY, **claims: object) -> str:
        """A valid one, but for the given claims; a claim that is None is left out."""
        now = int(time.time())
        said = {
            "iss": ISSUER, "aud": [AUDIENCE], "sub": account,
            "iat": now, "nbf": now, "exp": now + 600, **POD, **claims,
        }  # fmt: skip
        said = {name: value for name, value in said.items() if value is not None}
        return jwt.encode(said, self.private, self.algorithm, headers={"kid": self.kid})


def peers(*signers: Signer, **changes: object) -> dict[str, object]:
    """The content of a peers file."""
    return {
        "version": 1,
        "required": True,
        "issuer": ISSUER,
        "audience": AUDIENCE,
        "keys": [signer.public for signer in signers],
        "callers": CALLERS,
        **changes,
    }


def write(path: Path, content: object) -> Path:
    """Replace the file as the kubelet does: by a rename."""
    text = content if isinstance(content, str) else json.dumps(content)
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)
    return path
