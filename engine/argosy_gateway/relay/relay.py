"""One accepted request on its way: pick pods, send, retry before the first byte, pass on, judge.

Called by `app` with a checked request; writes to the client through ASGI's `send`, to the metrics
through `Fleet`. A token costs one read, one scan (`sse`) and one write: the bytes are the engine's.
"""

import asyncio
import json
import logging
import random
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

from argosy_gateway import logs
from argosy_gateway.accounting.metrics import Metrics
from argosy_gateway.accounting.verdicts import Ending, Outcome, first_token_after_s
from argosy_gateway.config import Config
from argosy_gateway.errors import BrokenError, RequestError, UnreachableError
from argosy_gateway.pods.endpoints import Directory, Role
from argosy_gateway.relay.bodies import Bodies
from argosy_gateway.relay.retries import RetryBudget
from argosy_gateway.routing.admission import PrefillPace, TokensPerChar
from argosy_gateway.routing.pair_health import Group, group
from argosy_gateway.routing.pick import STRATEGIES, InFlight, Reservation, Route, candidates
from argosy_gateway.wire import http1
from argosy_gateway.wire.openai import CompletionRequest, body_of, error_body
from argosy_gateway.wire.sse import StreamScan, Usage, usage_of

__all__ = ["Fleet", "Relay", "Send"]

log = logging.getLogger(__name__)

Send = Callable[[dict[str, Any]], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

_TTFT_HEADER = b"x-argosy-ttft-ms"
# The time of the first token is the engine's share alone: a client would take it for the whole.
_NOT_PASSED_ON = frozenset(
    (
        *b"connection content-length date keep-alive server transfer-encoding x-request-id".split(),
        _TTFT_HEADER,
    )
)


class Fleet:
    """What all requests of this process share."""

    def __init__(self, config: Config, clock: Callable[[], float]) -> None:
        self.config = config
        self.clock = clock
        self.metrics = Metrics(config.slo)
        self.bodies = Bodies(config.limits)
        self.directory = Directory(clock)
        self.in_flight = InFlight()
        self.pace = PrefillPace()
        self.tokens_per_char = TokensPerChar()
        self.strategy = STRATEGIES[config.strategy](random.Random())  # noqa: S311
        self.retries = RetryBudget(config.limits.retry_reserve)
        self.relays: set[Relay] = set()
        self.draining = False

    def groups(self, tried: Collection[str] = (), *, only_healthy: bool = False) -> list[Group]:
        """Groups that a request is best sent to, which has tried these pods (`candidates`)."""
        directory = self.directory
        return group(
            candidates(
                directory.serving(), directory.health, tried=tried, only_healthy=only_healthy
            )
        )

    def role_mode(self) -> str:
        """The label of requests that reached no pod."""
        apart = any(e.role is not Role.COLOCATED for e in self.directory.all())
        return "disaggregated" if apart else "colocated"

    def sweep(self) -> None:
        """End waits for engines that do not answer."""
        now = self.clock()
        for relay in tuple(self.relays):
            relay.check_time(now)


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """An attempt that ended before a byte was passed on."""

    reason: str
    worked: bool = False
    """The engine had begun: such attempts are few, the others are bounded by time."""
    status: int = 503
    headers: tuple[tuple[bytes, bytes], ...] = ()
    body: bytes = b""


class Relay:
    """One request. `run` ends with its verdict in the books, whatever happens."""

    __slots__ = (
        *(
            "_ask",
            "_attempt_no",
            "_began_at",
            "_reservation",
            "_exchange",
            "_extra",
            "_fleet",
            "_send",
        ),
        *(
            "_first_content_at",
            "_last_content_at",
            "_role_mode",
            "_scan",
            "_sent_at",
            "_started",
            "_stopped",
        ),
        *("_predicted", "_tokens", "_task", "_timed_out", "_tried", "_usage"),
    )

    def __init__(self, fleet: Fleet, ask: CompletionRequest, send: Send) -> None:
        self._fleet = fleet
        self._ask = ask
        self._send = send
        self._extra: Headers = [(b"x-request-id", ask.request_id.encode())]
        if fleet.draining:
            self._extra.append((b"connection", b"close"))
        self._attempt_no = 0
        self._began_at = 0.0
        self._tried: set[str] = set()
        self._reservation: Reservation | None = None
        self._predicted: asyncio.TimerHandle | None = None
        self._exchange: http1.Exchange | None = None
        self._scan = StreamScan(hide_usage=ask.hide_usage)
        self._sent_at = 0.0
        self._started = False
        self._stopped = False
        self._timed_out = False
        self._task: asyncio.Task[Any] | None = None
        self._tokens = fleet.tokens_per_char.estimate(ask.prompt_chars)
        self._usage: Usage | None = None
        self._role_mode = fleet.role_mode()
        self._first_content_at: float | None = None
        self._last_content_at: float | None = None

    def stop(self) -> None:
        """The client is gone: close the engine's connection and end."""
        if not self._stopped and self._task is not None:
            self._stopped = True
            self._task.cancel()

    def check_time(self, now: float) -> None:
        """Called by the sweeper: end a wait for the engine that is longer than its limit."""
        limits, exchange = self._fleet.config.limits, self._exchange
        if exchange is not None and exchange.waiting_since is not None:
            first_s = limits.first_token_s if self._ask.stream else limits.whole_answer_s
            limit_s = limits.engine_silence_s if self._started else first_s
            if now - exchange.waiting_since > limit_s:
                self._timed_out = True
                exchange.abort(f"the engine was silent for {limit_s:g} s")

    async def run(self) -> None:
        """Serve the request to its end and count it."""
        fleet, ending = self._fleet, Ending.FAILED
        self._task = asyncio.current_task()
        fleet.relays.add(self)
        fleet.metrics.accepted()
        fleet.retries.request()
        try:
            ending = await self._serve()
        except asyncio.CancelledError:
            if not self._stopped:
                raise
            if self._task is not None:
                self._task.uncancel()
            ending = Ending.OK if self._scan.done else Ending.CLIENT_GONE
        except Exception:
            log.exception("request failed inside the gateway")
            await self._refuse(RequestError(500, "The gateway failed.", type="server_error"))
        finally:
            self._stopped = True  # a late disconnect must not cancel what comes after
            fleet.relays.discard(self)
            self._leave_engine()
            log.debug("ended: %s", ending.value)
            fleet.metrics.ended(self._outcome(ending), role_mode=self._role_mode, usage=self._usage)

    def _outcome(self, ending: Ending) -> Outcome:
        if self._usage is not None:
            tokens: int | None = self._usage.completion_tokens
            self._fleet.tokens_per_char.learn(
                chars=self._ask.prompt_chars, tokens=self._usage.prompt_tokens
            )
        else:
            tokens = self._scan.content_events or None  # an engine without usage: events are close
        return Outcome(
            ending,
            received_at=self._ask.received_at,
            ended_at=self._fleet.clock(),
            first_content_at=self._first_content_at,
            last_content_at=self._last_content_at,
            output_tokens=tokens,
        )

    # Before the first byte: choose, try, choose again.

    async def _serve(self) -> Ending:
        fleet = self._fleet
        worked, waiting_since = 0, fleet.clock()
        failed: FailedAttempt | None = None
        while (route := await self._route(waiting_since, failed)) is not None:
            if failed is not None:
                fleet.metrics.retried(failed.reason)
            result = await self._attempt(route)
            if isinstance(result, Ending):
                return result
            failed = result
            self._leave_engine()
            if result.worked:
                worked, waiting_since = worked + 1, fleet.clock()
                if self._timed_out or worked >= fleet.config.limits.failed_attempts:
                    break
                if not fleet.retries.take():
                    fleet.metrics.retry_refused()
                    break
        return await self._give_up(failed)

    async def _route(self, waiting_since: float, failed: FailedAttempt | None) -> Route | None:
        """A route, waiting for one if need be; None when the queue's time is over.

        After a busy pod only one that is fine is worth the attempt: if there is none, all pods
        were busy a moment ago, and the client is told so at once.
        """
        fleet = self._fleet
        busy = failed is not None and failed.reason == "busy"
        deadline = waiting_since + fleet.config.queue_timeout_s
        while fleet.clock() < deadline:
            groups = fleet.groups(self._tried, only_healthy=busy)
            route = fleet.strategy.choose(groups, fleet.in_flight.loads)
            if route is not None or busy:
                return route
            await fleet.directory.wait_for_change(deadline - fleet.clock())
        return None

    async def _attempt(self, route: Route) -> Ending | FailedAttempt:
        fleet, uid = self._fleet, route.head.uid
        self._role_mode = route.mode
        self._reservation = Reservation(fleet.in_flight, route, self._tokens)
        self._attempt_no += 1
        logs.bind(attempt=self._attempt_no)
        log.debug("ask engine %s; prefill: %s", route.head.name, [p.name for p in route.prefills])
        self._began_at = fleet.clock()
        fleet.directory.health.begins(uid)
        try:
            head = await self._head(route)
            self._reservation.first_token()
            if (failed := self._refusal(route, head)) is not None:
                return failed
            if self._ask.stream and head.status == 200:
                return await self._stream(route, head)
            return await self._whole(route, head)
        except UnreachableError as error:
            absence_s = fleet.directory.health.unreachable(uid, self._began_at)
            log.info("engine %s is unreachable: %s", route.head.name, error)
            if absence_s:
                log.warning("engine %s is left alone for %g s", route.head.name, absence_s)
            self._attempt_no -= 1  # no engine saw it
            return FailedAttempt("connect")
        except BrokenError as error:
            self._failed(route, str(error))
            return FailedAttempt("closed", worked=True)

    async def _head(self, route: Route) -> http1.Head:
        """Send, and wait for the first token's sign. Raises UnreachableError, BrokenError."""
        fleet = self._fleet
        self._exchange = await self._call(route)
        self._sent_at = fleet.clock()
        if fleet.directory.health.reached(route.head.uid):
            fleet.directory.notify()
        if not self._ask.stream:
            self._expect_first_token(route)
        return await self._exchange.head()

    def _expect_first_token(self, route: Route) -> None:
        """An unstreamed answer does not show when its prompt is done: the time is predicted."""
        fleet, reservation = self._fleet, self._reservation
        rate = fleet.pace.tokens_per_s()
        load = fleet.in_flight.loads.get(route.prefiller.uid)
        if rate and load and reservation is not None:
            self._predicted = asyncio.get_running_loop().call_later(
                load.prompt_tokens / rate, reservation.first_token
            )

    def _learn_pace(self, route: Route, first: float) -> None:
        uid = route.prefiller.uid
        self._fleet.pace.prompt(uid, self._tokens, began=self._sent_at, first=first)

    def _refusal(self, route: Route, head: http1.Head) -> FailedAttempt | None:
        """The head's word that another pod is to be asked, where nothing has failed."""
        health, pod = self._fleet.directory.health, route.head
        name = head.get(b"x-argosy-decode-pod") or head.get(b"x-argosy-pod")
        if name != pod.name.encode():
            who = name and name[:80]
            log.warning("at %s:%d answers %r, not engine %s", pod.ip, pod.port, who, pod.name)
            health.wrong_pod(pod.uid)
            return FailedAttempt("wrong_pod")
        if health.identified(pod.uid):
            self._fleet.directory.notify()
        if head.status == 503 and head.get(b"x-argosy-draining"):
            health.draining(pod.uid)
            return FailedAttempt("draining")
        return None

    def _failed(self, route: Route, why: str) -> None:
        """The pod failed the request: it is asked less, and by this request last."""
        self._tried.add(route.head.uid)
        suspension_s = self._fleet.directory.health.failed(route.head.uid, self._began_at)
        log.info("engine %s failed: %s", route.head.name, why)
        if suspension_s:
            log.warning("engine %s is suspended for %g s", route.head.name, suspension_s)

    async def _call(self, route: Route) -> http1.Exchange:
        headers = [
            ("content-type", "application/json"),
            ("x-request-id", self._ask.request_id),
            ("x-argosy-attempt", str(self._attempt_no)),
        ]
        if route.prefills:
            candidates = ",".join(f"{_host(p.ip)}:{p.kv_port}" for p in route.prefills)
            headers.append(("x-argosy-prefill", candidates))
        return await http1.call(
            route.head.ip,
            route.head.port,
            method="POST",
            target=self._ask.path,
            headers=headers,
            body=self._ask.body,
            connect_s=self._fleet.config.limits.connect_s,
        )

    async def _give_up(self, failed: FailedAttempt | None) -> Ending:
        if failed is not None and failed.body:
            await self._pass_on(failed.status, failed.headers, failed.body)
            return Ending.SHED if failed.status == 429 else Ending.FAILED
        if self._timed_out:
            text, status, code = "The engine did not answer in time.", 504, "engine_timeout"
        elif failed is None:
            text, status, code = "No engine is ready.", 503, "no_engine_ready"
        else:
            text, status, code = f"Every engine failed ({failed.reason}).", 503, "engines_failed"
        log.info("given up with status %d: %s", status, text)
        await self._refuse(
            RequestError(status, text, type="server_error", code=code, headers={"retry-after": "1"})
        )
        return Ending.FAILED

    # From the first byte on.

    async def _whole(self, route: Route, head: http1.Head) -> Ending | FailedAttempt:
        """A body that is read whole before a byte of it is passed on: it can be retried."""
        exchange, health = self._exchange, self._fleet.directory.health
        assert exchange is not None
        limit, body = self._fleet.config.limits.answer_bytes, bytearray()
        while data := await exchange.read():
            body += data
            if len(body) > limit:
                raise BrokenError(f"answer larger than {limit} bytes")
        if head.status >= 500:
            self._failed(route, f"status {head.status}")
            return FailedAttempt("server_error", True, head.status, head.headers, bytes(body))
        if head.status == 429:
            health.busy(route.head.uid)
            self._tried.add(route.head.uid)
            return FailedAttempt("busy", False, head.status, head.headers, bytes(body))
        answer = _json_or_none(body)
        if not isinstance(answer, dict):
            # Without a length, the connection's end is all that says that a body is whole.
            raise BrokenError("the answer is not a JSON object")
        if head.status == 200:
            self._usage = usage_of(answer)
            self._last_content_at = now = self._fleet.clock()
            named = head.get(_TTFT_HEADER)
            first_s = first_token_after_s(named, whole_s=now - self._sent_at)
            self._first_content_at = first = self._sent_at + first_s
            if named is not None:
                self._learn_pace(route, first)
            health.succeeded(route.head.uid, self._began_at)
        await self._pass_on(head.status, head.headers, bytes(body))
        return Ending.OK if head.status < 400 else Ending.INVALID

    async def _stream(self, route: Route, head: http1.Head) -> Ending:
        """Pass events on until `[DONE]`. BrokenError leaves only while nothing was sent."""
        exchange = self._exchange
        assert exchange is not None
        self._scan = StreamScan(hide_usage=self._ask.hide_usage)
        self._learn_pace(route, self._fleet.clock())
        try:
            await self._events(head, exchange)
        except BrokenError as error:
            if not self._started:
                raise BrokenError(str(error)) from error
            self._failed(route, str(error))
            await self._break_off(str(error))
            return Ending.FAILED
        finally:
            self._usage = self._scan.usage
        self._fleet.directory.health.succeeded(route.head.uid, self._began_at)
        return Ending.OK

    async def _events(self, head: http1.Head, exchange: http1.Exchange) -> None:
        scan, clock = self._scan, self._fleet.clock
        while not scan.done:
            data = await exchange.read()
            if not data:
                raise BrokenError("the stream ended without [DONE]")
            events = scan.feed(data)
            now = clock()
            if scan.had_content:
                self._last_content_at = now
                if self._first_content_at is None:
                    self._first_content_at = now
            if not events and not scan.done:
                continue
            if not self._started:
                await self._start(200, head.headers)
            await self._send(
                {"type": "http.response.body", "body": events, "more_body": not scan.done}
            )

    async def _break_off(self, why: str) -> None:
        """Mid-stream failure: an error event, then the end, without `[DONE]`."""
        log.warning("stream broke off after bytes were sent: %s", why)
        event = b""
        if not self._scan.error:  # the engine may have sent its own
            text = f"The engine's stream broke off: {why}."
            error = error_body(text, type_="server_error", code="stream_broken")
            event = b"data: " + error + b"\n\n"
        await self._send({"type": "http.response.body", "body": event, "more_body": False})

    async def _refuse(self, error: RequestError) -> None:
        if self._started:
            await self._break_off(error.message)
            return
        headers = [(k.encode(), v.encode()) for k, v in error.headers.items()]
        headers.append((b"content-type", b"application/json"))
        await self._pass_on(error.status, headers, body_of(error))

    async def _pass_on(
        self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes
    ) -> None:
        await self._start(status, headers, (b"content-length", str(len(body)).encode()))
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def _start(
        self, status: int, headers: Iterable[tuple[bytes, bytes]], *more: tuple[bytes, bytes]
    ) -> None:
        self._started = True
        passed = [(k, v) for k, v in headers if k not in _NOT_PASSED_ON]
        await self._send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [*passed, *more, *self._extra],
            }
        )

    def _leave_engine(self) -> None:
        if self._predicted is not None:
            self._predicted.cancel()  # it would hold the reservation until its time
            self._predicted = None
        if self._reservation is not None:
            self._reservation.end()
            self._reservation = None
        if self._exchange is not None:
            self._exchange.abort()
            self._exchange = None


def _json_or_none(body: bytes | bytearray) -> object:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _host(ip: str) -> str:
    return f"[{ip}]" if ":" in ip else ip
