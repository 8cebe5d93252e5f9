"""The handover of vLLM's NixlConnector: the gateway asks a prefill pod, then the decode pod.

Phase 1 asks a prefill pod for one token and for `kv_transfer_params`, which say where the prompt's
KV is. Phase 2, the attempt's own call, sends the client's request with these to the decode pod,
which pulls the KV and draws every token itself. The token of phase 1 is dropped.

The prefill pod gives the blocks to others when the lease is over, and a decode pod that comes later
answers 200 with another user's KV (seen with vLLM 0.32). So the decode pod's place is taken before
phase 1, and the parameters are left out when a third of the lease has passed.
"""

import asyncio
import json
import logging
from dataclasses import dataclass, replace
from typing import Any

from argosy_gateway.errors import BrokenError, ShortageError, StaleError, UnreachableError
from argosy_gateway.pods.endpoints import Endpoint
from argosy_gateway.relay.gateway import Gateway
from argosy_gateway.relay.handover import (
    ALONE,
    Led,
    Refused,
    add_members,
    headers_of,
    is_client_error,
)
from argosy_gateway.relay.metrics import HandoverReason
from argosy_gateway.routing.load import Hold
from argosy_gateway.routing.roster import Route
from argosy_gateway.wire.http1 import Exchange, Head
from argosy_gateway.wire.openai import CompletionRequest, json_or_none
from argosy_gateway.wire.sse import read_usage

__all__ = ["LEASE_S", "TwoPhases", "prefill_body"]

log = logging.getLogger(__name__)

LEASE_S = 60.0
"""How long a prefill pod keeps KV that no decode pod pulls. The operator writes it into the pods
(`kv_lease_duration`)."""
_USABLE_S = LEASE_S / 3
PARAMS = "kv_transfer_params"
_ASK = {"do_remote_decode": True, "do_remote_prefill": False}
_LEFT_OUT = ("stream_options", "min_tokens", "n", "best_of", "ignore_eos")
"""What asks for more than one token. Members that a decode pod checks stay, so that the prefill pod
refuses what is wrong."""
_LIMITS = ("max_tokens", "max_completion_tokens")
_CANDIDATES = 2
"""Prefill pods that are asked one after the other before the decode pod computes the prompt."""
_PREFILL_FACTOR = 3.0
"""Of the predicted time of a prompt: a prefill pod that takes longer is not waited for."""
_PREFILL_LEAST_S = 5.0
_PREFILL_UNKNOWN_S = 60.0
"""While no pace is known."""
_MOST_CACHED = 0.5
"""Share of a prompt's tokens up to which it counts as computed."""
_ANSWER_BYTES = 16 << 20
_SLOW_TOKENS = 4.0
"""Times the TPOT limit: an answer that is slower has lost its KV, or its goodput anyway."""


@dataclass(frozen=True, slots=True)
class _Failed:
    """A prefill pod has computed no prompt."""

    reason: HandoverReason
    detail: str


class TwoPhases:
    """Phase 1 of one request, and what it gives for phase 2."""

    def __init__(
        self, gateway: Gateway, request: CompletionRequest, route: Route, body: bytes
    ) -> None:
        """`body` is what the decode pod gets, without parameters."""
        self._gateway = gateway
        self._request = request
        self._route = route
        self._body = body
        self._params: object = None
        """Of phase 1, until phase 2 is sent."""
        self._expires_at = 0.0
        self._hold: Hold | None = None
        """On the prefill pod, until the decode pod has the KV or computes the prompt."""
        self._exchange: Exchange | None = None
        self._silent = False
        """The prefill pod took too long."""

    async def lead(self) -> Led | Refused:
        """Ask the prefill pods of the route, best first, until one has computed the prompt.

        Returns ALONE if the decode pod is to compute it: for a request that vLLM hands over wrongly
        or refuses, for a prompt that is quicker to compute than to move, and if no prefill pod
        does. Raises ShortageError.
        """
        gateway, request = self._gateway, self._request
        asked = json_or_none(self._body)
        if not isinstance(asked, dict) or _needs_decode(asked, request.sequences):
            return ALONE
        if request.prompt_tokens < gateway.transfers.least_tokens(gateway.computing.tokens_per_s()):
            return ALONE
        body, first_token_s, failed = prefill_body(asked), self._first_token_s(asked), False
        for pod in self._route.prefills[:_CANDIDATES]:
            if gateway.directory.drains(pod.uid):
                continue
            gateway.directory.pairs.begin(pod.uid, self._route.head.uid)
            self._hold = gateway.in_flight.hold(pod.uid)
            answered = await self._ask(pod, body)
            if isinstance(answered, Refused):
                return answered
            if not isinstance(answered, _Failed):
                self._params, self._expires_at = answered, gateway.clock() + _USABLE_S
                return Led(
                    members={PARAMS: answered},
                    prefill=pod,
                    expires_at=self._expires_at,
                    first_token_s=first_token_s,
                    failed=failed,
                )
            self._hold.end()
            why, head = answered.reason, self._route.head
            log.warning("%s computed no prompt for %s: %s", pod.name, head.name, answered.detail)
            if why is not HandoverReason.BUSY:
                failed = True
                gateway.directory.pairs.count_failure(pod.uid, head.uid, why)
            gateway.metrics.count_failed_handover(why)
        return replace(ALONE, failed=failed)

    def end(self, *, used: bool) -> None:
        """Close the prefill pod's connection: without an answer it keeps no KV. Have KV that the
        decode pod was never asked to pull released."""
        if self._exchange is not None:
            self._exchange.abort()
            self._exchange = None
        if self._hold is not None:
            self._hold.end()
        params, self._params = self._params, None
        if params is not None and not used and self._gateway.clock() < self._expires_at:
            self._gateway.keep_running(self._release(params))

    async def _release(self, params: object) -> None:
        """Ask the decode pod to pull the KV, and leave: vLLM has no other call that ends a lease
        (seen with 0.32)."""
        gateway, head = self._gateway, self._route.head
        try:
            exchange = await gateway.connections.post(
                gateway.peer_of(head),
                self._request.path,
                headers_of(gateway, self._request, head),
                add_members(self._body, {PARAMS: params}),
                connect_s=gateway.config.limits.connect_s,
                fresh=True,
            )
        except UnreachableError:
            return  # the lease ends it
        exchange.abort()

    def _first_token_s(self, asked: dict[str, Any]) -> float:
        """Return how long the decode pod may take until its first token.

        An unstreamed answer does not show it: each token that it may have adds a multiple of the
        TPOT limit. Without a limit of both, nothing is known.
        """
        if self._request.stream:
            return _USABLE_S
        slo = self._gateway.class_of(self._request.slo_class).slo
        limits = (asked.get(name) for name in _LIMITS)
        most = next((limit for limit in limits if isinstance(limit, int)), None)
        if slo is None or most is None:
            return float("inf")
        return _USABLE_S + _SLOW_TOKENS * slo.tpot_s * most

    async def _ask(self, pod: Endpoint, body: bytes) -> dict[str, Any] | Refused | _Failed:
        """Return where the KV is, or why this pod has none. Raises ShortageError."""
        gateway, began_at = self._gateway, self._gateway.clock()
        self._silent = False
        try:
            head, answer = await self._post(pod, body)
        except ShortageError:
            raise
        except UnreachableError as error:
            gateway.directory.health.mark_unreachable(pod.uid, gateway.clock())
            return _Failed(HandoverReason.CONNECT, f"unreachable ({error})")
        except BrokenError as error:
            reason = HandoverReason.SILENT if self._silent else HandoverReason.CLOSED
            return _Failed(reason, str(error))
        if not pod.wrote(head):
            gateway.directory.health.mark_wrong_pod(pod.uid)
            return _Failed(HandoverReason.WRONG_POD, "another program answers at its address")
        content = json_or_none(answer)
        if is_client_error(head.status) and isinstance(content, dict):
            return Refused(head.status, head.headers, answer)
        params = _read_params(content)
        if head.status == 429:
            return _Failed(HandoverReason.BUSY, "it is full")
        if head.status != 200:
            return _Failed(HandoverReason.REFUSED, f"status {head.status}")
        if params is None:
            return _Failed(HandoverReason.INVALID, "it names no KV")
        self._learn_pace(pod, began_at, _cached_share(content, params))
        return params

    def _learn_pace(self, pod: Endpoint, began_at: float, cached: float) -> None:
        """How quick the pod is. A prompt that it had mostly cached does not show how long it takes
        to compute one."""
        gateway, tokens, now = self._gateway, self._request.prompt_tokens, self._gateway.clock()
        gateway.pace.observe(pod.uid, tokens, began=began_at, first=now)
        if cached <= _MOST_CACHED:
            computed = round(tokens * (1 - cached))
            gateway.computing.observe(pod.uid, computed, began=began_at, first=now)

    async def _post(self, pod: Endpoint, body: bytes) -> tuple[Head, bytes]:
        """Return the whole answer. Raises UnreachableError, ShortageError and BrokenError."""
        loop = asyncio.get_running_loop()
        for fresh in (False, True):
            exchange = await self._send(pod, body, fresh=fresh)
            limit_s = self._limit_s(pod)
            timer = loop.call_later(limit_s, self._stop_waiting, exchange, limit_s)
            try:
                head = await exchange.head()
                answer = bytearray()
                while data := await exchange.read():
                    answer += data
                    if len(answer) > _ANSWER_BYTES:
                        raise BrokenError("its answer is too long")
            except StaleError:
                if fresh:
                    raise
                continue
            except BrokenError:
                exchange.abort()
                raise
            finally:
                timer.cancel()
            self._exchange = None
            exchange.release()
            return head, bytes(answer)
        raise AssertionError

    def _stop_waiting(self, exchange: Exchange, limit_s: float) -> None:
        self._silent = True
        exchange.abort(f"no answer within {limit_s:.3g} s")

    async def _send(self, pod: Endpoint, body: bytes, *, fresh: bool) -> Exchange:
        gateway = self._gateway
        self._exchange = exchange = await gateway.connections.post(
            gateway.peer_of(pod),
            self._request.path,
            headers_of(gateway, self._request, pod),
            body,
            connect_s=gateway.config.limits.connect_s,
            fresh=fresh,
        )
        return exchange

    def _limit_s(self, pod: Endpoint) -> float:
        """Return how long the pod may take for the prompt and for those ahead of it."""
        rate = self._gateway.computing.tokens_per_s()
        load = self._gateway.in_flight.loads.get(pod.uid)
        if not rate or load is None:
            return _PREFILL_UNKNOWN_S
        return max(_PREFILL_LEAST_S, _PREFILL_FACTOR * load.prompt_tokens / rate)


def prefill_body(asked: dict[str, Any]) -> bytes:
    """Return the body of phase 1: one token, in one piece, and where its KV is."""
    body = {name: value for name, value in asked.items() if name not in _LEFT_OUT}
    limits = {name: 1 for name in _LIMITS if name in body} or {"max_tokens": 1}
    more = {"stream": False, "return_token_ids": True, PARAMS: _ASK}
    return json.dumps(body | limits | more, ensure_ascii=False).encode(errors="backslashreplace")


def _read_params(content: object) -> dict[str, Any] | None:
    """Return the answer's parameters, with the token ids of the prompt if it has them: the decode
    pod need not render it again (vLLM 0.32; older ones do not read them)."""
    params = content.get(PARAMS) if isinstance(content, dict) else None
    if not isinstance(content, dict) or not isinstance(params, dict):
        return None
    if not (params.get("do_remote_prefill") and params.get("remote_block_ids")):
        return None  # without blocks to pull, vLLM 0.32's decode process ends
    choices = content.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    ids = content.get("prompt_token_ids")
    if ids is None and isinstance(first, dict):
        ids = first.get("prompt_token_ids")
    return {**params, "prompt_token_ids": ids} if isinstance(ids, list) and ids else params


def _cached_share(content: object, params: dict[str, Any]) -> float:
    """Return how much of the prompt the prefill pod had in its cache; 0 if it does not say."""
    usage, cached = read_usage(content), params.get("remote_prefill_cached_tokens")
    if usage is None or not usage.prompt_tokens or not isinstance(cached, int):
        return 0.0
    return min(max(cached / usage.prompt_tokens, 0.0), 1.0)


def _needs_decode(asked: dict[str, Any], sequences: int) -> bool:
    """Whether the decode pod answers alone.

    Of several prompts, choices or beams, only the last one's KV would be named. With `echo` or
    `prompt_logprobs` vLLM computes the prompt without any cache. A limit that is none is for the
    decode pod to refuse, because phase 1 has one of its own.
    """
    if (
        sequences > 1
        or asked.get("use_beam_search")
        or asked.get("echo")
        or asked.get("prompt_logprobs") is not None
    ):
        return True
    return not all(_is_limit(asked.get(name)) for name in (*_LIMITS, "n", "best_of"))


def _is_limit(value: object) -> bool:
    return value is None or (type(value) is int and value >= 1)
