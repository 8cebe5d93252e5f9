"""One call of one engine: from the reservation on its pod to the end of its answer.

`relay` chooses the route and runs one Attempt at a time. The engine's bytes go through `wire.sse`
to the client's Answer; what the call shows about the pod goes to `pods.health`. An attempt never
decides about the next one: it returns how the request ended, or a FailedAttempt.
"""

import asyncio
import logging
from dataclasses import dataclass
from typing import Self

from argosy_gateway.errors import (
    BrokenError,
    RequestError,
    ShortageError,
    StaleError,
    UnreachableError,
    too_long,
)
from argosy_gateway.pods.endpoints import Endpoint, Role
from argosy_gateway.pods.pairs import (
    FAILED_HEADER,
    HANDOVER_HEADER,
    NOT_HANDED_OVER,
    SERVED_HEADER,
)
from argosy_gateway.relay.answer import (
    HELD_HEADER,
    IDS_HEADER,
    RESUMED_HEADER,
    TTFT_HEADER,
    Answer,
)
from argosy_gateway.relay.gateway import Gateway
from argosy_gateway.relay.handover import ALONE, Handover, Refused, add_members
from argosy_gateway.relay.handover.argosy import (
    Candidates,
    StreamKv,
    address_of,
    ask_to_keep,
)
from argosy_gateway.relay.handover.bootstrap import Rooms
from argosy_gateway.relay.handover.nixl import TwoPhases
from argosy_gateway.relay.metrics import HANDOVER_REASONS, HandoverReason, RetryReason
from argosy_gateway.relay.resume import Resume
from argosy_gateway.relay.verdicts import Ending, first_token_after_s, held_s
from argosy_gateway.routing.roster import Route
from argosy_gateway.wire import http1
from argosy_gateway.wire.http1 import Exchange
from argosy_gateway.wire.openai import (
    CompletionRequest,
    blames_client,
    error_code,
    json_or_none,
    longest_share,
    rename_model,
)
from argosy_gateway.wire.sse import StreamScan, check_usage, read_usage

__all__ = ["Attempt", "FailedAttempt"]

log = logging.getLogger(__name__)

_STALLED_INTERVALS = 20
"""Usual times between two tokens after which a stream has stalled. Preemption and the prompts of
others delay a token by a few."""


_FAULTS = frozenset(
    {RetryReason.CONNECT, RetryReason.CLOSED, RetryReason.SILENT, RetryReason.SERVER_ERROR}
)


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """An attempt after which the request has no whole answer."""

    reason: RetryReason
    detail: str = ""
    """What happened; the client sees it if its stream breaks off."""
    worked: bool = False
    """The engine had begun the work. The number of such attempts is limited; other attempts go on
    until `queue_timeout_s`."""
    timed_out: bool = False
    """The engine was silent for too long, and may still compute."""
    moved: bool = False
    """The engine did the work, and drains: that is no failure."""
    kv: StreamKv | None = None
    """The KV of the stream, which the pod holds for the next one."""
    status: int = 503
    headers: tuple[tuple[bytes, bytes], ...] = ()
    body: bytes = b""
    """The engine's own answer, passed on if no other attempt follows; empty if it gave none."""

    @property
    def is_fault(self) -> bool:
        """Whether it is the pod's failure, and not its load, its drain or another program."""
        return self.reason in _FAULTS and not self.moved


class _LostKvError(Exception):
    """The head failed before its first token, and it was to pull a prompt's KV."""


class Attempt:
    """One call of one engine, to be used with `with`: leaving it closes the engine's connection,
    unless the answer was whole."""

    __slots__ = (
        "_answer",
        "_began_at",
        "_exchange",
        "_first_token_is_late",
        "_first_token_timer",
        "_gateway",
        "_given_up",
        "_handover",
        "_head_asked_at",
        "_heard",
        "_kv",
        "_kv_here",
        "_led",
        "_left",
        "_moved",
        "_number",
        "_refused",
        "_request",
        "_reservation",
        "_route",
        "_sent_at",
        "_serving",
        "_timed_out",
        "lost_kv",
    )

    def __init__(
        self,
        gateway: Gateway,
        request: CompletionRequest,
        route: Route,
        number: int,
        answer: Answer,
        kv: StreamKv | None = None,
    ) -> None:
        """`number` counts the attempts of a request that reached an engine, from 1. `kv` is that
        of the stream at the pod that it has left."""
        self._gateway = gateway
        self._request = request
        self._route = route
        self._number = number
        self._answer = answer
        self._kv = kv if route.head.moves_kv else None
        prompt_tokens = 0 if self._kv is not None else request.prompt_tokens
        self._reservation = gateway.in_flight.reserve(route, prompt_tokens)
        self._first_token_timer: asyncio.TimerHandle | None = None
        self._exchange: http1.Exchange | None = None
        self._began_at = gateway.clock()
        """Before connecting. `health` ignores attempts that began before the pod was suspended."""
        self._sent_at = self._began_at
        """When the request was sent and the engine's work began."""
        self._serving: bytes | None = None
        """Name of the prefill pod whose KV is on the way to the head of this stream."""
        self._handover = self._choose_handover()
        self._led = ALONE
        """What the head is asked besides the client's request."""
        self._head_asked_at: float | None = None
        """When the head was sent the request last; None before."""
        self._heard = False
        """The stream has an event: its KV came, also if a parser of tools holds the text back."""
        self._given_up = ""
        """Why the head is not waited for: the prefill pod that is asked beside it failed."""
        self._refused: Refused | None = None
        """What a prefill pod says that is asked beside the head."""
        self.lost_kv = False
        """A prefill pod failed the request; another one, or the head, made it good."""
        self._timed_out = False
        self._first_token_is_late = False
        self._moved = False
        self._kv_here: StreamKv | None = None
        """What this pod holds of the stream that leaves it."""
        self._left = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._first_token_timer is not None:
            self._first_token_timer.cancel()  # else the reservation stays in memory until then
            self._first_token_timer = None
        self._reservation.end()
        if self._handover is not None:
            self._handover.end(used=self._head_asked_at is not None)
        if self._exchange is not None:
            self._exchange.abort()
            self._exchange = None

    def check_time(self, now: float) -> None:
        """Called by the sweeper: close the connection of an engine that is silent for too long."""
        limits, exchange = self._gateway.config.limits, self._exchange
        if exchange is None or exchange.waiting_since is None:
            return
        waited_s = now - exchange.waiting_since
        if self._pulls and not self._heard and self._turn_s(now) > self._led.first_token_s:
            self._first_token_is_late = True
            exchange.abort(f"no first token within {self._led.first_token_s:.3g} s")
            return
        first_s = limits.first_token_s if self._request.stream else limits.whole_answer_s
        limit_s = limits.engine_silence_s if self._answer.started else first_s
        if waited_s > limit_s:
            self._timed_out = True
            exchange.abort(f"the engine was silent for {limit_s:g} s")

    def _turn_s(self, now: float) -> float:
        """How long the head could have begun to answer: it was asked, and so were none before."""
        if self._head_asked_at is None:
            return 0.0
        uid, transfers = self._route.head.uid, self._gateway.transfers
        return now - transfers.turn_of(uid, asked_at=self._head_asked_at)

    def pod_is_silent(self, now: float) -> bool:
        """Called by the sweeper: whether the answer has stalled and its pod gives no sign of life.

        Reports what it sees to `pods.probes`, which asks the pod if the answer waits for long.
        """
        exchange, uid, probes = self._exchange, self._route.head.uid, self._gateway.probes
        if exchange is None or exchange.waiting_since is None:
            return False
        waited_s, again_s = now - exchange.waiting_since, self._gateway.config.limits.wait_s
        if waited_s <= max(again_s, _STALLED_INTERVALS * self._answer.interval_s):
            if exchange.answered:
                probes.mark_heard(uid)
            return False
        probes.ask(self._route.head, again_s=again_s)
        return probes.is_silent(uid)

    def leave(self) -> None:
        """Leave a pod that gives no sign of life: the next attempt begins or goes on elsewhere."""
        if self._exchange is not None:
            self._left = True
            self._exchange.abort("its pod gives no sign of life")

    @property
    def head(self) -> Endpoint:
        """The pod that is called."""
        return self._route.head

    @property
    def sent_at(self) -> float:
        """When the request was sent; when the call began if it was not."""
        return self._sent_at

    @property
    def own_share(self) -> float:
        """The request's prompt tokens, of all that its pod had yet to compute when it was sent."""
        return min(max(self._request.prompt_tokens, 1) / max(self._reservation.ahead, 1), 1.0)

    @property
    def pod_drains(self) -> bool:
        """The pod leaves, and was not left yet."""
        return not self._moved and self._gateway.directory.drains(self._route.head.uid)

    def move(self) -> None:
        """Leave a pod that drains: the next attempt goes on elsewhere. A decode pod of ours is
        asked before to keep the KV for that."""
        if self._exchange is None:
            return
        self._moved = True
        if self._answer.started and self._route.head.moves_kv:
            self._gateway.keep_running(self._leave_with_kv(self._exchange))
        else:
            self._exchange.abort("its pod drains")

    async def _leave_with_kv(self, exchange: Exchange) -> None:
        kv = await ask_to_keep(self._gateway, self._request, self._route.head)
        if self._exchange is exchange:
            self._kv_here = kv
            exchange.abort("its pod drains")
        elif kv is not None:  # the stream has ended meanwhile, or its client has left
            kv.end()

    async def run(self) -> Ending | FailedAttempt:
        """Call the engine and pass its answer on. Raises ShortageError."""
        health, pod = self._gateway.directory.health, self._route.head
        prefills = [prefill.name for prefill in self._route.prefills]
        log.debug("ask engine %s; prefill: %s", pod.name, prefills)
        health.begin(pod.uid)
        if self._route.prefills:
            self._gateway.directory.pairs.begin(self._route.prefills[0].uid, pod.uid)
        if self._handover is not None:
            try:
                led = await self._handover.lead()
            except ShortageError:
                raise
            except UnreachableError as error:
                log.info("no prefill pod for %s: %s", pod.name, error)
                detail = "no prefill pod could be reached"
                return FailedAttempt(RetryReason.CONNECT, detail, worked=True)
            if isinstance(led, Refused):
                await self._answer.send_whole(led.status, led.headers, led.body)
                return Ending.INVALID
            self._led, self.lost_kv = led, led.failed
            if self._was_computed:
                self._reservation.first_token()
        try:
            try:
                return await self._call()
            except _LostKvError as lost:
                late = self._first_token_is_late
                self._lose_kv(HandoverReason.HUNG if late else HandoverReason.NO_KV, lost)
                return await self._call()
        except ShortageError:
            raise  # it says nothing about the pod
        except UnreachableError as error:
            log.info("engine %s is unreachable: %s", pod.name, error)
            absence_s = health.mark_unreachable(pod.uid, self._began_at)
            if absence_s:
                log.warning("engine %s is not called for %g s", pod.name, absence_s)
            return FailedAttempt(RetryReason.CONNECT, "no engine could be reached")
        except RequestError as error:
            log.info("engine %s: %s", pod.name, error.message)
            await self._answer.send_error(error)
            return Ending.INVALID
        except BrokenError as error:
            if self._moved:
                return FailedAttempt(RetryReason.DRAINING, str(error), moved=True, kv=self._kv_here)
            if (refused := self._refused) is not None and not self._answer.started:
                await self._answer.send_whole(refused.status, refused.headers, refused.body)
                return Ending.INVALID
            self._count_failure(str(error))
            return FailedAttempt(
                RetryReason.SILENT if self._left else RetryReason.CLOSED,
                str(error),
                worked=True,
                timed_out=self._timed_out,
            )

    async def _call(self) -> Ending | FailedAttempt:
        """Send the request to the head and pass its answer on. Raises what `run` handles, and
        _LostKvError if the head is to be asked again without the KV."""
        try:
            exchange, head = await self._ask()
        except BrokenError as error:
            if self._pulls and not (self._moved or self._left or self._timed_out):
                raise _LostKvError(str(error)) from error
            raise
        self._gateway.moves.end(self._answer)
        self._reservation.first_token()
        if (failed := self._check_accepted(head)) is not None:
            return failed
        if self._pulls and head.status >= 500:
            raise _LostKvError(f"status {head.status}")
        self._learn_handovers(head)
        if self._answer.started and (failed := self._check_resumed(head)) is not None:
            if head.status >= 500:
                self._count_error(head, await self._read_whole(exchange))
            return failed
        if self._kv is not None:
            self._kv.end()  # the head comes with a token, so the engine has the KV or did without
        if self._request.stream and head.status == 200:
            return await self._stream(exchange, head)
        return await self._whole(exchange, head)

    @property
    def _pulls(self) -> bool:
        """Whether the head is to pull KV that the gateway named, and has given no token yet."""
        return bool(self._led.members) and self._led.can_compute and not self._answer.started

    @property
    def _was_computed(self) -> bool:
        """Whether a prefill pod has computed the prompt before the head is asked."""
        return self._led.prefill is not None and self._led.can_compute

    def _lose_kv(self, reason: HandoverReason, why: object) -> None:
        """The head does not get the KV that the gateway has for it: it computes the prompt."""
        prefill, head = self._led.prefill, self._route.head
        log.warning("%s has no KV of %s: %s", head.name, prefill and prefill.name, why)
        if prefill is not None and reason is not HandoverReason.LATE:  # which is the gateway's own
            self.lost_kv = True
            self._gateway.directory.pairs.count_failure(prefill.uid, head.uid, reason)
        self._gateway.metrics.count_failed_handover(reason)
        if self._exchange is not None:
            self._exchange.abort()
            self._exchange = None
        self._end_lead()
        self._led, self._first_token_is_late = ALONE, False

    def _end_lead(self) -> None:
        """Nothing is pulled any more: the prefill pod may go."""
        if self._handover is not None:
            self._handover.end(used=True)

    def _learn_transfer(self, first_token_at: float | None) -> None:
        """The head has the KV that the gateway told it of. `first_token_at` is None for an answer
        that does not show it."""
        prefill = self._led.prefill
        if prefill is None:
            return
        self._gateway.directory.pairs.count_success(prefill.uid, self._route.head.uid)
        if self._head_asked_at is None:
            return
        self._gateway.transfers.mark_served(self._route.head.uid, asked_at=self._head_asked_at)
        if first_token_at is not None:
            self._gateway.transfers.observe(first_token_at - self._head_asked_at)

    def _choose_handover(self) -> Handover | None:
        """Return the protocol of the route's engines; None if the head computes the prompt."""
        gateway, request, route = self._gateway, self._request, self._route
        if not route.prefills and self._kv is None:
            return None
        if route.head.engine == "vllm":
            return TwoPhases(gateway, request, route, self._body)
        if route.head.engine == "sglang":
            return Rooms(gateway, request, route, self._body, self._end_exchange)
        goes_on = self._answer.started
        return Candidates(gateway, request, route, goes_on=goes_on, kv=self._kv)

    def _end_exchange(self, why: str, refused: Refused | None) -> None:
        self._given_up, self._refused = why, refused
        if self._exchange is not None:
            self._exchange.abort(why)

    @property
    def _body(self) -> bytes:
        """The client's request as the head's engine knows the model, with a seed for ours."""
        model, request = self._model, self._request
        body = request.body
        if model is not None:
            body = rename_model(body, request.model, model)
        if request.seed is not None and not self._route.head.keyed:
            body = add_members(body, {"seed": request.seed})
        return body

    @property
    def _model(self) -> str | None:
        """The name by which the head's engine is asked; None: the one that the client wrote."""
        return None if self._request.adapter else self._route.head.model

    async def _ask(self) -> tuple[http1.Exchange, http1.Head]:
        """Send the request and wait for the head. Raises UnreachableError and BrokenError.

        An engine may close a kept connection while the request is on its way. The request is then
        sent over a new one. If the pod takes none, its engine has ended, perhaps by this very
        request: that is a failure like any other.
        """
        exchange = await self._send()
        try:
            return exchange, await exchange.head()
        except StaleError as stale:
            log.debug("engine %s: %s; sent again", self._route.head.name, stale)
            try:
                exchange = await self._send(fresh=True)
            except ShortageError:
                raise
            except UnreachableError as error:
                log.debug("engine %s is unreachable: %s", self._route.head.name, error)
                raise BrokenError(f"{stale}, and no new one could be opened") from error
            return exchange, await exchange.head()

    async def _send(self, *, fresh: bool = False) -> http1.Exchange:
        """Send the request, over a kept connection unless `fresh`. Raises UnreachableError."""
        gateway, route, request = self._gateway, self._route, self._request
        if self._led.expires_at < gateway.clock():
            self._lose_kv(HandoverReason.LATE, "its lease may end before it is pulled")
        resume = self._answer.resume if self._answer.started else None
        self._answer.expect_model(self._model, request.model)
        body = self._body
        if self._led.members:
            body = add_members(body, self._led.members)
        self._exchange = exchange = await _send_request(
            gateway, request, route, self._number, body, self._led.headers, resume, fresh=fresh
        )
        self._head_asked_at = gateway.clock()
        if self._given_up:  # while it was connected
            exchange.abort(self._given_up)
        if not self._pulls:
            self._sent_at = self._head_asked_at
        if gateway.directory.health.mark_reached(route.head.uid):
            gateway.directory.notify()
        if not request.stream:
            self._expect_first_token()
        return exchange

    def _expect_first_token(self) -> None:
        """An unstreamed answer does not show when its prompt is computed: the time is predicted."""
        gateway = self._gateway
        rate = gateway.pace.tokens_per_s()
        load = gateway.in_flight.loads.get(self._route.prefiller.uid)
        if rate and load and self._first_token_timer is None:
            self._first_token_timer = asyncio.get_running_loop().call_later(
                load.prompt_tokens / rate, self._reservation.first_token
            )

    def _learn_pace(self, head: http1.Head, first_token_at: float) -> None:
        """How quick the prefiller is, unless a decode pod computed the prompt in its place."""
        if not self._was_computed:  # else it was learnt when the prompt was computed
            alone = self._led.prefill is None and head.get(SERVED_HEADER) is None
            if self._route.prefills and alone:
                return
            self._gateway.pace.observe(
                self._route.prefiller.uid,
                self._request.prompt_tokens,
                began=self._sent_at,
                first=first_token_at,
            )
        queue = self._gateway.queue_of_pod(self._route.head)
        slo = self._gateway.class_of(self._request.slo_class).slo
        if queue is not None and slo is not None:
            queue.dispatch.observe(
                self._route.prefiller.uid,
                ahead=self._reservation.ahead,
                own=self._request.prompt_tokens,
                received_at=self._request.received_at,
                sent_at=self._sent_at,
                first_at=first_token_at,
                limit_s=slo.ttft_s,
            )

    def _check_accepted(self, head: http1.Head) -> FailedAttempt | None:
        """A FailedAttempt if another program answered, or if the engine drains; else None."""
        directory, pod = self._gateway.directory, self._route.head
        if not pod.wrote(head):
            name = head.get(b"x-argosy-decode-pod") or head.get(b"x-argosy-pod")
            found = name and name[:80]
            log.warning("at %s:%d answers %r, not engine %s", pod.ip, pod.port, found, pod.name)
            directory.health.mark_wrong_pod(pod.uid)
            return FailedAttempt(RetryReason.WRONG_POD)
        if directory.health.mark_identified(pod.uid):
            directory.notify()
        if head.status == 401:
            log.warning("engine %s does not take this gateway's token", pod.name)
            directory.health.mark_draining(
                pod.uid
            )  # it serves nothing now; its keys or ours may follow
            return FailedAttempt(RetryReason.UNPROVEN)
        # Another engine gives no reason header; after SIGTERM it takes no request.
        if head.status == 503 and (head.get(b"x-argosy-draining") or pod.keyed):
            directory.health.mark_draining(pod.uid)
            return FailedAttempt(RetryReason.DRAINING)
        return None

    def _learn_handovers(self, head: http1.Head) -> None:
        """Which prefill pods failed this head, and which one served it."""
        served = head.get(SERVED_HEADER)
        if head.get(HANDOVER_HEADER) == b"pending":
            self._serving, served = served, None
        self._learn(head.get(FAILED_HEADER), served)

    def _end_handover(self, said: bytes) -> None:
        """The stream says what came of the handover that its head left open."""
        if said == b"whole":
            self._learn(None, self._serving)
        else:
            self._learn(said.removeprefix(b"failed "), None)

    def _learn(self, failed_header: bytes | None, served: bytes | None) -> None:
        route, pairs = self._route, self._gateway.directory.pairs
        if not route.prefills:
            return
        named = {p.name: p.uid for p in route.prefills}
        named |= {address_of(p): p.uid for p in route.prefills}
        failed = pairs.learn(route.head.uid, named, failed=failed_header, served=served)
        for pod in route.prefills:
            if (word := failed.get(pod.uid)) is not None:
                self.lost_kv = True
                reason = HANDOVER_REASONS.get(word, HandoverReason.NO_KV)
                self._gateway.metrics.count_failed_handover(reason)
                log.warning("%s did not hand over to %s: %s", pod.name, route.head.name, word)

    def _count_success(self) -> None:
        """The engine served the request. One that takes KV from no pod does not serve as it should:
        it computes the prompts between the tokens of its streams."""
        directory, pod = self._gateway.directory, self._route.head
        if directory.pairs.is_cause(pod.uid):
            self._count_failure("it takes KV from none of the pods")
        else:
            directory.health.count_success(pod.uid, self._began_at)

    def _check_resumed(self, head: http1.Head) -> FailedAttempt | None:
        """A FailedAttempt if the answer is not the rest of the stream; else None."""
        if head.status == 429:
            self._gateway.directory.health.mark_busy(self._route.head.uid)
            return FailedAttempt(RetryReason.BUSY, "the engines are busy")
        if head.status >= 500:
            return FailedAttempt(RetryReason.SERVER_ERROR, f"status {head.status}", worked=True)
        if head.status != 200 or head.get(RESUMED_HEADER) != b"%d" % self._answer.resume.count:
            log.warning("engine %s does not go on: status %d", self._route.head.name, head.status)
            detail = "no engine goes on with it"
            return FailedAttempt(RetryReason.SERVER_ERROR, detail, worked=True)
        return None

    def _count_error(self, head: http1.Head, body: bytes) -> None:
        """An answer of 5xx. It is none of the head's if no prefill pod handed over, unless the head
        is what fails with them."""
        of_pairs = self._route.prefills and error_code(body) == NOT_HANDED_OVER
        if not of_pairs or self._gateway.directory.pairs.is_cause(self._route.head.uid):
            self._count_failure(f"status {head.status}")

    def _count_failure(self, detail: str) -> None:
        """The engine failed the request: its pod is called less."""
        pod = self._route.head
        suspension_s = self._gateway.directory.health.count_failure(pod.uid, self._began_at)
        log.info("engine %s failed: %s", pod.name, detail)
        if suspension_s:
            log.warning("engine %s is suspended for %g s", pod.name, suspension_s)

    async def _whole(self, exchange: http1.Exchange, head: http1.Head) -> Ending | FailedAttempt:
        """Read the whole answer before a byte of it is passed on, so that it can be retried.

        Raises BrokenError, and RequestError if it is too long.
        """
        directory, pod = self._gateway.directory, self._route.head
        try:
            body = await self._read_whole(exchange)
        except BrokenError as error:
            if self._pulls and not (self._moved or self._left or self._timed_out):
                raise _LostKvError(str(error)) from error
            raise
        self._release(exchange)
        if head.status >= 500:
            self._count_error(head, body)
            return FailedAttempt(
                RetryReason.SERVER_ERROR,
                f"status {head.status}",
                worked=True,
                status=head.status,
                headers=head.headers,
                body=body,
            )
        if head.status == 429:
            directory.health.mark_busy(pod.uid)
            return FailedAttempt(
                RetryReason.BUSY, status=head.status, headers=head.headers, body=body
            )
        content = json_or_none(body)
        if not isinstance(content, dict):
            # Without a content-length only this shows that the body is not whole.
            raise BrokenError("the answer is not a JSON object")
        if head.status < 400 and not (head.status == 200 and "choices" in content):
            raise BrokenError(f"status {head.status} without choices")
        if head.status == 200:
            self._learn_transfer(None)
            self._measure(head, content, len(body))
            self._count_success()
        await self._answer.send_whole(head.status, head.headers, body)
        return Ending.OK if head.status == 200 else Ending.INVALID

    def _release(self, exchange: http1.Exchange) -> None:
        """The engine's answer is whole: its connection may serve another request."""
        self._exchange = None
        exchange.release()

    async def _read_whole(self, exchange: http1.Exchange) -> bytes:
        limit, body = self._gateway.config.limits.answer_bytes, bytearray()
        while data := await exchange.read():
            body += data
            if len(body) > limit:
                raise too_long("The answer", limit)
        return bytes(body)

    def _measure(self, head: http1.Head, content: dict[str, object], size: int) -> None:
        """Record times and usage of a whole answer of `size` bytes, as the engine reports them."""
        answer, now = self._answer, self._gateway.clock()
        reported = head.get(TTFT_HEADER)
        first_at = self._sent_at + first_token_after_s(reported, whole_s=now - self._sent_at)
        answer.usage = check_usage(read_usage(content), answer_bytes=size)
        answer.longest_share = longest_share(content, self._request.sequences)
        answer.first_content_at, answer.last_content_at = first_at, now
        answer.held_s = held_s(head.get(HELD_HEADER))
        if reported is not None:
            self._learn_pace(head, first_at - answer.held_s)

    async def _stream(self, exchange: http1.Exchange, head: http1.Head) -> Ending | FailedAttempt:
        """Pass events on until `[DONE]`. Raises BrokenError, also after bytes were passed on, and
        RequestError if an event is too long."""
        answer, first_token_at = self._answer, self._gateway.clock()
        learnt, scan, held = answer.started, self._scan(head), b""
        if not learnt:
            answer.held_s = held_s(head.get(HELD_HEADER))
        scan.on_handover = self._end_handover
        exchange.on_arrival = answer.pass_on_now
        try:
            while not scan.done:
                data = await exchange.read()
                if not data:
                    raise BrokenError("the stream ended without [DONE]")
                held += scan.feed(data)
                self._heard = self._heard or b"data:" in held  # comments keep it alive
                if self._pulls and scan.held_error and not blames_client(scan.error_said):
                    raise _LostKvError("the stream begins with an error")
                if self._pulls and not (scan.content_events or scan.done or scan.held_error):
                    continue  # a chat begins with its role, also before an error
                pulled = self._pulls
                await answer.pass_on(held)
                held = b""
                if pulled:
                    self._learn_transfer(answer.first_content_at)
                    self._end_lead()
                if not learnt:  # only now: nobody waits for what is learnt
                    learnt = self._learn_first_token(head, first_token_at)
                if scan.held_error:
                    return await self._end_by_error(scan)
        except BrokenError as error:
            if self._pulls and not (self._moved or self._left or self._timed_out):
                raise _LostKvError(str(error)) from error
            raise
        finally:
            answer.usage = check_usage(scan.usage, answer_bytes=scan.size)
        self._release(exchange)
        if blames_client(scan.error_said):
            return Ending.INVALID
        if answer.stream_ending is not Ending.OK:
            self._count_failure("the stream has an error event or no answer")
            return Ending.FAILED
        self._count_success()
        return Ending.OK

    def _learn_first_token(self, head: http1.Head, head_at: float) -> bool:
        """Whether it is known when the prompt was computed. The head of a stream of ours comes with
        its first token, and that of another engine before; a led head has the KV already."""
        at: float | None = head_at
        if self._route.head.keyed and not self._was_computed:
            at = self._answer.first_content_at
        if at is None:
            return False
        self._learn_pace(head, at - self._answer.held_s)
        return True

    def _scan(self, head: http1.Head) -> StreamScan:
        """The scan of the stream: of a new one, or of that which goes on here."""
        answer, gateway = self._answer, self._gateway
        if answer.started:
            gateway.metrics.count_resumed(answer.resume.continue_elsewhere())
            return answer.continue_stream()
        with_ids = head.get(IDS_HEADER) is not None
        answer.resume.begin(self._route.head.revision, with_ids=with_ids)
        scan = StreamScan(
            hide_usage=self._request.hide_usage,
            holds_error=with_ids or self._pulls,
            several=self._request.sequences > 1,
            on_ids=answer.resume.add if with_ids else None,
        )
        answer.begin_stream(scan, head.headers)
        return scan

    async def _end_by_error(self, scan: StreamScan) -> Ending | FailedAttempt:
        """The engine's last event is an error. One that ends its drain fails nothing, nor does one
        of the client: another engine would say the same."""
        if blames_client(scan.error_said):
            await self._answer.refuse()
            return Ending.INVALID
        if b'"code": "draining"' in scan.held_error:
            return FailedAttempt(RetryReason.DRAINING, "the engine ended", moved=True)
        detail = "the engine ended the stream with an error"
        self._count_failure(detail)
        return FailedAttempt(RetryReason.SERVER_ERROR, detail, worked=True)


async def _send_request(
    gateway: Gateway,
    request: CompletionRequest,
    route: Route,
    number: int,
    body: bytes,
    more: tuple[tuple[str, str], ...],
    resume: Resume | None,
    *,
    fresh: bool,
) -> Exchange:
    """Send the request, over a kept connection unless `fresh`. Raises UnreachableError.

    `number` counts the attempts of the request; `resume` is given for the rest of a stream; `more`
    are headers.
    """
    pod = route.head
    headers = [
        ("content-type", "application/json"),
        ("x-request-id", request.request_id),
        ("x-argosy-attempt", str(number)),
        *gateway.headers_for(pod),
    ]
    slo_class = gateway.class_of(request.slo_class)
    if slo_class.priority:
        headers.append(("x-argosy-priority", str(slo_class.priority)))
    if slo_class.slo is not None and pod.role is Role.DECODE:
        headers.append(("x-argosy-tpot-ms", f"{1000 * slo_class.slo.tpot_s:.3f}"))
    headers += more
    if request.stream:
        headers.append(("x-argosy-token-ids", "1"))
    if resume is not None:
        headers.append(("x-argosy-resume", "1"))
        body = resume.body(body)
    return await gateway.connections.post(
        gateway.peer_of(pod),
        request.path,
        headers,
        body,
        connect_s=gateway.config.limits.connect_s,
        fresh=fresh,
    )
