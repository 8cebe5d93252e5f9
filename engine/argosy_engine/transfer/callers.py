"""What the engine's ports ask about a caller; `transfer.verifier` answers.

`transfer.certificates` has the TLS of these ports.
"""

import ssl
from dataclasses import dataclass
from typing import Literal, Protocol

Port = Literal["api", "admin", "kv"]
"""The engine's ports: 8000, 8001 and 8002."""

Reason = Literal[
    "missing", "malformed", "key", "signature", "issuer", "audience", "time", "pod", "account"
]
"""What is wrong with a proof. A label of the metrics."""


@dataclass(frozen=True, slots=True)
class Unproven:
    """A call without a valid proof."""

    reason: Reason

    message: str
    """For the caller: what is wrong, and what to show instead."""


class Verifier(Protocol):
    """Asked for each call of another pod, on the event loop of the port that was called."""

    def check(self, token: str | bytes | None, port: Port) -> Unproven | None:
        """None: the caller may call this port. `token` is what it showed, None for nothing."""
        ...


class Certificates(Protocol):
    """TLS of the ports 8000 and 8002, with the certificate of now."""

    def server(self) -> ssl.SSLContext:
        """For a port that listens, once: it follows the certificate by itself."""
        ...

    def client(self) -> ssl.SSLContext:
        """For the next call of another engine."""
        ...
