"""Questions that an engine answers without a step, such as `/tokenize` and `/version`.

They are no requests of the SLO: nothing is counted, nothing is reserved on the pod, and they wake
no fleet from zero pods. Any engine pod has the tokenizer, so whichever serves is asked.
"""

import asyncio
import logging
import random
from typing import NamedTuple

from argosy_gateway.errors import (
    BrokenError,
    RequestError,
    ShortageError,
    UnreachableError,
    out_of_descriptors,
    too_long,
)
from argosy_gateway.pods.endpoints import Endpoint, Role
from argosy_gateway.relay.gateway import Gateway
from argosy_gateway.wire import http1
from argosy_gateway.wire.openai import context_length, rename_model

__all__ = ["METHODS", "MODELS", "EngineReply", "Question", "ask_any", "max_model_len"]

log = logging.getLogger(__name__)

METHODS = {
    "/tokenize": "POST",
    "/detokenize": "POST",
    "/tokenizer_info": "GET",
    "/version": "GET",
}

MODELS = "/v1/models"

_PODS = 3
"""So many are asked, one after the other."""


class EngineReply(NamedTuple):
    """An engine's answer."""

    status: int
    body: bytes
    headers: dict[str, str]


class Question(NamedTuple):
    """What a client asks."""

    body: bytes
    model: str | None
    """The name that it gives the model, if any."""
    adapter: str = ""
    """The same, if it is a LoRA adapter's."""

    def to(self, pod: Endpoint) -> bytes:
        """The body for the engine of this pod, with its own name for the model."""
        if self.model is None or pod.model is None or self.adapter:
            return self.body
        return rename_model(self.body, self.model, pod.model)


async def ask_any(gateway: Gateway, path: str, question: Question, request_id: str) -> EngineReply:
    """The answer of the first pod that gives one. Raises RequestError (400, 503)."""
    adapter = question.adapter
    pods = [p for p in gateway.directory.serving() if not adapter or adapter in p.adapters]
    for pod in random.sample(pods, min(len(pods), _PODS)):
        try:
            async with asyncio.timeout(gateway.config.limits.engine_silence_s):
                reply = await _ask(gateway, pod, path, question, request_id)
        except ShortageError as error:
            log.error("no engine can be asked: %s", error)
            raise out_of_descriptors() from error
        except (UnreachableError, BrokenError, TimeoutError) as error:
            log.info("engine %s did not answer %s: %s", pod.name, path, error)
            continue
        if reply is not None:
            return reply
    raise RequestError(
        503,
        "No engine answered; try again later.",
        type="server_error",
        code="no_engine_ready",
        headers={"retry-after": "1"},
    )


async def max_model_len(gateway: Gateway, request_id: str) -> int | None:
    """The context of the fleet's model, in tokens, as an engine says it; None if none does now.

    Engines of one revision say the same, so one is asked, once.
    """
    pods = [pod for pod in gateway.directory.serving() if pod.role is not Role.PREFILL]
    if not pods:
        return None
    (pod,) = random.sample(pods, 1)
    if pod.revision not in gateway.contexts:
        try:
            async with asyncio.timeout(gateway.config.limits.wait_s):
                reply = await _ask(gateway, pod, MODELS, Question(b"", None), request_id)
        except (UnreachableError, BrokenError, TimeoutError) as error:
            log.info("engine %s did not answer %s: %s", pod.name, MODELS, error)
            return None
        length = context_length(reply.body) if reply is not None else None
        if length is None:
            return None
        gateway.contexts = {pod.revision: length}  # a revision that is gone is not kept
    return gateway.contexts[pod.revision]


async def _ask(
    gateway: Gateway, pod: Endpoint, path: str, question: Question, request_id: str
) -> EngineReply | None:
    """None if another program answers there, or if this engine cannot now."""
    peer, limits = gateway.peer_of(pod), gateway.config.limits
    exchange = await http1.call(
        peer.host,
        peer.port,
        method=METHODS.get(path, "GET"),
        target=path,
        headers=[
            ("content-type", "application/json"),
            ("x-request-id", request_id),
            *gateway.headers_for(pod),
        ],
        body=question.to(pod),
        connect_s=limits.connect_s,
        tls=peer.tls,
    )
    try:
        head, answer = await exchange.head(), bytearray()
        while data := await exchange.read():
            answer += data
            if len(answer) > limits.answer_bytes:
                raise too_long("The answer", limits.answer_bytes)
    finally:
        exchange.abort()
    if not pod.wrote(head) or head.status == 401 or head.status >= 500:
        return None
    retry_after = head.get(b"retry-after")
    headers = {"retry-after": retry_after.decode("latin-1")} if retry_after else {}
    return EngineReply(head.status, bytes(answer), headers)
