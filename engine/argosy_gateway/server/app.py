"""OpenAI's API of one fleet: reads and checks requests, sheds them, starts a Relay for each.

Plain ASGI without a router: there are few routes, and each answers in OpenAI's error form. A router
would answer 404 and 405 in its own. `serve` runs this app on the API port.
"""

import asyncio
import contextlib
import json
import logging
import re
import time
from collections.abc import Coroutine, Mapping
from functools import partial
from typing import Any, TypeVar

from argosy import logs
from argosy_gateway.config import DEFAULT_CLASS, SloClass
from argosy_gateway.errors import BrokenError, ClientGoneError, RequestError, overloaded
from argosy_gateway.relay.answer import Send
from argosy_gateway.relay.bodies import Body
from argosy_gateway.relay.gateway import Gateway
from argosy_gateway.relay.passage import OTHER_PATH, OtherRequest, Passage
from argosy_gateway.relay.relay import Relay
from argosy_gateway.routing.estimates import predict_ttft_s
from argosy_gateway.routing.strategies import AFFINE
from argosy_gateway.server.asgi import (
    App,
    Client,
    Receive,
    Scope,
    add_headers,
    cors_headers,
    header,
    is_preflight,
    respond,
)
from argosy_gateway.server.questions import (
    METHODS,
    MODELS,
    Question,
    ask_any,
    max_model_len,
)
from argosy_gateway.wire.openai import (
    CompletionRequest,
    body_of,
    check_question,
    list_names,
    read_completion,
    read_model,
    request_id_of,
)

__all__ = ["CLIENT", "RECEIVED_AT", "api_app"]

log = logging.getLogger(__name__)

RECEIVED_AT = "argosy.received_at"
"""Key in ASGI's `state`: event loop time of the request's first byte, written by `guard`."""

CLIENT = "argosy.client"
"""Key in ASGI's `state`: the request's `Client`, written by `guard`."""

_SHORT_BYTES = 64 << 10
"""Longer bodies are read in a thread."""
_FLOW = re.compile(r"[A-Za-z0-9._-]{1,128}")
_BOUNDARY = re.compile(rb'multipart/form-data;.*\bboundary="?([^";, ]{1,70})', re.IGNORECASE)
_PASSED_ON = (b"accept", b"accept-encoding", b"content-type")
"""Headers of a client that reach an engine: none that proves who the client is."""
_LOADING = ("/v1/load_lora_adapter", "/v1/unload_lora_adapter")
_T = TypeVar("_T")
_COMPLETIONS = ("/v1/chat/completions", "/v1/completions")


def api_app(gateway: Gateway) -> App:
    """The OpenAI API of one fleet."""
    created = int(time.time())

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request_id = request_id_of(header(scope, b"x-request-id"))
        # The task is this request's, so that uvicorn's own lines about it have the id, too.
        logs.bind(request_id=request_id, attempt=None)
        if scope["path"].endswith("/"):  # it means the same path
            scope = {**scope, "path": scope["path"].rstrip("/")}
        if allowed := cors_headers(gateway.config.cors_origins, scope):
            send = add_headers(send, allowed)
        try:
            if allowed and is_preflight(scope):
                await respond(send, 200, b"", request_id)
            elif scope["path"] in _COMPLETIONS:
                with gateway.bodies.open() as body:
                    request = await _read(gateway, scope, receive, body, request_id)
                    await _complete(gateway, request, send, scope["state"][CLIENT])
            elif scope["path"] in METHODS:
                await _answer_question(gateway, scope, receive, send, request_id)
            elif scope["path"] == MODELS or scope["path"].startswith(f"{MODELS}/"):
                models = await _list_models(gateway, scope, request_id, created)
                await respond(send, 200, models, request_id)
            elif _is_passed_on(gateway, scope["path"]):
                await _pass_on(gateway, scope, receive, send, request_id)
            else:
                await respond(send, 200, _answer_alone(scope), request_id)
        except RequestError as error:
            headers = dict(error.headers)
            if gateway.draining:
                headers["connection"] = "close"
            await respond(send, error.status, body_of(error), request_id, headers)
        except ClientGoneError:
            return
        except BrokenError as error:  # the connection closes, which shows that more was to come
            log.warning("an answer broke off after its head was sent: %s", error)
        except Exception:
            # Before its relay began: a relay answers for its own failures.
            log.exception("a request failed inside the gateway")
            failure = RequestError(500, "The gateway failed.", type="server_error")
            await respond(send, failure.status, body_of(failure), request_id)

    return app


async def _read(
    gateway: Gateway, scope: Scope, receive: Receive, body: Body, request_id: str
) -> CompletionRequest:
    """The request, checked. Raises RequestError and ClientGoneError."""
    received_at = scope["state"][RECEIVED_AT]
    announced = header(scope, b"content-length")
    try:
        if scope["method"] != "POST":
            raise _wrong_method(scope, "POST")
        slo_class, flow = _read_class(scope, gateway.classes), _read_flow(scope)
        sent_all = scope["state"][CLIENT].sent_all
        data = await body.read(receive, int(announced or 0), sent_all=sent_all)
        read = partial(
            read_completion,
            scope["path"],
            data,
            served_names=await _names(gateway),
            adapters=gateway.config.adapters,
            prefixes=gateway.config.strategy in AFFINE,
        )
        # A million token ids take half a second to read. Streams go on meanwhile.
        request = read() if len(data) <= _SHORT_BYTES else await asyncio.to_thread(read)
    except (RequestError, ClientGoneError) as error:
        if isinstance(error, RequestError) and error.status == 429:
            gateway.metrics.count_shed(
                role_mode=gateway.role_mode(),
                received_at=received_at,
                now=gateway.clock(),
                slo_class=slo_class.name,
            )
        else:
            gateway.metrics.count_invalid()
        raise
    tokens = gateway.tokens_per_char.estimate(request.prompt_chars)
    return request._replace(
        request_id=request_id,
        received_at=received_at,
        prompt_tokens=tokens,
        slo_class=slo_class.name,
        flow=flow,
    )


def _read_class(scope: Scope, classes: Mapping[str, SloClass]) -> SloClass:
    """The class that `x-argosy-class` names. Raises RequestError (400) if there is none."""
    given = header(scope, b"x-argosy-class")
    name = given.decode("latin-1") if given is not None else DEFAULT_CLASS
    if name not in classes:
        text = f"No such class in x-argosy-class; this fleet has {', '.join(classes)}."
        raise RequestError(400, text, param="x-argosy-class", code="class_not_found")
    return classes[name]


def _read_flow(scope: Scope) -> str:
    """The flow that `x-argosy-flow` names, "" without one. Raises RequestError (400)."""
    given = header(scope, b"x-argosy-flow")
    if given is None:
        return ""
    flow = given.decode("latin-1")
    if not _FLOW.fullmatch(flow):
        text = "x-argosy-flow must be 1 to 128 letters, digits, dots, underscores or hyphens."
        raise RequestError(400, text, param="x-argosy-flow")
    return flow


async def _answer_question(
    gateway: Gateway, scope: Scope, receive: Receive, send: Send, request_id: str
) -> None:
    """What an engine answers without a step; it is not counted. Raises RequestError and
    ClientGoneError."""
    path = scope["path"]
    if scope["method"] != METHODS[path]:
        raise _wrong_method(scope, METHODS[path])
    with gateway.bodies.open() as body:
        data, model = b"", None
        if METHODS[path] == "POST":
            announced = int(header(scope, b"content-length") or 0)
            data = await body.read(receive, announced, sent_all=scope["state"][CLIENT].sent_all)
            await _names(gateway)
            check = partial(check_question, data, served_names=gateway.names)
            model = check() if len(data) <= _SHORT_BYTES else await asyncio.to_thread(check)
        adapter = model if model in gateway.config.adapters else ""
        question = Question(data, model, adapter or "")
        reply = await _await_while_client_stays(
            ask_any(gateway, path, question, request_id), scope["state"][CLIENT]
        )
    await respond(send, reply.status, reply.body, request_id, reply.headers)


def _is_passed_on(gateway: Gateway, path: str) -> bool:
    return (
        gateway.config.pass_other_paths
        and OTHER_PATH.fullmatch(path) is not None
        and path not in _LOADING
    )


async def _pass_on(
    gateway: Gateway, scope: Scope, receive: Receive, send: Send, request_id: str
) -> None:
    """What an engine answers to a path that the gateway does not know. Raises RequestError,
    ClientGoneError, and BrokenError if the answer had begun."""
    announced, kind = header(scope, b"content-length"), header(scope, b"content-type") or b""
    with gateway.bodies.open() as body:
        sent_all = scope["state"][CLIENT].sent_all
        data = await body.read(receive, int(announced or 0), sent_all=sent_all)
        await _names(gateway)
        found = _BOUNDARY.match(kind)
        boundary = found[1] if found else b""
        read = partial(read_model, data, kind.lower(), boundary, served_names=gateway.names)
        model = read() if len(data) <= _SHORT_BYTES else await asyncio.to_thread(read)
        query = scope.get("query_string", b"").decode("latin-1")
        request = OtherRequest(
            method=scope["method"],
            target=scope["path"] + (f"?{query}" if query else ""),
            headers=tuple(
                (name.decode("latin-1"), value.decode("latin-1"))
                for name, value in scope["headers"]
                if name in _PASSED_ON
            ),
            body=data,
            boundary=boundary,
            model=model,
            adapter=model if model is not None and model in gateway.config.adapters else "",
            request_id=request_id,
        )
        passage = Passage(gateway, request, send)
        await _await_while_client_stays(passage.run(), scope["state"][CLIENT])


async def _await_while_client_stays(asking: Coroutine[Any, Any, _T], client: Client) -> _T:
    """What is asked, until the client leaves: that ends the engine's call, too. ClientGoneError."""
    task = asyncio.ensure_future(asking)
    gone = False

    def leave() -> None:
        nonlocal gone
        gone = True
        task.cancel()

    client.on_gone(leave)
    try:
        return await task
    except asyncio.CancelledError:
        if gone:
            raise ClientGoneError from None
        raise
    finally:
        client.on_gone(None)


async def _complete(
    gateway: Gateway, request: CompletionRequest, send: Send, client: Client
) -> None:
    """Admit the request and relay it. Raises RequestError (429) if the fleet is overloaded."""
    retry_after_s = _overload_s(gateway, request)
    if retry_after_s is not None:
        gateway.mark_active()
        gateway.metrics.count_shed(
            role_mode=gateway.role_mode(),
            received_at=request.received_at,
            now=gateway.clock(),
            slo_class=request.slo_class,
        )
        raise overloaded(retry_after_s)
    relay = Relay(gateway, request, send, client)
    client.on_gone(relay.stop)
    try:
        await relay.run()
    finally:
        client.on_gone(None)  # else an idle connection keeps the request in memory


def _overload_s(gateway: Gateway, request: CompletionRequest) -> float | None:
    """Seconds after which the client should try again; None admits the request."""
    config, tokens, slo = (
        gateway.config,
        request.prompt_tokens,
        gateway.class_of(request.slo_class).slo,
    )
    if len(gateway.relays) >= config.max_queue:
        return 1.0
    if gateway.queue is not None and slo is not None:
        retry_after_s = gateway.queue.refusal_s(
            tokens, limit_s=slo.ttft_s, timeout_s=config.queue_timeout_s
        )
        if retry_after_s is not None:
            return min(max(retry_after_s, 1.0), 60.0)
    if slo is None or config.shed_ttft_factor <= 0:
        return None
    predicted_s = predict_ttft_s(
        gateway.groups(), gateway.in_flight.loads, tokens=tokens, pace=gateway.pace
    )
    limit_s = slo.ttft_s * config.shed_ttft_factor
    if predicted_s is None or predicted_s <= limit_s:
        return None
    return min(max(predicted_s - limit_s, 0.1), 60.0)


def _answer_alone(scope: Scope) -> bytes:
    """Answers that need no engine. Raises RequestError (404, 405)."""
    if scope["path"] not in ("/health", "/ping"):
        text = f"No such path; this fleet has {', '.join((*_COMPLETIONS, *METHODS))} and {MODELS}."
        if scope["path"] in _LOADING:
            text += " Its adapters are those of model.adapters in its spec."
        elif scope["path"].startswith("/v1/"):
            text += " Others below /v1 reach engines of type vllm or sglang in mode colocated."
        raise RequestError(404, text)
    if scope["method"] not in ("GET", "HEAD"):
        raise _wrong_method(scope, "GET")
    return b'{"status":"ok"}'


async def _list_models(gateway: Gateway, scope: Scope, request_id: str, created: int) -> bytes:
    """All models, or the one that the path names. Raises RequestError (404, 405, 503)."""
    if scope["method"] not in ("GET", "HEAD"):
        raise _wrong_method(scope, "GET")
    first, *_ = await _names(gateway)
    names, asked = gateway.names, str(scope["path"]).removeprefix(MODELS).strip("/")
    if asked and asked not in names:
        text = f"No such model; this fleet serves {list_names(names)}."
        raise RequestError(404, text, code="model_not_found", param="model")
    context = await max_model_len(gateway, request_id)
    cards = [
        {
            "id": name,
            "object": "model",
            "created": created,
            "owned_by": "argosy",
            "max_model_len": context,
            **({"parent": first} if name in gateway.config.adapters else {}),
        }
        for name in names
        if asked in ("", name)
    ]
    return json.dumps(cards[0] if asked else {"object": "list", "data": cards}).encode()


async def _names(gateway: Gateway) -> tuple[str, ...]:
    """Return the model's names. A process that has just begun waits for them, because clients reach
    a container that restarts before its pod counts as unready. Raises RequestError (503) if they
    do not come."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(gateway.config.limits.settings_s):
            await gateway.named.wait()
    if not gateway.config.served_names:
        text = "This gateway has no settings yet; try again."
        raise RequestError(503, text, type="server_error", headers={"retry-after": "1"})
    return gateway.config.served_names


def _wrong_method(scope: Scope, allowed: str) -> RequestError:
    text = f"{scope['method']} is not allowed on {scope['path']}; use {allowed}."
    return RequestError(405, text, headers={"allow": allowed})
