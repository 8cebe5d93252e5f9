"""How a prompt's KV gets from a prefill pod to the pod that the gateway calls: `Handover`.

There is a file for each protocol. `attempt` asks `lead` before it calls the head of the route, adds
what it answers to the request, and calls `end` when the KV is pulled or the attempt is over. Until
then the prefill pod is busy, and does not go when it drains.

- `argosy`: a header names the candidates, and the decode engine asks them and pulls.
- `nixl`: vLLM's NixlConnector. The gateway asks a prefill pod first, and the decode engine second.
- `bootstrap`: SGLang. The gateway asks both at once, with a room in which they meet.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from argosy_gateway.pods.endpoints import Endpoint
from argosy_gateway.relay.gateway import Gateway
from argosy_gateway.wire.openai import CompletionRequest

__all__ = ["ALONE", "Handover", "Led", "Refused", "add_members", "headers_of", "is_client_error"]


@dataclass(frozen=True, slots=True)
class Led:
    """What is added to the request that the head gets."""

    headers: tuple[tuple[str, str], ...] = ()
    members: Mapping[str, object] = field(default_factory=dict)
    """Of the body."""
    prefill: Endpoint | None = None
    """The pod whose KV the gateway has promised to the head; None where the engines agree on it
    themselves, and where there is none."""
    expires_at: float = float("inf")
    """Event loop time after which the KV may be another request's: the members are left out."""
    first_token_s: float = float("inf")
    """Longest time from the request until its first token. After it the head is asked again
    without the members, because a transfer that hangs has no end."""
    can_compute: bool = True
    """The head can compute the prompt itself, if the KV does not come."""
    failed: bool = False
    """A prefill pod that was asked before failed the request."""


ALONE = Led()
"""The head computes the prompt."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A prefill pod says that the client's request is wrong: the head would say the same."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes


class Handover(Protocol):
    """One request's handover, in one attempt."""

    async def lead(self) -> Led | Refused:
        """Return what the head is asked. Raises ShortageError, and UnreachableError if no prefill
        pod can be reached and the head cannot compute."""
        ...

    def end(self, *, used: bool) -> None:
        """Close what is still open: the head has the KV or does without, or the attempt is over.
        `used`: the head was sent what `lead` answered. May be called twice."""
        ...


def headers_of(
    gateway: Gateway, request: CompletionRequest, pod: Endpoint
) -> tuple[tuple[str, str], ...]:
    """Return the headers of what a pod is asked besides the attempt's own call."""
    return (
        ("content-type", "application/json"),
        ("x-request-id", request.request_id),
        *gateway.headers_for(pod),
    )


def add_members(body: bytes, members: Mapping[str, object]) -> bytes:
    """Return a JSON object with these members in place of those of the same names. It stays in
    its encoding only if that is UTF-8."""
    given = any(f'"{name}"'.encode() in body for name in members)
    if given or json.detect_encoding(body) != "utf-8":
        text = json.dumps({**json.loads(body), **members}, ensure_ascii=False)
        return text.encode(errors="backslashreplace")
    more = json.dumps(members, separators=(",", ":")).encode()
    return body.rstrip(b" \t\r\n")[:-1] + b"," + more[1:]


def is_client_error(status: int) -> bool:
    """Whether this status says that the request is wrong. Others below 500 are of a proxy before
    the engine, of another program at its address, or of a pod that has not what others have."""
    return status in (400, 413, 422)
