"""The OpenAI API on port 8000, as plain ASGI behind Starlette's routes.

A request is parsed, submitted to the engine loop, and answered by `reply.Reply`.
"""

import json
import logging
import re
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from argosy import logs
from argosy_engine.config import EngineConfig
from argosy_engine.core.limits import refuse_shape
from argosy_engine.core.request import NewRequest
from argosy_engine.core.sampling import SamplingDefaults
from argosy_engine.core.tokenizer import Tokenizer
from argosy_engine.errors import ClientGoneError
from argosy_engine.runtime.loop import EngineLoop
from argosy_engine.server import gateway_headers
from argosy_engine.server.gateway_headers import NamedApp, candidates, plain_send
from argosy_engine.server.openai.answer import Fragments, StopScanner, TextFlow
from argosy_engine.server.openai.choice import Choice
from argosy_engine.server.openai.errors import ApiError, draining_error, to_api_error
from argosy_engine.server.openai.parameters import bad
from argosy_engine.server.openai.reply import Reply, send_whole
from argosy_engine.server.openai.request import (
    Parsed,
    detokenize,
    parse_body,
    parse_chat,
    parse_completion,
    tokenize,
)
from argosy_engine.server.openai.resume import Asked, Sent, replay, take_sent
from argosy_engine.server.openai.structure import Compiler
from argosy_engine.server.openai.text_threads import Bodies, TextThreads, while_connected
from argosy_engine.server.proof import ProvenApp
from argosy_engine.server.role import EngineRole
from argosy_engine.text.grammar_process import GrammarProcess
from argosy_engine.transfer.callers import Verifier

_NO_DECODE = "this engine generates text: serve such a model with another engine"

BEYOND: Mapping[str, str] = {
    "/v1/embeddings": f"there are no embeddings: {_NO_DECODE}",
    "/v2/embed": f"there are no embeddings: {_NO_DECODE}",
    "/pooling": f"nothing is pooled: {_NO_DECODE}",
    "/classify": f"nothing is classified: {_NO_DECODE}",
    "/score": f"there are no scores: {_NO_DECODE}",
    "/v1/score": f"there are no scores: {_NO_DECODE}",
    "/rerank": f"nothing is ranked: {_NO_DECODE}",
    "/v1/rerank": f"nothing is ranked: {_NO_DECODE}",
    "/v2/rerank": f"nothing is ranked: {_NO_DECODE}",
    "/v1/moderations": f"nothing is classified: {_NO_DECODE}",
    "/v1/responses": "no state is kept between requests: send all messages to /v1/chat/completions",
    "/v1/conversations": "no state is kept between requests: use /v1/chat/completions",
    "/v1/assistants": "no state is kept between requests: use /v1/chat/completions",
    "/v1/threads": "no state is kept between requests: use /v1/chat/completions",
    "/v1/messages": "this is OpenAI's API: use /v1/chat/completions",
    "/v1/images/generations": "only text is made: use /v1/chat/completions",
    "/v1/images/edits": "only text is made: use /v1/chat/completions",
    "/v1/audio/speech": "only text is made: use /v1/chat/completions",
    "/v1/audio/transcriptions": "only text is read: use /v1/chat/completions",
    "/v1/audio/translations": "only text is read: use /v1/chat/completions",
    "/v1/realtime": "only text is read and made: stream /v1/chat/completions",
    "/v1/files": "nothing is stored: send prompts with their requests",
    "/v1/batches": "nothing is stored: send each request by itself",
    "/v1/fine_tuning/jobs": "nothing is trained here: serve the trained model as a fleet",
    "/v1/load_lora_adapter": "there are no adapters: merge it and serve the model as a fleet",
    "/v1/unload_lora_adapter": "there are no adapters: merge it and serve the model as a fleet",
}
"""What the 404 says, by path; any method."""


log = logging.getLogger(__name__)

_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")


@dataclass(frozen=True, slots=True)
class _Job:
    """A request that was read, before it is submitted."""

    parsed: Parsed
    flows: list[TextFlow]
    """Of each choice; those of a prompt stand beside each other."""

    asked: Asked
    model: str
    """The name that the answer carries."""
    sent: Sent | None = None
    """What the client has from an earlier engine."""
    reason: str | None = None
    """The finish reason if the client has the whole text already."""


class OpenAiApi:
    """Routes and what they share; runs on the event loop."""

    def __init__(
        self,
        config: EngineConfig,
        loop: EngineLoop,
        tokenizer: Tokenizer,
        defaults: SamplingDefaults = SamplingDefaults(),  # noqa: B008 - frozen
        role: EngineRole | None = None,
        grammar_process: GrammarProcess | None = None,
    ) -> None:
        self._role = role or EngineRole(config.role)
        self._config = config
        self._defaults = defaults
        self._loop = loop
        self._tokenizer = tokenizer
        self._bodies = Bodies(config.max_body_bytes)
        self._text = TextThreads(max_queue=config.max_queue, max_body_bytes=config.max_body_bytes)
        self._compiler = Compiler(loop.runner.grammars, grammar_process)
        self._created = int(time.time())
        self.active = 0  # requests being answered

    def app(self, verifier: Verifier | None = None) -> ASGIApp:
        """The ASGI application; without a verifier it serves everyone."""
        routes = Starlette(
            routes=[
                Route("/v1/completions", _Endpoint(self._completion), methods=["POST"]),
                Route("/v1/chat/completions", _Endpoint(self._chat), methods=["POST"]),
                Route("/v1/models", _Endpoint(self._models), methods=["GET"]),
                Route("/v1/models/{name:path}", _Endpoint(self._model), methods=["GET"]),
                Route("/argosy/keep", _Endpoint(self._keep), methods=["POST"]),
                Route("/argosy/let-go", _Endpoint(self._let_go), methods=["POST"]),
                Route("/health", _Endpoint(self._health), methods=["GET"]),
                Route("/ping", _Endpoint(self._health), methods=["GET"]),
                Route("/version", _Endpoint(self._version), methods=["GET"]),
                Route("/tokenize", _Endpoint(self._tokenize), methods=["POST"]),
                Route("/detokenize", _Endpoint(self._detokenize), methods=["POST"]),
                Route("/tokenizer_info", _Endpoint(self._tokenizer_info), methods=["GET"]),
            ],
            exception_handlers={HTTPException: _not_here, Exception: _answer_failure},
        )
        proven = ProvenApp(routes, verifier, "api", self._config.pod_uid, ("/health", "/ping"))
        return NamedApp(
            proven, self._role, self._config.pod_name, drains=lambda: self._loop.draining
        )

    async def _completion(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._generate(scope, receive, send, parse_completion)

    async def _chat(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._generate(scope, receive, send, parse_chat)

    async def _models(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        models = [self._card(name) for name in self._names]
        await send_whole(send, 200, json.dumps({"object": "list", "data": models}).encode())

    async def _model(self, scope: Scope, _receive: Receive, send: Send) -> None:
        name = scope["path_params"]["name"].rstrip("/")
        if name in self._names:
            await send_whole(send, 200, json.dumps(self._card(name)).encode())
            return
        served = ", ".join(map(repr, self._names))
        text = f"there is no model {name!r:.80} here: this engine serves {served}"
        error = ApiError(404, text, param="model", code="model_not_found")
        await send_whole(send, error.status, error.body())

    @property
    def _names(self) -> tuple[str, ...]:
        return (self._config.served_name, *self._config.other_names)

    def _card(self, name: str) -> dict[str, object]:
        return {
            "id": name,
            "object": "model",
            "created": self._created,
            "owned_by": "argosy",
            "max_model_len": self._loop.scheduler.max_model_len,
        }

    async def _health(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        await send_whole(send, 200 if self._loop.alive else 503, b"{}")

    async def _keep(self, scope: Scope, _receive: Receive, send: Send) -> None:
        """The gateway is about to move the stream with this x-request-id to another engine."""
        if self._role.now == "decode":
            self._loop.keep(_headers(scope).get("x-request-id", ""))
            await send_whole(send, 200, b"{}")
        else:
            error = ApiError(409, "only decode engines keep the KV of streams that move")
            await send_whole(send, error.status, error.body())

    async def _let_go(self, scope: Scope, _receive: Receive, send: Send) -> None:
        """The stream with this x-request-id goes on elsewhere, or has ended."""
        self._loop.let_go(_headers(scope).get("x-request-id", ""))
        await send_whole(send, 200, b"{}")

    async def _version(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        await send_whole(send, 200, json.dumps({"version": version("argosy")}).encode())

    async def _tokenize(self, _scope: Scope, receive: Receive, send: Send) -> None:
        await self._text_of(receive, send, tokenize)

    async def _detokenize(self, _scope: Scope, receive: Receive, send: Send) -> None:
        await self._text_of(receive, send, detokenize)

    async def _tokenizer_info(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        await send_whole(send, 200, json.dumps(self._tokenizer.info).encode())

    async def _text_of(self, receive: Receive, send: Send, answer: Callable[..., bytes]) -> None:
        """Answers that need no step; in the threads that read prompts."""

        def work(raw: bytes) -> bytes:
            body = parse_body(raw)
            return answer(
                body,
                self._tokenizer,
                served_name=self._name(body),
                max_model_len=self._loop.scheduler.max_model_len,
            )

        try:
            body = await self._bodies.read(receive)
            found = self._text.run(len(body), partial(work, body))
            await send_whole(send, 200, await while_connected(found, receive))
        except ApiError as error:
            await send_whole(send, error.status, error.body(), error.headers)
        except ClientGoneError:
            pass  # the client has left

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
            self._refuse_if_it_only_prefills()
            job = await self._text.run(len(body), partial(self._job, body, parse, asked))
            del body  # the answer may take minutes
            async with self._compiler.compiled(job.parsed.structure, receive):
                requests = self._requests(job, headers, public_id, arrival_s)
                await self._answer(job, requests, public_id, scope, receive, send)
        except ApiError as error:
            await send_whole(
                send, error.status, error.body(), {"x-request-id": public_id, **error.headers}
            )
        except ClientGoneError:
            pass  # the client has left
        finally:
            self.active -= 1

    async def _answer(
        self,
        job: _Job,
        requests: list[NewRequest],
        public_id: str,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        self._refuse_if_it_only_prefills()  # its role may have changed since
        for request in requests[:: job.parsed.form.best_of]:
            log.debug(
                "a prompt of %d tokens; prefill: %s", len(request.token_ids), request.candidates
            )
        reply = self._reply(job, requests, public_id)
        if job.reason is not None:
            await reply.run_ended(job.reason, send)
        else:
            await reply.run(receive, send, plain_send(scope, send))

    def _job(self, raw: bytes, parse: Callable[..., Parsed], asked: Asked) -> _Job:
        """Runs in a thread: a long prompt takes a second to tokenise."""
        scheduler, body = self._loop.scheduler, parse_body(raw)
        sent = take_sent(body, scheduler.limits.vocab_size) if asked.resume else None
        parsed = parse(
            body,
            self._tokenizer,
            served_name=(name := self._name(body)),
            max_model_len=scheduler.max_model_len,
            defaults=self._defaults,
            tool_parser=self._config.tool_call_parser,
            reasons=self._config.reasoning_parser == "think",
        )
        self._refuse_what_it_cannot(parsed, sent)
        flows = [
            self._flow(parsed, prompt.token_ids)
            for prompt in parsed.prompts
            for _ in range(parsed.form.best_of)
        ]
        if sent is None:
            return _Job(parsed, flows, asked, name)
        reason = replay(
            sent,
            flows[0],
            parsed.token_ids,
            parsed.sampling,
            eos=self._loop.runner.eos_token_ids,
            max_model_len=scheduler.max_model_len,
        )
        return _Job(parsed, flows, asked, name, sent, reason)

    def _name(self, body: Mapping[str, Any]) -> str:
        """The name of the model that an answer carries: the one that is asked for, if it is one of
        its names."""
        asked = body.get("model")
        return asked if asked in self._config.other_names else self._config.served_name

    def _flow(self, parsed: Parsed, prompt: list[int]) -> TextFlow:
        detokenizer = self._tokenizer.new_detokenizer(
            prompt, skip_special_tokens=parsed.skip_special_tokens
        )
        scanner = StopScanner(parsed.stops, include=parsed.include_stops)
        return TextFlow(detokenizer, scanner, parsed.sampling.min_tokens, parsed.prompt_name)

    def _refuse_if_it_only_prefills(self) -> None:
        """Raise ApiError in a prefill engine, which answers no client."""
        if self._role.now != "prefill":
            return
        if self._role.mutable:  # the caller does not know the role of now yet
            raise draining_error("this engine only prefills now: ask another one")
        message = "this engine only prefills: send requests to a decode engine"
        raise ApiError(400, message, code="prefill_only")

    def _refuse_what_it_cannot(self, parsed: Parsed, sent: Sent | None) -> None:
        sampling = parsed.sampling
        told = sampling.logprobs is not None or sampling.prompt_logprobs is not None
        if told and not self._loop.runner.knows_likely:
            name = "best_of" if parsed.form.best_of > parsed.form.n else "logprobs"
            if parsed.form.prompt_logprobs is not None:
                name = "prompt_logprobs"
            raise bad(name, "this engine only simulates and has no probabilities: leave it out")
        if sampling.grammar and self._loop.runner.grammars is None:
            raise bad(
                parsed.structure.field,
                "this engine only simulates and its answers match nothing: leave out what they "
                "must match",
            )
        if sent is not None and not parsed.resumable:
            raise bad("argosy_resume", "only streams of one choice of text go on elsewhere")

    def _requests(
        self, job: _Job, headers: dict[str, str], public_id: str, arrival_s: float
    ) -> list[NewRequest]:
        """Of each choice. Their draws differ, and only the first one tells of the prompt."""
        made: list[NewRequest] = []
        for prompt in job.parsed.prompts:
            first = self._request(job, prompt.token_ids, headers, public_id, arrival_s)
            made.append(first)
            for number in range(1, job.parsed.form.best_of):
                seed = (first.sampling.seed + number) & 0x7FFF_FFFF_FFFF_FFFF
                sampling = replace(first.sampling, seed=seed, prompt_logprobs=None)
                made.append(
                    replace(first, request_id=_unique(public_id), sampling=sampling, accepted=True)
                )
        return made

    def _reply(self, job: _Job, requests: list[NewRequest], public_id: str) -> Reply:
        parsed, per_prompt = job.parsed, job.parsed.form.best_of
        created = int(time.time()) if job.sent is None else job.sent.created
        choices = [
            Choice(
                parsed,
                parsed.prompts[index // per_prompt],
                request,
                flow,
                Fragments(
                    request_id=public_id,
                    model=job.model,
                    chat=parsed.chat,
                    include_usage=parsed.include_usage,
                    created=created,
                    index=index,
                ),
                self._tokenizer,
            )
            for index, (request, flow) in enumerate(zip(requests, job.flows, strict=True))
        ]
        for at in range(0, len(choices), per_prompt):
            choices[at].followers = choices[at + 1 : at + per_prompt]
        return Reply(self._loop, parsed, choices, public_id, job.asked, job.sent)

    def _request(
        self,
        job: _Job,
        token_ids: list[int],
        headers: dict[str, str],
        public_id: str,
        arrival_s: float,
    ) -> NewRequest:
        sampling = job.parsed.sampling
        if job.sent is not None and job.reason is None:
            token_ids, sampling = token_ids + job.sent.token_ids, job.sent.continued(sampling)
        salt, source = job.parsed.cache_salt, "" if job.sent is None else self._kept_at(headers)
        # A peer would not tell of the prompt, and knows no salt.
        here = sampling.prompt_logprobs is not None or bool(salt)
        request = NewRequest(
            request_id=_unique(public_id),
            token_ids=token_ids,
            sampling=sampling,
            arrival_s=arrival_s,
            attempt=gateway_headers.attempt(headers.get("x-argosy-attempt")),
            cache_salt=salt,
            candidates=() if here else self._candidates(headers, source),
            first_has_kv=bool(source) and not here,
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
            raise to_api_error(refusal, job.parsed.prompt_name)
        return request

    def _candidates(self, headers: dict[str, str], source: str) -> tuple[str, ...]:
        """Addresses, each with "/" and its pod's uid where the gateway names uids, too; first
        `source`, the decode engine that holds the stream's KV, unless it is empty."""
        if self._role.now != "decode":
            return ()
        value = headers.get("x-argosy-prefill", "")
        others = candidates(value, headers.get("x-argosy-prefill-uids")) if value else ()
        return (source, *others) if source else others

    def _kept_at(self, headers: dict[str, str]) -> str:
        """The decode engine that holds the KV of a stream which goes on here; empty: none."""
        value = headers.get("x-argosy-kept-at", "")
        return gateway_headers.kept_at(value) if value and self._role.now == "decode" else ""

    def close(self) -> None:
        """End the threads; called when no request is left, or the drain's time is over."""
        self._text.close()
        self._compiler.close()


class _Endpoint:
    """Starlette takes a class instance as raw ASGI, a method as a request handler."""

    def __init__(self, serve: Callable[[Scope, Receive, Send], Any]) -> None:
        self._serve = serve

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._serve(scope, receive, send)


def _not_here(request: Request, error: Exception) -> Response:
    """A path or a method that this API does not have, in OpenAI's form."""
    assert isinstance(error, HTTPException)
    if request.url.path in BEYOND:
        text = f"{request.url.path}: {BEYOND[request.url.path]}"
        return Response(ApiError(404, text).body(), 404, media_type="application/json")
    text = f"{request.method} {request.url.path}: {error.detail}; see /v1/models, /v1/completions"
    headers = dict(error.headers or {})
    return Response(
        ApiError(error.status_code, text).body(), error.status_code, headers, "application/json"
    )


def _answer_failure(_request: Request, error: Exception) -> Response:
    """An error of the engine itself; Starlette raises it again, so that it is logged."""
    text = f"the engine failed: {type(error).__name__}"
    body = ApiError(500, text, "server_error", code="internal_error").body()
    return Response(body, 500, media_type="application/json")


def _headers(scope: Scope) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


def _unique(public_id: str) -> str:
    """Clients may repeat an x-request-id; inside the engine and on the wire it must be unique."""
    return f"{public_id[:119]}.{secrets.token_hex(4)}"


def _public_id(value: str | None) -> str:
    if value is not None and _ID.fullmatch(value):
        return value
    return secrets.token_hex(12)
