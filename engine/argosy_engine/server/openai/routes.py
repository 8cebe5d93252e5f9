"""The OpenAI API on port 8000, as plain ASGI behind Starlette's routes.

A request is parsed, submitted to the engine loop, and answered from its `TokenSink`. The status
line is sent only when the first token exists: a failure before it is a status that the gateway
may retry, a failure after it is an error event and an end without [DONE].
"""

import asyncio
import json
import logging
import re
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from argosy_engine import logs
from argosy_engine.config import EngineConfig
from argosy_engine.core.limits import refuse_shape
from argosy_engine.core.request import NewRequest
from argosy_engine.core.sampling import SamplingDefaults
from argosy_engine.errors import ClientGoneError
from argosy_engine.ports.callers import Verifier
from argosy_engine.ports.tokenizer import Tokenizer
from argosy_engine.runtime.loop import EngineLoop
from argosy_engine.server import gateway_headers
from argosy_engine.server.candidates import candidates
from argosy_engine.server.external import fields, offer
from argosy_engine.server.identity import NamedApp
from argosy_engine.server.openai.answer import Handover, Piece, TextFlow, TokenSink
from argosy_engine.server.openai.bodies import Bodies
from argosy_engine.server.openai.errors import ApiError, draining_error, refused
from argosy_engine.server.openai.fragments import DONE, Fragments, error_event
from argosy_engine.server.openai.parse import Parsed, parse_body, parse_chat, parse_completion
from argosy_engine.server.openai.resume import (
    IDS_HEADER,
    RESUMED_HEADER,
    Asked,
    Sent,
    comment,
    replay,
    take_sent,
)
from argosy_engine.server.openai.text_threads import TextThreads
from argosy_engine.server.proof import ProvenApp
from argosy_engine.server.role import EngineRole

__all__ = ["OpenAiApi"]

log = logging.getLogger(__name__)

_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_NOTHING = fields.Transfer()


@dataclass(frozen=True, slots=True)
class _Job:
    """A request that was read, before it is submitted."""

    parsed: Parsed
    flow: TextFlow
    asked: Asked
    sent: Sent | None = None
    """What the client has from an earlier engine."""
    reason: str | None = None
    """The finish reason if the client has the whole text already."""
    transfer: fields.Transfer = _NOTHING
    """What a router for vLLM said about the prompt's KV."""


class OpenAiApi:
    """Routes and what they share; runs on the event loop."""

    def __init__(
        self,
        config: EngineConfig,
        loop: EngineLoop,
        tokenizer: Tokenizer,
        defaults: SamplingDefaults = SamplingDefaults(),  # noqa: B008 - frozen
        role: EngineRole | None = None,
    ) -> None:
        self._role = role or EngineRole(config.role)
        self._config = config
        self._defaults = defaults
        self._loop = loop
        self._tokenizer = tokenizer
        self._bodies = Bodies(config.max_body_bytes)
        self._text = TextThreads(max_queue=config.max_queue, max_body_bytes=config.max_body_bytes)
        self._created = int(time.time())
        self.active = 0  # requests being answered

    def app(self, verifier: Verifier | None = None) -> ASGIApp:
        """The ASGI application; without a verifier it serves everyone."""
        routes = Starlette(
            routes=[
                Route("/v1/completions", _Endpoint(self._completion), methods=["POST"]),
                Route("/v1/chat/completions", _Endpoint(self._chat), methods=["POST"]),
                Route("/v1/models", _Endpoint(self._models), methods=["GET"]),
                Route("/health", _Endpoint(self._health), methods=["GET"]),
            ],
            exception_handlers={HTTPException: _not_here, Exception: _failed},
        )
        proven = ProvenApp(routes, verifier, "api", self._config.pod_uid, ("/health",))
        return NamedApp(
            proven, self._role, self._config.pod_name, drains=lambda: self._loop.draining
        )

    async def _completion(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._generate(scope, receive, send, parse_completion)

    async def _chat(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._generate(scope, receive, send, parse_chat)

    async def _models(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        model = {
            "id": self._config.served_name,
            "object": "model",
            "created": self._created,
            "owned_by": "argosy",
            "max_model_len": self._loop.scheduler.max_model_len,
        }
        await _answer(send, 200, json.dumps({"object": "list", "data": [model]}).encode())

    async def _health(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        await _answer(send, 200 if self._loop.alive else 503, b"{}")

    async def _generate(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        parse: Callable[..., Parsed],
    ) -> None:
        arrival_s = time.monotonic()
        headers = _headers(scope)
        public_id = _public_id(headers.get("x-request-id"))
        # One task per request: uvicorn's own log lines then have the id, too.
        logs.bind(
            request_id=public_id, attempt=gateway_headers.attempt(headers.get("x-argosy-attempt"))
        )
        self.active += 1
        try:
            # Read first: closing while a client still sends resets the connection, and the gateway
            # would see a broken engine instead of a draining one.
            asked = Asked.of(headers)
            body = await self._bodies.read(receive, resumes=asked.resume)
            if self._loop.draining:
                raise draining_error()
            # Argosy's gateway passes bodies of its clients on, who may not name KV peers.
            external = self._config.external_routers and "x-argosy-attempt" not in headers
            if not external:
                fields.refuse_role(self._role, _NOTHING)
            job = await self._text.run(len(body), partial(self._job, body, parse, asked, external))
            del body  # the answer may take minutes
            fields.refuse_role(self._role, job.transfer)
            request = self._request(job, headers, public_id, arrival_s)
            if job.transfer.offers:
                await self._offer(job, request, public_id, scope, receive, send)
                return
            log.debug(
                "a prompt of %d tokens; prefill: %s", len(request.token_ids), request.candidates
            )
            await _Answer(self, job, request, public_id).run(receive, send)
        except ApiError as error:
            await _answer(
                send, error.status, error.body(), {"x-request-id": public_id, **error.headers}
            )
        except ClientGoneError:
            pass  # the client has left
        finally:
            self.active -= 1

    def _job(self, raw: bytes, parse: Callable[..., Parsed], asked: Asked, external: bool) -> _Job:
        """Runs in a thread: a long prompt takes a second to tokenise."""
        scheduler, body = self._loop.scheduler, parse_body(raw)
        transfer = fields.take_transfer(body) if external else _NOTHING
        if transfer.offers:
            body = fields.one_token(body)
        sent = take_sent(body, scheduler.limits.vocab_size) if asked.resume else None
        parsed = parse(
            body,
            self._tokenizer,
            served_name=self._config.served_name,
            max_model_len=scheduler.max_model_len,
            defaults=self._defaults,
        )
        detokenizer = self._tokenizer.new_detokenizer(
            parsed.token_ids, skip_special_tokens=parsed.skip_special_tokens
        )
        flow = TextFlow(detokenizer, parsed.stops, parsed.sampling.min_tokens)
        if sent is None:
            return _Job(parsed, flow, asked, transfer=transfer)
        reason = replay(
            sent,
            flow,
            parsed.token_ids,
            parsed.sampling,
            eos=self._loop.runner.eos_token_ids,
            max_model_len=scheduler.max_model_len,
        )
        return _Job(parsed, flow, asked, sent, reason, transfer)

    def _request(
        self, job: _Job, headers: dict[str, str], public_id: str, arrival_s: float
    ) -> NewRequest:
        token_ids, sampling = job.parsed.token_ids, job.parsed.sampling
        if job.sent is not None and job.reason is None:
            token_ids, sampling = token_ids + job.sent.token_ids, job.sent.continued(sampling)
        # Clients may repeat an x-request-id; inside the engine and on the wire it must be unique.
        request = NewRequest(
            request_id=f"{public_id[:119]}.{secrets.token_hex(4)}",
            token_ids=token_ids,
            sampling=sampling,
            arrival_s=arrival_s,
            attempt=gateway_headers.attempt(headers.get("x-argosy-attempt")),
            candidates=self._candidates(headers, job.transfer),
            claim=job.transfer.claim,
            priority=gateway_headers.priority(headers.get("x-argosy-priority", "0")),
            deadline_s=arrival_s + self._config.queue_timeout_s,
            tpot_limit_s=gateway_headers.tpot_limit_s(headers.get("x-argosy-tpot-ms")),
            first_token_by_s=gateway_headers.first_token_by_s(
                headers.get("x-argosy-first-token-ms"), arrival_s
            ),
        )
        scheduler = self._loop.scheduler
        refusal = refuse_shape(request, scheduler.max_model_len, scheduler.limits.vocab_size)
        if refusal is not None:
            raise refused(refusal)
        return request

    async def _offer(
        self,
        job: _Job,
        request: NewRequest,
        public_id: str,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        """Compute a router's prompt and answer where its KV is, and with its first token."""
        fragments = Fragments(
            request_id=public_id,
            model=self._config.served_name,
            chat=job.parsed.chat,
            include_usage=False,
        )
        body = await offer.answer(
            self._config, self._loop, request, job.flow, fragments, scope, receive
        )
        await _answer(send, 200, body, {"x-request-id": public_id})

    def _candidates(self, headers: dict[str, str], transfer: fields.Transfer) -> tuple[str, ...]:
        """Addresses, each with "/" and its pod's uid where the gateway names uids, too."""
        if transfer.candidate:
            return (transfer.candidate,)
        if self._role.now != "decode":
            return ()
        value = headers.get("x-argosy-prefill", "")
        if value:
            return candidates(value, headers.get("x-argosy-prefill-uids"))
        named = headers.get(fields.HEADER, "") if self._config.external_routers else ""
        return fields.prefillers(named, self._config.kv_port)

    def close(self) -> None:
        """End the threads; called when no request is left, or the drain's time is over."""
        self._text.close()

    def submit(self, request: NewRequest, sink: TokenSink) -> None:
        refusal = self._loop.submit(request, sink)
        if refusal is not None:
            raise refused(refusal)

    @property
    def loop(self) -> EngineLoop:
        return self._loop

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    @property
    def served_name(self) -> str:
        return self._config.served_name


class _Answer:
    """One generation from submit to last byte."""

    def __init__(self, api: OpenAiApi, job: _Job, request: NewRequest, public_id: str) -> None:
        self._api = api
        self._job = job
        self._parsed = job.parsed
        self._request = request
        self._public_id = public_id
        self._sink = TokenSink()
        self._handover = Handover(self._sink)
        self._ended = False
        self._first_observed = False
        self._fragments = Fragments(
            request_id=public_id,
            model=api.served_name,
            chat=job.parsed.chat,
            include_usage=job.parsed.include_usage,
            created=None if job.sent is None else job.sent.created,
        )
        self._flow = job.flow

    async def run(self, receive: Receive, send: Send) -> None:
        if self._job.reason is not None:  # the earlier engine was lost after its last text
            self._ended = True
            await send(self._start(b"text/event-stream; charset=utf-8"))
            await send(_body(self._closing(self._job.reason), more=False))
            return
        self._api.submit(self._request, self._sink)
        watcher = asyncio.ensure_future(self._watch(receive))
        try:
            await (self._stream(send) if self._parsed.stream else self._whole(send))
        finally:
            watcher.cancel()
            if not self._ended:
                self._api.loop.abort(self._request.request_id)

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._sink.disconnect()

    async def _stream(self, send: Send) -> None:
        started = False
        async for piece in self._flow.pieces(self._sink):
            chunks: list[str] = []
            if piece.error is not None and not started:
                self._ended = True
                piece.error.headers |= self._handover.headers()
                raise piece.error
            if not started:
                started = True
                await send(self._start(b"text/event-stream; charset=utf-8"))
                if self._job.sent is None:
                    chunks.append(self._fragments.opening())
            chunks.extend(self._texts(piece))
            body = "".join(chunks).encode()
            if piece.error is not None:
                self._ended = True
                body += error_event(piece.error)
            elif piece.reason is not None:
                self._end(stopped_by_text=piece.stopped_by_text)
                body += self._closing(piece.reason)
            if body:
                await send(_body(self._handover.before(body), more=not self._ended))
            self._observe_first_token(time.monotonic())

    async def _whole(self, send: Send) -> None:
        texts: list[str] = []
        async for piece in self._flow.pieces(self._sink):
            texts.extend(piece.texts)
            if piece.error is not None:
                self._ended = True
                piece.error.headers |= self._handover.headers()
                raise piece.error
            self._observe_first_token(self._sink.first_token_s)
            if piece.reason is not None:
                self._end(stopped_by_text=piece.stopped_by_text)
                body = self._fragments.whole("".join(texts), piece.reason, self._usage())
                await send(self._start(b"application/json", length=len(body)))
                await send(_body(body, more=False))

    def _observe_first_token(self, at_s: float | None) -> None:
        """Once per answer: when it was written, or could have been in an unstreamed answer."""
        if at_s is None or self._first_observed:
            return
        self._first_observed = True
        self._api.loop.metrics.observe_first_token(at_s - self._request.arrival_s)

    def _end(self, *, stopped_by_text: bool) -> None:
        self._ended = True
        if stopped_by_text:
            self._api.loop.stop_here(self._request.request_id)

    def _texts(self, piece: Piece) -> Iterable[str]:
        if not self._job.asked.token_ids:
            return map(self._fragments.content, piece.texts)
        pairs = zip(piece.texts, piece.covered, strict=True)
        return (comment(ids) + self._fragments.content(text) for text, ids in pairs)

    def _closing(self, reason: str) -> bytes:
        text = self._fragments.closing(reason)
        if self._job.asked.token_ids:
            text = comment(self._flow.uncovered, closing=True) + text
        if self._job.sent is not None and self._job.sent.closed:
            text = ""
        if self._parsed.include_usage:
            text += self._fragments.usage(self._usage())
        return text.encode() + DONE

    def _usage(self) -> dict[str, object]:
        prompt, output = len(self._parsed.token_ids), self._flow.n_tokens
        return {
            "prompt_tokens": prompt,
            "completion_tokens": output,
            "total_tokens": prompt + output,
            "prompt_tokens_details": {"cached_tokens": min(self._flow.cached_tokens, prompt)},
        }

    def _ttft(self) -> dict[str, str]:
        """Milliseconds from accept to the first token, which an unstreamed answer does not show."""
        first_s = self._sink.first_token_s
        if first_s is None:
            return {}
        return {"x-argosy-ttft-ms": f"{1000 * (first_s - self._request.arrival_s):.1f}"}

    def _start(self, content_type: bytes, *, length: int | None = None) -> Message:
        headers = [(b"content-type", content_type), (b"cache-control", b"no-cache")]
        if length is not None:
            headers.append((b"content-length", str(length).encode()))
        with_ids = self._job.asked.token_ids and self._parsed.stream
        tells = with_ids and self._job.asked.handover
        named = {"x-request-id": self._public_id, **self._handover.head(tells=tells)}
        if with_ids:
            named[IDS_HEADER] = "1"
        if self._job.sent is not None:
            named[RESUMED_HEADER] = str(len(self._job.sent.token_ids))
        if length is not None:
            named |= self._ttft()
        headers.extend((name.encode(), value.encode()) for name, value in named.items())
        return {"type": "http.response.start", "status": 200, "headers": headers}


class _Endpoint:
    """Starlette takes a class instance as raw ASGI, a method as a request handler."""

    def __init__(self, serve: Callable[[Scope, Receive, Send], Any]) -> None:
        self._serve = serve

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._serve(scope, receive, send)


def _not_here(request: Request, error: Exception) -> Response:
    """A path or a method that this API does not have, in OpenAI's form."""
    assert isinstance(error, HTTPException)
    text = f"{request.method} {request.url.path}: {error.detail}; see /v1/models, /v1/completions"
    headers = dict(error.headers or {})
    return Response(
        ApiError(error.status_code, text).body(), error.status_code, headers, "application/json"
    )


def _failed(_request: Request, error: Exception) -> Response:
    """An error of the engine itself; Starlette raises it again, so that it is logged."""
    text = f"the engine failed: {type(error).__name__}"
    body = ApiError(500, text, "server_error", code="internal_error").body()
    return Response(body, 500, media_type="application/json")


def _body(body: bytes, *, more: bool) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": more}


async def _answer(
    send: Send, status: int, body: bytes, headers: dict[str, str] | None = None
) -> None:
    fields = {"content-type": "application/json", "content-length": str(len(body))}
    fields.update(headers or {})
    raw = [(name.encode(), value.encode()) for name, value in fields.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send(_body(body, more=False))


def _headers(scope: Scope) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


def _public_id(value: str | None) -> str:
    if value is not None and _ID.fullmatch(value):
        return value
    return secrets.token_hex(12)
