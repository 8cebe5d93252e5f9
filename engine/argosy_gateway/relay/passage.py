"""Requests below /v1 that the gateway does not know: a colocated pod of another engine answers.

Embeddings, scores, audio and what an engine will have tomorrow pass through as they came, but for
the model's name and the members that clients must not write. They count for the places of their
pod, for a drain and for a fleet that goes to zero, and in one series of their own: what they take
says nothing of tokens, so neither the SLO nor the scaling law sees them.
"""

import logging
import re
from collections.abc import Callable
from typing import NamedTuple

from argosy_gateway.errors import (
    BrokenError,
    RequestError,
    ShortageError,
    UnreachableError,
    out_of_descriptors,
    overloaded,
)
from argosy_gateway.pods.endpoints import Endpoint, Role
from argosy_gateway.relay.answer import Send
from argosy_gateway.relay.gateway import Gateway
from argosy_gateway.routing.roster import Group, Route
from argosy_gateway.routing.strategies import RoutingRequest
from argosy_gateway.wire import http1
from argosy_gateway.wire.openai import rename_form_model, rename_model, restore_model

__all__ = ["OTHER_PATH", "OtherRequest", "Passage"]

log = logging.getLogger(__name__)

OTHER_PATH = re.compile(r"/v1(/[A-Za-z0-9_~:-][A-Za-z0-9._~:-]*)+")
"""What is passed on: nothing in it is decoded anew, and no segment leads upwards."""
_NOT_PASSED_ON = frozenset(
    (
        *(b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-connection", b"te"),
        *(b"trailer", b"transfer-encoding", b"upgrade", b"date", b"server", b"x-request-id"),
    )
)
"""Headers of an answer that belong to the engine's connection, or that the gateway sets itself."""
_NAMED_IN = (b"application/json", b"text/event-stream")
"""Answers that may have the model's name in them."""


class OtherRequest(NamedTuple):
    """One request, checked."""

    method: str
    target: str
    """Path and query."""
    headers: tuple[tuple[str, str], ...]
    """Those of the client that reach the engine."""
    body: bytes
    boundary: bytes
    """Between the parts of a form; empty if the body is none."""
    model: str | None
    """The name that it gives the model, if any."""
    adapter: str
    """The same, if it is a LoRA adapter's."""
    request_id: str

    def name_at(self, pod: Endpoint) -> str | None:
        """Return the pod's own name for the model; None: the one that the client wrote, if any."""
        return None if self.adapter or self.model == pod.model else pod.model

    def body_for(self, pod: Endpoint) -> bytes:
        """Return the body with the pod's own name for the model."""
        own = self.name_at(pod)
        if self.model is None or own is None:
            return self.body
        if self.boundary:
            return rename_form_model(self.body, self.boundary, own)
        return rename_model(self.body, self.model, own)


class Passage:
    """One request on its way. `run` counts how it ended exactly once."""

    def __init__(self, gateway: Gateway, request: OtherRequest, send: Send) -> None:
        self._gateway = gateway
        self._request = request
        self._send = send
        self._exchange: http1.Exchange | None = None

    def check_time(self, now: float) -> None:
        """Called by the sweeper: close the connection of an engine that is silent for too long."""
        limits, exchange = self._gateway.config.limits, self._exchange
        if exchange is None or exchange.waiting_since is None:
            return
        limit_s = limits.engine_silence_s if exchange.answered else limits.whole_answer_s
        if now - exchange.waiting_since > limit_s:
            exchange.abort(f"the engine was silent for {limit_s:g} s")

    def take_tpot(self) -> tuple[str, float] | None:
        """Return nothing: no tokens are counted."""
        return None

    async def run(self) -> None:
        """Have a pod answer. Raises RequestError, and BrokenError if the answer had begun."""
        gateway, result = self._gateway, "client_gone"
        if len(gateway.relays) >= gateway.config.max_queue:
            gateway.mark_active()
            raise overloaded(1.0)
        gateway.relays.add(self)
        try:
            status = await self._serve()
            result = "ok" if status < 500 else "failed"
        except Exception:
            result = "failed"
            raise
        finally:
            gateway.relays.discard(self)
            gateway.mark_active()
            gateway.metrics.count_other(result)

    async def _serve(self) -> int:
        """Call one pod after the other until one is reached; return the status of its answer."""
        gateway = self._gateway
        deadline = gateway.clock() + gateway.patience_s()
        while (route := await self._choose(deadline)) is not None:
            reservation, began_at = gateway.in_flight.reserve(route, 1), gateway.clock()
            try:
                return await self._call(route.head)
            except ShortageError as error:
                log.error("no engine can be called: %s", error)
                raise out_of_descriptors() from error
            except UnreachableError as error:  # nothing was sent
                log.info("engine %s is unreachable: %s", route.head.name, error)
                gateway.directory.health.mark_unreachable(route.head.uid, began_at)
            finally:
                reservation.end()
                if self._exchange is not None:
                    self._exchange.abort()
                    self._exchange = None
        raise _unserved("No engine is ready; try again later.", "no_engine_ready")

    async def _choose(self, deadline: float) -> Route | None:
        """Return a colocated pod of another engine; None if there is none until the deadline."""
        gateway, request = self._gateway, self._request
        asked = RoutingRequest(request.request_id, "", False, 1, request.request_id.encode())
        while gateway.clock() < deadline:
            groups = gateway.groups(adapter=request.adapter, canary=False)
            heads = (tuple(filter(_answers_others, group.heads)) for group in groups)
            some = [Group(pods) for pods in heads if pods]
            if (route := gateway.strategy.choose(asked, some, gateway.view)) is not None:
                return route
            await gateway.directory.wait_for_change(deadline - gateway.clock())
        return None

    async def _call(self, pod: Endpoint) -> int:
        """Send the request and pass the answer on. Raises UnreachableError, and what `run` does."""
        gateway, request = self._gateway, self._request
        peer = gateway.peer_of(pod)
        self._exchange = exchange = await http1.call(
            peer.host,
            peer.port,
            method=request.method,
            target=request.target,
            headers=[
                *request.headers,
                ("x-request-id", request.request_id),
                *gateway.headers_for(pod),
            ],
            body=request.body_for(pod),
            connect_s=gateway.config.limits.connect_s,
            tls=peer.tls,
        )
        try:
            head = await exchange.head()
        except BrokenError as error:
            log.warning("engine %s broke off: %s", pod.name, error)
            text = "The engine failed; it may have done what was asked."
            raise _unserved(text, "engines_failed") from error
        if not pod.wrote(head):
            gateway.directory.health.mark_wrong_pod(pod.uid)
            raise _unserved("Another program answered; try again.", "engines_failed")
        await self._pass_on(pod, exchange, head)
        return head.status

    async def _pass_on(self, pod: Endpoint, exchange: http1.Exchange, head: http1.Head) -> None:
        """Send the answer to the client as it comes. Raises BrokenError."""
        own, asked = self._request.name_at(pod), self._request.model
        named = (head.get(b"content-type") or b"").startswith(_NAMED_IN)
        rename = _Names(own, asked) if named and own is not None and asked is not None else None
        left_out = _NOT_PASSED_ON | ({b"content-length"} if rename else set())
        headers = [(k, v) for k, v in head.headers if k not in left_out]
        headers.append((b"x-request-id", self._request.request_id.encode()))
        if self._gateway.draining:
            headers.append((b"connection", b"close"))
        await self._send({"type": "http.response.start", "status": head.status, "headers": headers})
        part: Callable[[bytes], bytes] = rename.feed if rename else bytes
        if self._request.method != "HEAD":
            while data := await exchange.read():
                body = part(data)
                await self._send({"type": "http.response.body", "body": body, "more_body": True})
        rest = rename.rest() if rename else b""
        await self._send({"type": "http.response.body", "body": rest, "more_body": False})


class _Names:
    """Gives an answer that comes in parts the model's name that the client asked for."""

    def __init__(self, own: str, asked: str) -> None:
        self._own, self._asked = own, asked
        self._held = b""
        self._most = len(own) + 64
        """Longest member that two parts may share, white space included."""

    def feed(self, data: bytes) -> bytes:
        """Return what may go. A line that has ended goes whole: no member goes on behind it."""
        text = restore_model(self._held + data, self._own, self._asked)
        keep = 0 if text.endswith(b"\n") else self._most
        at = max(len(text) - keep, 0)
        self._held = text[at:]
        return text[:at]

    def rest(self) -> bytes:
        """Return what was held back."""
        return self._held


def _answers_others(pod: Endpoint) -> bool:
    return pod.keyed and pod.role is Role.COLOCATED


def _unserved(text: str, code: str) -> RequestError:
    return RequestError(503, text, type="server_error", code=code, headers={"retry-after": "1"})
