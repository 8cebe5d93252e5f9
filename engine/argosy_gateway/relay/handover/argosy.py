"""The handover between engines of ours: the decode engine asks the prefill engines itself.

designs/0008-kv-protocol-2.md has the protocol.
"""

from argosy_gateway.config import SloClass
from argosy_gateway.pods.endpoints import Endpoint
from argosy_gateway.relay.gateway import Gateway
from argosy_gateway.relay.handover import Led
from argosy_gateway.routing.roster import Route
from argosy_gateway.wire.http1 import authority
from argosy_gateway.wire.openai import CompletionRequest

__all__ = ["Candidates", "address_of"]

_HELD_SHARE = 0.9
"""Of the TTFT limit: until then an engine may hold a first token. The rest is for the way to the
client, and for the step in which the engine notices that the time is over."""


class Candidates:
    """Headers that name the prefill pods of the route, best first."""

    def __init__(
        self, gateway: Gateway, request: CompletionRequest, route: Route, *, goes_on: bool
    ) -> None:
        """`goes_on`: the stream has begun at another engine."""
        self._gateway = gateway
        self._request = request
        self._prefills = route.prefills
        self._goes_on = goes_on

    async def lead(self) -> Led:
        """Return the headers; nothing is sent."""
        headers = [
            ("x-argosy-prefill", ",".join(map(address_of, self._prefills))),
            ("x-argosy-prefill-uids", ",".join(pod.uid for pod in self._prefills)),
        ]
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
    """Return where a prefill pod serves KV, as `x-argosy-prefill` names it."""
    return authority(pod.ip, pod.kv_port)
