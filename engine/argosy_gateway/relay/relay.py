"""One accepted request: which pods it is sent to, when it is sent again, how it ends.

`server.app` calls `Relay.run` with a checked request. `attempt` calls the engines, `answer` writes
to the client; this module only decides. The outcome goes to `relay.metrics`.
A request is sent again while the client has no byte of an answer. A stream that has begun goes on
at another engine, if the engine that is gone wrote token ids (`resume`).
"""

import asyncio
import logging
from typing import Any

from argosy import logs
from argosy_gateway.errors import RequestError, ShortageError, out_of_descriptors, overloaded
from argosy_gateway.pods.endpoints import Role
from argosy_gateway.relay.answer import Answer, ClientBody, Send
from argosy_gateway.relay.attempt import Attempt, FailedAttempt
from argosy_gateway.relay.gateway import Gateway
from argosy_gateway.relay.handover.argosy import StreamKv
from argosy_gateway.relay.metrics import ResumeReason, RetryReason
from argosy_gateway.relay.resume import Resume
from argosy_gateway.relay.verdicts import Ending, Outcome, Path
from argosy_gateway.routing.line import Waiting
from argosy_gateway.routing.roster import Route
from argosy_gateway.routing.strategies import RoutingRequest
from argosy_gateway.wire.openai import CompletionRequest

__all__ = ["Relay"]

log = logging.getLogger(__name__)

_BUSY_S = 0.25
"""Pause of a stream whose next engine is busy; `pods.health` tries others first for as long."""


class Relay:
    """One request. `run` counts its outcome exactly once."""

    __slots__ = (
        "_answer",
        "_attempt",
        "_canary",
        "_faults",
        "_gateway",
        "_kv",
        "_path",
        "_reached",
        "_request",
        "_route",
        "_routing_request",
        "_stopped",
        "_task",
        "_tried",
    )

    def __init__(
        self,
        gateway: Gateway,
        request: CompletionRequest,
        send: Send,
        body: ClientBody | None = None,
    ) -> None:
        self._gateway = gateway
        self._request = request
        resume = Resume(gateway.id_budget, gateway.config.limits.resume_ids_bytes)
        self._answer = Answer(
            send,
            request.request_id,
            clock=gateway.clock,
            close=gateway.draining,
            resume=resume,
            body=body,
        )
        self._routing_request = RoutingRequest(
            request_id=request.request_id,
            model=request.model,
            stream=request.stream,
            prompt_tokens=request.prompt_tokens,
            prompt_start=request.prompt_start,
            cache_key=request.cache_key,
            prefixes=request.prefixes,
            prompt_chars=request.prompt_chars,
        )
        self._path = Path(request.received_at)
        self._attempt: Attempt | None = None
        self._reached = 0
        """Attempts that reached an engine."""
        self._tried: set[str] = set()
        """Uids of the pods that failed this request or were busy: they are chosen last."""
        self._route: Route | None = None
        """Of the latest attempt; None before the first."""
        self._kv: StreamKv | None = None
        """The KV of the stream, at the decode pod that it has left."""
        self._canary = False
        """The request is the canary's."""
        self._faults: set[str] = set()
        """Revisions of pods that failed this request."""
        self._task: asyncio.Task[Any] | None = None
        self._stopped = False

    def stop(self) -> None:
        """The client is gone: close the engine's connection and end."""
        if not self._stopped and self._task is not None:
            self._stopped = True
            self._task.cancel()

    def check_time(self, now: float) -> None:
        """Called by the sweeper; see `Attempt.check_time`."""
        if self._attempt is not None:
            self._attempt.check_time(now)
            if self._attempt.pod_is_silent(now) and self._can_go_elsewhere():
                self._attempt.leave()
            elif self._gateway.config.drain_mode == "migrate" and self._attempt.pod_drains:
                self._gateway.moves.ask(self._answer, self._move)

    def take_tpot(self) -> tuple[str, float] | None:
        """Uid of the decode pod, and the stream's seconds per token since the last call; None if no
        token came, or from another pod."""
        tpot_s = self._answer.take_tpot()
        if tpot_s is None or self._attempt is None or self._attempt.head.role is not Role.DECODE:
            return None
        return self._attempt.head.uid, tpot_s

    def _move(self) -> bool:
        """Leave a pod that drains, if another one can serve the rest; whether it has left."""
        attempt = self._attempt
        if attempt is None or not attempt.pod_drains or not self._can_go_elsewhere():
            return False
        attempt.move()
        return True

    def _can_go_elsewhere(self) -> bool:
        answer = self._answer
        if answer.started and not answer.resume.possible:
            return False
        adapter = self._request.adapter
        return bool(self._gateway.groups(self._tried, revision=self._revision, adapter=adapter))

    def _end_kv(self) -> None:
        if self._kv is not None:
            self._kv.end()

    @property
    def _revision(self) -> str | None:
        """The revision of the pods that may serve the request; None while any may."""
        return self._answer.resume.revision if self._answer.started else None

    async def run(self) -> None:
        """Serve the request to its end and count it."""
        gateway, ending = self._gateway, Ending.FAILED
        self._task = asyncio.current_task()
        gateway.relays.add(self)
        gateway.metrics.count_accepted(self._request.model)
        gateway.retries.count_request()
        self._canary = gateway.take_turn(self._request.adapter)
        try:
            ending = await self._serve()
        except asyncio.CancelledError:
            if not self._stopped:
                raise
            if self._task is not None:
                self._task.uncancel()  # `stop` cancelled it, to get here
            ending = self._answer.stream_ending or Ending.CLIENT_GONE
        except Exception:
            log.exception("request failed inside the gateway")
            await self._answer.send_error(
                RequestError(500, "The gateway failed.", type="server_error")
            )
        finally:
            self._stopped = True  # a late disconnect must not cancel what follows
            gateway.relays.discard(self)
            gateway.mark_active()
            gateway.moves.end(self._answer)
            self._end_kv()
            self._answer.resume.end()
            log.debug("ended: %s", ending.value)
            gateway.metrics.count_ended(
                self._outcome(ending),
                role_mode=self._route.mode if self._route else gateway.role_mode(),
                revision=self._route.head.revision if self._route else "",
                faults=self._faults,
                usage=self._answer.usage,
                slo_class=self._request.slo_class,
                course=self._path.course(
                    gateway.clock(),
                    without_pods_at=gateway.without_pods_at,
                    first_content_at=self._answer.first_content_at,
                    second_content_at=self._answer.second_content_at,
                ),
            )

    async def _serve(self) -> Ending:
        """Try one pod after the other until the client has an answer or the limits are reached.

        `Gateway.patience_s` limits the wait for a pod. `failed_attempts` and the retry budget limit
        attempts that failed after an engine had begun the work, also the rest of a stream.
        """
        gateway = self._gateway
        failed_on: list[str] = []
        waiting_since = gateway.clock()
        failed: FailedAttempt | None = None
        while (route := await self._choose(waiting_since, failed)) is not None:
            if failed is not None and not self._answer.started:
                gateway.metrics.count_retry(failed.reason)
            try:
                result = await self._try(route)
            except ShortageError as error:
                log.error("no engine can be called: %s", error)
                return await self._end_with(out_of_descriptors())
            if isinstance(result, Ending):
                return result
            failed = result
            self._canary = False  # what it failed is served elsewhere
            if self._answer.started and await self._answer.finish():
                return Ending.OK
            if self._answer.started and not await self._may_go_on(failed):
                break
            if failed.moved:
                waiting_since = gateway.clock()
            if failed.worked:
                failed_on.append(route.head.uid)
                waiting_since = gateway.clock()
                if len(failed_on) >= gateway.config.limits.failed_attempts:
                    for uid in failed_on:
                        gateway.directory.health.pardon(uid)
                    break
                if failed.timed_out and not self._answer.started:  # it may still compute
                    break
                if not gateway.retries.take():
                    gateway.metrics.count_refused_retry()
                    break
        return await self._give_up(failed)

    async def _may_go_on(self, failed: FailedAttempt) -> bool:
        """Whether another engine can go on with the stream. Waits a moment after a busy one."""
        resume = self._answer.resume
        if failed.timed_out or failed.reason is RetryReason.SILENT:
            resume.interrupt(ResumeReason.SILENT)
        elif failed.moved:
            resume.interrupt(ResumeReason.DRAINING)
        elif failed.reason is RetryReason.SERVER_ERROR:
            resume.interrupt(ResumeReason.ERROR)
        else:
            resume.interrupt(ResumeReason.CLOSED)
        if failed.reason is RetryReason.BUSY:
            await self._gateway.directory.wait_for_change(_BUSY_S)
        return resume.possible

    async def _choose(self, waiting_since: float, failed: FailedAttempt | None) -> Route | None:
        """The pods of the next attempt. Waits for them for `patience_s`, then returns None.

        After a busy pod only a healthy one is tried. If there is none, all pods were busy a moment
        ago: the result is None without waiting, and the client gets the 429.
        """
        gateway, adapter = self._gateway, self._request.adapter
        if failed is None and (queue := gateway.queue_of(canary=self._canary)) is not None:
            found = await queue.route(self._waiting(), gateway.patience_s())
            if found is None or not adapter or adapter in found.head.adapters:
                return found
        begun, revision = self._answer.started, self._revision
        busy = failed is not None and failed.reason is RetryReason.BUSY and not begun
        deadline = waiting_since + gateway.patience_s()
        while gateway.clock() < deadline:
            groups = gateway.groups(
                self._tried,
                only_healthy=busy,
                revision=revision,
                adapter=adapter,
                canary=self._canary,
            )
            route = gateway.strategy.choose(self._routing_request, groups, gateway.view)
            if route is not None or busy:
                return route
            await gateway.directory.wait_for_change(deadline - gateway.clock())
        return None

    def _waiting(self) -> Waiting:
        """This request as the queue sees it."""
        request = self._request
        slo_class = self._gateway.class_of(request.slo_class)
        return Waiting(
            self._routing_request,
            request.received_at,
            slo_class.slo.ttft_s if slo_class.slo is not None else float("inf"),
            slo_class.priority,
            request.flow,
        )

    async def _try(self, route: Route) -> Ending | FailedAttempt:
        """One attempt on this route."""
        number = self._reached + 1
        self._route = route
        logs.bind(attempt=number)
        self._gateway.report_sent(self._routing_request, route)
        with Attempt(
            self._gateway, self._request, route, number, self._answer, self._kv
        ) as attempt:
            self._attempt = attempt
            begun = self._answer.started
            result = await attempt.run()
            self._path.add_attempt(
                attempt.sent_at,
                own_share=attempt.own_share,
                handed_over=bool(route.prefills),
                goes_on=begun,
            )
        if attempt.lost_kv or (isinstance(result, FailedAttempt) and result.is_fault):
            self._faults.add(route.head.revision)
        if isinstance(result, FailedAttempt):
            if result.worked or result.moved:  # otherwise no engine has asked for the KV yet
                self._end_kv()
                self._kv = result.kv
            if result.reason is RetryReason.CONNECT:
                return result  # no engine has seen it: the next attempt has the same number
            if result.worked or result.moved or result.reason is RetryReason.BUSY:
                self._tried.add(route.head.uid)
        else:
            self._gateway.learn(self._routing_request, route, self._answer.usage)
        self._reached = number
        return result

    async def _give_up(self, failed: FailedAttempt | None) -> Ending:
        """Send the last engine's own error if it gave one, else an error of the gateway."""
        if failed is not None and self._answer.started:
            await self._answer.break_off(failed.detail)
            return Ending.FAILED
        if failed is not None and failed.body:
            await self._answer.send_whole(failed.status, failed.headers, failed.body)
            return Ending.SHED if failed.status == 429 else Ending.FAILED
        if failed is None and self._gateway.queue is not None and self._gateway.groups():
            await self._answer.send_error(overloaded(1.0))
            return Ending.SHED
        if failed is None:
            text = "No engine is ready; try again later."
            status, code = 503, "no_engine_ready"
        elif failed.timed_out:
            text = "The engine did not answer in time; a shorter request may succeed."
            status, code = 504, "engine_timeout"
        else:
            text = f"Every engine failed ({failed.reason}); try again later."
            status, code = 503, "engines_failed"
        log.info("given up with status %d: %s", status, text)
        await self._answer.send_error(
            RequestError(status, text, type="server_error", code=code, headers={"retry-after": "1"})
        )
        return Ending.FAILED

    async def _end_with(self, error: RequestError) -> Ending:
        if self._answer.started:
            await self._answer.break_off(error.message)
        else:
            await self._answer.send_error(error)
        return Ending.FAILED

    def _outcome(self, ending: Ending) -> Outcome:
        gateway, answer = self._gateway, self._answer
        if answer.usage is not None:
            gateway.tokens_per_char.learn(
                chars=self._request.prompt_chars, tokens=answer.usage.prompt_tokens
            )
        return Outcome(
            ending,
            received_at=self._request.received_at,
            ended_at=gateway.clock(),
            first_content_at=answer.first_content_at,
            last_content_at=answer.last_content_at,
            output_tokens=answer.output_tokens,
            held_s=answer.held_s,
        )
