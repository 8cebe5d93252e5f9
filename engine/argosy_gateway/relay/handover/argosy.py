"""The handover between engines of ours: the decode engine asks the prefill engines itself.

designs/0008-kv-protocol-2.md has the protocol. A stream that leaves a decode pod is handed over in
the same way: the next decode pod asks that one, which keeps the KV
(designs/0010-streams-survive.md).
"""

import asyncio
import logging

from argosy_gateway.config import SloClass
from argosy_gateway.errors import BrokenError, ShortageError, UnreachableError
from argosy_gateway.pods.endpoints import Endpoint
from argosy_gateway.relay.gateway import Gateway
from argosy_gateway.relay.handover import Led, headers_of
from argosy_gateway.routing.roster import Route
from argosy_gateway.wire.http1 import authority
from argosy_gateway.wire.openai import CompletionRequest

__all__ = ["Candidates", "StreamKv", "address_of", "ask_to_keep"]

log = logging.getLogger(__name__)

_HELD_SHARE = 0.9
"""Of the TTFT limit: until then an engine may hold a first token. The rest is for the way to the
client, and for the step in which the engine notices that the time is over."""
_TELL_S = 1.0
"""An engine answers at once, also between steps. A stream is not kept waiting for one that hangs.
"""


class StreamKv:
    """The KV of a stream that has left a decode pod, which holds it for the next one."""

    def __init__(self, gateway: Gateway, request: CompletionRequest, pod: Endpoint) -> None:
        self._gateway = gateway
        self._request = request
        self.pod = pod
        self._ended = False

    def end(self) -> None:
        """Have the pod free it now, before the end of its lease. May be called twice."""
        if not self._ended:
            self._ended = True
            self._gateway.keep_running(self._let_go())

    async def _let_go(self) -> None:
        await _tell(self._gateway, self._request, self.pod, "/argosy/let-go")


async def ask_to_keep(
    gateway: Gateway, request: CompletionRequest, pod: Endpoint
) -> StreamKv | None:
    """Have a decode pod hold the KV of this request's stream when its connection closes. Return
    None if it does not: it is gone, or does not know the call."""
    holds = await _tell(gateway, request, pod, "/argosy/keep")
    return StreamKv(gateway, request, pod) if holds else None


async def _tell(gateway: Gateway, request: CompletionRequest, pod: Endpoint, path: str) -> bool:
    try:
        async with asyncio.timeout(_TELL_S):
            exchange = await gateway.connections.post(
                gateway.peer_of(pod),
                path,
                headers_of(gateway, request, pod),
                b"{}",
                connect_s=gateway.config.limits.connect_s,
            )
            try:
                head = await exchange.head()
                while await exchange.read():
                    pass
            except BaseException:
                exchange.abort()
                raise
            exchange.release()
    except (ShortageError, UnreachableError, BrokenError, TimeoutError) as error:
        log.info("%s of %s: %s", path, pod.name, error or f"silent for {_TELL_S:g} s")
        return False
    return head.status == 200 and pod.wrote(head)


class Candidates:
    """Headers that name the prefill pods of the route, best first, and before them the decode pod
    that the stream has left, if it holds the KV."""

    def __init__(
        self,
        gateway: Gateway,
        request: CompletionRequest,
        route: Route,
        *,
        goes_on: bool,
        kv: StreamKv | None = None,
    ) -> None:
        """`goes_on`: the stream has begun at another engine."""
        self._gateway = gateway
        self._request = request
        self._prefills = route.prefills
        self._goes_on = goes_on
        self._kv = kv

    async def lead(self) -> Led:
        """Return the headers; nothing is sent."""
        headers: list[tuple[str, str]] = []
        if self._prefills:
            headers = [
                ("x-argosy-prefill", ",".join(map(address_of, self._prefills))),
                ("x-argosy-prefill-uids", ",".join(pod.uid for pod in self._prefills)),
            ]
        if self._kv is not None:
            pod = self._kv.pod
            headers.append(("x-argosy-kept-at", f"{address_of(pod)}/{pod.uid}"))
        if self._request.stream:
            headers.append(("x-argosy-handover", "1"))
        if not self._goes_on:
            slo_class = self._gateway.class_of(self._request.slo_class)
            headers += _hold_headers(self._gateway, self._request, slo_class)
        return Led(tuple(headers))

    def end(self, *, used: bool) -> None:
        """Do nothing: the engines end their handover themselves."""


def _hold_headers(
    gateway: Gateway, request: CompletionRequest, slo_class: SloClass
) -> list[tuple[str, str]]:
    """Return how long the engine may hold the first token of the answer, from now on."""
    if not gateway.config.hold_first_token or slo_class.slo is None:
        return []
    left_s = request.received_at + _HELD_SHARE * slo_class.slo.ttft_s - gateway.clock()
    return [("x-argosy-first-token-ms", f"{1000 * left_s:.1f}")] if left_s > 0 else []


def address_of(pod: Endpoint) -> str:
    """Return where a pod serves KV, as `x-argosy-prefill` names it."""
    return authority(pod.ip, pod.kv_port)
