"""The two ASGI surfaces: OpenAI's on the API port, probes and metrics on the admin port.

Plain ASGI, because there are eight routes and each of them answers in OpenAI's error form; a router
would answer 404 and 405 in its own. `relay` is the only caller of engines.
"""

import asyncio
import json
import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from argosy_gateway import logs
from argosy_gateway.errors import ClientGoneError, RequestError
from argosy_gateway.relay.bodies import Body
from argosy_gateway.relay.relay import Fleet, Relay, Send
from argosy_gateway.routing.admission import predicted_ttft_s
from argosy_gateway.wire.openai import CompletionRequest, body_of, read_completion, request_id_of

__all__ = ["RECEIVED_AT", "admin_app", "api_app"]

log = logging.getLogger(__name__)

RECEIVED_AT = "argosy.received_at"
"""Key in ASGI's `state`: loop time of the request's first byte, written by `serve`."""

Receive = Callable[[], Awaitable[dict[str, Any]]]
Scope = Mapping[str, Any]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_SHORT_BYTES = 64 << 10
_COMPLETIONS = ("/v1/chat/completions", "/v1/completions")


def api_app(fleet: Fleet) -> App:
    """The OpenAI API of one fleet."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        received_at = scope.get("state", {}).get(RECEIVED_AT) or fleet.clock()
        request_id = request_id_of(_header(scope, b"x-request-id"))
        # The task is this request's, so that uvicorn's own lines about it have the id, too.
        logs.bind(request_id=request_id, attempt=None)
        try:
            if scope["path"] in _COMPLETIONS:
                with fleet.bodies.open() as body:
                    ask = await _ask(fleet, scope, receive, body, received_at)
                    await _completion(fleet, replace(ask, request_id=request_id), receive, send)
            else:
                await _answer(send, 200, _small(fleet, scope), request_id)
        except RequestError as error:
            headers = dict(error.headers)
            if fleet.draining:
                headers["connection"] = "close"
            await _answer(send, error.status, body_of(error), request_id, headers)
        except ClientGoneError:
            return
        except Exception:
            # Before a relay began: it answers for its own faults.
            log.exception("a request failed inside the gateway")
            own = RequestError(500, "The gateway failed.", type="server_error")
            await _answer(send, own.status, body_of(own), request_id)

    return app


async def _ask(
    fleet: Fleet, scope: Scope, receive: Receive, body: Body, received_at: float
) -> CompletionRequest:
    """The request, checked. Raises RequestError and ClientGoneError."""
    announced = _header(scope, b"content-length")
    try:
        if scope["method"] != "POST":
            raise _wrong_method(scope, "POST")
        data = await body.read(receive, int(announced or 0))
        read = partial(read_completion, scope["path"], data, served_name=fleet.config.served_name)
        # A million token ids take half a second to read, in which streams must go on.
        ask = read() if len(data) <= _SHORT_BYTES else await asyncio.to_thread(read)
    except (RequestError, ClientGoneError) as error:
        if isinstance(error, RequestError) and error.status == 429:
            _count_shed(fleet, received_at)
        else:
            fleet.metrics.invalid()
        raise
    return replace(ask, received_at=received_at)


def _count_shed(fleet: Fleet, received_at: float) -> None:
    fleet.metrics.shed(role_mode=fleet.role_mode(), received_at=received_at, now=fleet.clock())


async def _completion(fleet: Fleet, ask: CompletionRequest, receive: Receive, send: Send) -> None:
    retry_after_s = _overload_s(fleet, fleet.tokens_per_char.estimate(ask.prompt_chars))
    if retry_after_s is not None:
        _count_shed(fleet, ask.received_at)
        raise RequestError(
            429,
            "The fleet is overloaded; try again later.",
            type="overloaded",
            code="overloaded",
            headers={
                "retry-after": str(math.ceil(retry_after_s)),
                "retry-after-ms": str(round(retry_after_s * 1000)),
            },
        )
    relay = Relay(fleet, ask, send)
    watcher = asyncio.create_task(_until_gone(receive, relay))
    try:
        await relay.run()
    finally:
        watcher.cancel()


async def _until_gone(receive: Receive, relay: Relay) -> None:
    """The body was read: the next message that matters is the disconnect."""
    while (await receive())["type"] != "http.disconnect":
        pass
    relay.stop()


def _overload_s(fleet: Fleet, tokens: int) -> float | None:
    """Seconds after which to try again, or None: take it in."""
    config = fleet.config
    if len(fleet.relays) >= config.max_queue:
        return 1.0
    if not config.slo or config.shed_ttft_factor <= 0:
        return None
    predicted_s = predicted_ttft_s(
        fleet.groups(), fleet.in_flight.loads, tokens=tokens, pace=fleet.pace
    )
    limit_s = config.slo.ttft_s * config.shed_ttft_factor
    if predicted_s is None or predicted_s <= limit_s:
        return None
    return min(max(predicted_s - limit_s, 0.1), 60.0)


def _small(fleet: Fleet, scope: Scope) -> bytes:
    """Routes that need no engine. Raises RequestError (404, 405)."""
    path, name = str(scope["path"]).rstrip("/"), fleet.config.served_name
    if path not in ("/health", "/v1/models") and not path.startswith("/v1/models/"):
        raise RequestError(
            404, f"No such path; this fleet has {', '.join(_COMPLETIONS)} and /v1/models."
        )
    if scope["method"] not in ("GET", "HEAD"):
        raise _wrong_method(scope, "GET")
    if path == "/health":
        return b'{"status":"ok"}'
    model = {"id": name, "object": "model", "created": 0, "owned_by": "argosy"}
    if path == "/v1/models":
        models = {"object": "list", "data": [model]}
        return json.dumps(models).encode()
    if path.removeprefix("/v1/models/") == name:
        return json.dumps(model).encode()
    raise RequestError(
        404, f"No such model; this fleet serves '{name}'.", code="model_not_found", param="model"
    )


def _wrong_method(scope: Scope, allowed: str) -> RequestError:
    text = f"{scope['method']} is not allowed on {scope['path']}; use {allowed}."
    return RequestError(405, text, headers={"allow": allowed})


def _header(scope: Scope, name: bytes) -> bytes | None:
    return next((value for key, value in scope["headers"] if key == name), None)


def admin_app(fleet: Fleet) -> App:
    """/health: the event loop turns. /ready: pods are known and no drain began. /metrics."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG001
        if scope["type"] != "http":
            return
        match scope["path"]:
            case "/health":
                await _answer(send, 200, b'{"status":"ok"}')
            case "/ready":
                reason = _unready_because(fleet)
                answer = {"ready": False, "reason": reason} if reason else {"ready": True}
                await _answer(send, 503 if reason else 200, json.dumps(answer).encode())
            case "/metrics":
                fleet.metrics.count_endpoints(fleet.directory.all())
                text = fleet.metrics.exposition()
                kind = {"content-type": "text/plain; version=0.0.4; charset=utf-8"}
                await _answer(send, 200, text, headers=kind)
            case _:
                await _answer(send, 404, b'{"paths":["/health","/ready","/metrics"]}')

    return app


def _unready_because(fleet: Fleet) -> str | None:
    denied_s = fleet.directory.denied_for_s()
    if fleet.draining:
        return "draining"
    if not fleet.directory.listed:
        return "pods were not listed yet"
    if denied_s > fleet.config.limits.denied_s:
        return f"the API server refuses this gateway's account since {denied_s:.0f} s"
    return None


async def _answer(
    send: Send,
    status: int,
    body: bytes,
    request_id: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> None:
    fields = {"content-type": "application/json", "content-length": str(len(body))}
    if request_id:
        fields["x-request-id"] = request_id
    fields |= headers or {}
    pairs = [(k.encode(), v.encode()) for k, v in fields.items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": body})
