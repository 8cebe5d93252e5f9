"""The handover of SGLang: prefill and decode are asked at once, and meet in a room.

Both get the client's request with the address of the prefill pod's registry and a room, a random
number of 63 bits that names this request once. The decode pod cannot compute a prompt, so a failure
of either ends both, and the next attempt has another room. As SGLang 0.5.23's sources have it; no
SGLang has run behind this gateway.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable

from argosy_gateway.errors import BrokenError, ShortageError, UnreachableError
from argosy_gateway.pods.endpoints import Endpoint
from argosy_gateway.relay.gateway import Gateway
from argosy_gateway.relay.handover import Led, Refused, add_members, headers_of, is_client_error
from argosy_gateway.relay.metrics import HandoverReason
from argosy_gateway.routing.load import Hold
from argosy_gateway.routing.roster import Route
from argosy_gateway.wire.http1 import Exchange
from argosy_gateway.wire.openai import CompletionRequest, json_or_none

__all__ = ["PORT", "Rooms"]

log = logging.getLogger(__name__)

PORT = 8998
"""Of the registry on a prefill pod (`--disaggregation-bootstrap-port`)."""
_ERROR_BYTES = 1 << 20
"""Of an error that the client may get. Other answers are dropped as they come."""


class Rooms:
    """The prefill half of one request, which runs beside the attempt's own call."""

    def __init__(
        self,
        gateway: Gateway,
        request: CompletionRequest,
        route: Route,
        body: bytes,
        fail: Callable[[str, Refused | None], None],
    ) -> None:
        """`fail` ends the call of the decode pod, which would wait for minutes: why, and what the
        client is answered if its request is wrong."""
        self._gateway = gateway
        self._request = request
        self._route = route
        self._body = body
        self._fail = fail
        self._hold: Hold | None = None
        """On the prefill pod, until its answer is whole: then its KV is sent."""
        self._exchange: Exchange | None = None
        self._reader: asyncio.Task[None] | None = None

    async def lead(self) -> Led | Refused:
        """Send the request to the best prefill pod; its answer is read beside the decode pod's.

        Raises UnreachableError if the pod cannot be reached, and ShortageError.
        """
        gateway, pod = self._gateway, self._route.prefills[0]
        members = {
            "bootstrap_host": f"[{pod.ip}]" if ":" in pod.ip else pod.ip,
            "bootstrap_port": PORT,
            "bootstrap_room": secrets.randbits(63),
        }
        self._hold = gateway.in_flight.hold(pod.uid)
        try:
            self._exchange = await gateway.connections.post(
                gateway.peer_of(pod),
                self._request.path,
                headers_of(gateway, self._request, pod),
                add_members(self._body, members),
                connect_s=gateway.config.limits.connect_s,
                fresh=True,
            )
        except ShortageError:
            raise
        except UnreachableError:
            gateway.directory.health.mark_unreachable(pod.uid, gateway.clock())
            gateway.directory.pairs.count_failure(pod.uid, self._route.head.uid, "connect")
            gateway.metrics.count_failed_handover(HandoverReason.CONNECT)
            raise
        self._reader = asyncio.create_task(self._read(pod, self._exchange))
        return Led(members=members, prefill=pod, can_compute=False)

    def end(self, *, used: bool) -> None:  # noqa: ARG002 # a lost room keeps nothing
        """Close the prefill pod's connection, unless its answer was whole."""
        if self._reader is not None:
            self._reader.cancel()
            self._reader = None
        if self._exchange is not None:
            self._exchange.abort()
            self._exchange = None
        if self._hold is not None:
            self._hold.end()

    async def _read(self, pod: Endpoint, exchange: Exchange) -> None:
        """Read the prefill pod's answer to its end and drop it; the decode pod has the client's."""
        try:
            head = await exchange.head()
            answer = bytearray()
            while data := await exchange.read():
                answer += data if head.status != 200 and len(answer) < _ERROR_BYTES else b""
        except (BrokenError, UnreachableError) as error:
            self._lose(pod, HandoverReason.CLOSED, str(error))
            return
        if is_client_error(head.status) and isinstance(json_or_none(bytes(answer)), dict):
            refused = Refused(head.status, head.headers, bytes(answer))
            self._fail("its prefill pod refuses the request", refused)
        elif head.status != 200:
            self._lose(pod, HandoverReason.REFUSED, f"status {head.status}")
            return
        self._exchange = None
        exchange.release()
        if self._hold is not None:
            self._hold.end()

    def _lose(self, pod: Endpoint, reason: HandoverReason, why: str) -> None:
        log.warning("prefill pod %s failed its half of a request: %s", pod.name, why)
        self._gateway.directory.pairs.count_failure(pod.uid, self._route.head.uid, reason)
        self._gateway.metrics.count_failed_handover(reason)
        self._fail("its prefill pod failed", None)
