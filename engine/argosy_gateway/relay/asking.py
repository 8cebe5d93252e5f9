"""What an engine is sent: a client's body, with headers that say who asks whom for what.

`attempt` asks an engine here. The connection comes from the fleet's pool.
"""

from argosy_gateway.accounting.classes import SloClass
from argosy_gateway.pods.endpoints import Endpoint, Role
from argosy_gateway.relay.fleet import Fleet
from argosy_gateway.relay.resume import Resume
from argosy_gateway.routing.roster import Route
from argosy_gateway.wire.http1 import Exchange, authority
from argosy_gateway.wire.openai import CompletionRequest, rename_model

__all__ = ["address_of", "ask"]


_HELD_SHARE = 0.9
"""Of the TTFT limit: until then an engine may hold a first token. The rest is for the way to the
client, and for the step in which the engine notices that the time is over."""


async def ask(
    fleet: Fleet,
    request: CompletionRequest,
    route: Route,
    number: int,
    resume: Resume | None,
    *,
    fresh: bool,
) -> Exchange:
    """Send the request, over a kept connection unless `fresh`. Raises UnreachableError.

    `number` counts the attempts of the request; `resume` is given for the rest of a stream.
    """
    pod = route.head
    headers = [
        ("content-type", "application/json"),
        ("x-request-id", request.request_id),
        ("x-argosy-attempt", str(number)),
        *fleet.shown_to(pod),
    ]
    slo_class = fleet.class_of(request.slo_class)
    if slo_class.priority:
        headers.append(("x-argosy-priority", str(slo_class.priority)))
    if slo_class.slo is not None and pod.role is Role.DECODE:
        headers.append(("x-argosy-tpot-ms", f"{1000 * slo_class.slo.tpot_s:.3f}"))
    if route.prefills:
        headers.append(("x-argosy-prefill", ",".join(map(address_of, route.prefills))))
        headers.append(("x-argosy-prefill-uids", ",".join(p.uid for p in route.prefills)))
        if resume is None:
            headers += _first_token(fleet, request, slo_class)
    body = (
        request.body if pod.model is None else rename_model(request.body, request.model, pod.model)
    )
    if request.stream:
        headers.append(("x-argosy-token-ids", "1"))
        if route.prefills:
            headers.append(("x-argosy-handover", "1"))
    if resume is not None:
        headers.append(("x-argosy-resume", "1"))
        body = resume.body(body)
    return await fleet.connections.post(
        fleet.peer_of(pod),
        request.path,
        headers,
        body,
        connect_s=fleet.config.limits.connect_s,
        fresh=fresh,
    )


def _first_token(
    fleet: Fleet, request: CompletionRequest, slo_class: SloClass
) -> list[tuple[str, str]]:
    """How long the engine may hold the first token of the answer, from now on."""
    if not fleet.config.hold_first_token or slo_class.slo is None:
        return []
    left_s = request.received_at + _HELD_SHARE * slo_class.slo.ttft_s - fleet.clock()
    return [("x-argosy-first-token-ms", f"{1000 * left_s:.1f}")] if left_s > 0 else []


def address_of(pod: Endpoint) -> str:
    """Where a prefill pod serves KV, as `x-argosy-prefill` names it."""
    return authority(pod.ip, pod.kv_port)
