"""The client's side of one request: what the client is sent, and when.

`relay` makes one Answer for each request and each attempt writes to it, through ASGI's `send`.
Nothing is sent before an engine has answered, so until `started` another engine can take over.
The times and token counts are those of what the client got; they become the request's verdict.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol

from argosy_gateway.errors import RequestError
from argosy_gateway.pods.pairs import FAILED_HEADER, HANDOVER_HEADER
from argosy_gateway.relay.resume import Resume
from argosy_gateway.relay.verdicts import Ending
from argosy_gateway.wire.openai import body_of, error_body, restore_model
from argosy_gateway.wire.sse import StreamScan, Usage

__all__ = [
    "HELD_HEADER",
    "IDS_HEADER",
    "RESUMED_HEADER",
    "TTFT_HEADER",
    "Answer",
    "ClientBody",
    "Headers",
    "Send",
]

log = logging.getLogger(__name__)

Send = Callable[[dict[str, Any]], Awaitable[None]]
Headers = Iterable[tuple[bytes, bytes]]

TTFT_HEADER = b"x-argosy-ttft-ms"
"""The engine's own time to the first token of an unstreamed answer, in milliseconds. It is not
passed on: a client would take it for the whole time, which includes the gateway's share."""

HELD_HEADER = b"x-argosy-first-token-held-ms"
"""How long the engine held the first token until its sequence joined a batch, in milliseconds."""

IDS_HEADER = b"x-argosy-token-ids"
RESUMED_HEADER = b"x-argosy-resumed"
"""How many tokens the engine's stream goes on after."""

_NOT_PASSED_ON = frozenset(
    (
        b"connection",
        b"content-length",
        b"date",
        b"keep-alive",
        b"server",
        b"transfer-encoding",
        b"x-request-id",
        TTFT_HEADER,
        FAILED_HEADER,
        HANDOVER_HEADER,
        HELD_HEADER,
        IDS_HEADER,
        RESUMED_HEADER,
    )
)
"""Headers that belong to the engine's connection, that the gateway sets itself, or that are for it
alone: the failed candidates are addresses of pods."""


class ClientBody(Protocol):
    """The body of a stream's answer, as the server offers it beside ASGI's `send`."""

    @property
    def has_room(self) -> bool:
        """The client is there and reads: a write needs no waiting."""
        ...

    def write(self, part: bytes) -> None:
        """Write a part that is not the last one; the answer must have started."""
        ...


class Answer:
    """What one client gets. It lives across the attempts of its request."""

    __slots__ = (
        "_body",
        "_clock",
        "_counted",
        "_extra",
        "_names",
        "_scan",
        "_send",
        "_stream_headers",
        "first_content_at",
        "held_s",
        "last_content_at",
        "longest_share",
        "resume",
        "second_content_at",
        "started",
        "usage",
    )

    def __init__(
        self,
        send: Send,
        request_id: str,
        *,
        clock: Callable[[], float],
        close: bool,
        resume: Resume,
        body: ClientBody | None = None,
    ) -> None:
        """`close` asks the client to close its connection after this answer. Without `body` every
        part of a stream goes through `send`."""
        self._send = send
        self._body = body
        self._names: tuple[str, str] | None = None
        self._clock = clock
        self._extra = [(b"x-request-id", request_id.encode())]
        if close:
            self._extra.append((b"connection", b"close"))
        self.resume = resume
        """What another engine needs to go on."""
        self._scan: StreamScan | None = None
        self._stream_headers: Headers = ()
        self.started = False
        """The status line is sent: no other engine can answer from the start any more."""
        self.first_content_at: float | None = None
        """Event loop time at which the first content came; None until then."""
        self.second_content_at: float | None = None
        """The same of the second one: a KV transfer delays it."""
        self.held_s = 0.0
        """How long the engine held the first token."""
        self.last_content_at: float | None = None
        self.longest_share = 1.0
        """Of the tokens of a whole answer, those of its longest choice."""
        self._counted: tuple[int, float] | None = None
        """Tokens, and the time of the last text, when `take_tpot` was called last."""
        self.usage: Usage | None = None
        """Token counts as the engine reported them; None until then, or if they are not
        believable."""

    @property
    def stream_ending(self) -> Ending | None:
        """How the engine ended the stream; None if it did not, or if there is no stream.

        A stream with an error event failed, also if `[DONE]` follows. So did one that had neither
        text nor usage: an answer of no text still counts its tokens.
        """
        scan = self._scan
        if scan is None or not (scan.done or scan.error):
            return None
        answered = scan.content_events > 0 or scan.usage is not None
        return Ending.OK if answered and not scan.error else Ending.FAILED

    @property
    def output_tokens(self) -> int | None:
        """From usage, those of the longest choice: the others run beside it. None if unknown.

        An engine without usage sends about one event per token, and none sends more events.
        """
        reported = self.usage.completion_tokens if self.usage is not None else 0
        scan = self._scan
        if scan is None or not scan.content_events:
            return round(reported * self.longest_share) or None
        share = scan.longest_events / scan.content_events
        return max(round(reported * share), scan.longest_events)

    @property
    def interval_s(self) -> float:
        """Mean time between two events with text; 0 before the second one."""
        first, last, scan = self.first_content_at, self.last_content_at, self._scan
        if scan is None or first is None or last is None or scan.content_events < 2:
            return 0.0
        return (last - first) / (scan.content_events - 1)

    def take_tpot(self) -> float | None:
        """Seconds per token since the last call; None if none came. An engine that writes no ids
        sends about one event per token."""
        last, scan, before = self.last_content_at, self._scan, self._counted
        if scan is None or last is None:
            return None
        tokens = max(scan.longest_events, self.resume.count)
        self._counted = tokens, last
        if before is None or tokens <= before[0]:
            return None
        return (last - before[1]) / (tokens - before[0])

    def begin_stream(self, scan: StreamScan, headers: Headers) -> None:
        """A stream's head has come. Nothing is sent before its first event."""
        self._scan, self._stream_headers = scan, headers

    def expect_model(self, own: str | None, asked: str) -> None:
        """The engine calls the model `own`, and the client `asked` for it; None: it says what it is
        asked."""
        self._names = None if own is None or own == asked else (own, asked)

    def continue_stream(self) -> StreamScan:
        """Another engine goes on with the stream that began; the scan of all its parts."""
        scan = self._scan
        assert scan is not None
        self._counted = None
        scan.resume()
        return scan

    async def finish(self) -> bool:
        """Send `[DONE]` if that is all that the client still misses."""
        scan = self._scan
        if scan is None or not self.resume.closed or not scan.usage_came:
            return False
        scan.done, scan.error = True, False
        await self.pass_on(b"data: [DONE]\n\n")
        return True

    async def pass_on(self, events: bytes) -> None:
        """Send what the scan of the stream let through; it may be nothing."""
        scan = self._scan
        assert scan is not None
        self._note_content(scan)
        if not events and not scan.done:
            return
        if self._names is not None:
            events = restore_model(events, *self._names)
        if not self.started:
            self.resume.read_created(events)
            await self._start(200, self._stream_headers)
        await self._send({"type": "http.response.body", "body": events, "more_body": not scan.done})

    def pass_on_now(self, data: bytes) -> bool:
        """Pass on bytes of the stream without waiting, if that is possible; else False.

        It is for events in the middle of a stream, while the client reads. The first event, the
        last and a slow client need `pass_on`.
        """
        scan, body = self._scan, self._body
        if scan is None or body is None or not self.started or not body.has_room:
            return False
        if not scan.goes_on_after(data):
            return False
        events = scan.feed(data)
        self._note_content(scan)
        if events:
            body.write(events if self._names is None else restore_model(events, *self._names))
        return True

    async def send_whole(self, status: int, headers: Headers, body: bytes) -> None:
        """An answer in one piece."""
        if self._names is not None:
            body = restore_model(body, *self._names)
        await self._start(status, headers, (b"content-length", str(len(body)).encode()))
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def send_error(self, error: RequestError) -> None:
        """An error of the gateway; in a stream that has begun, as its last event."""
        if self.started:
            await self.break_off(error.message)
            return
        headers = [(k.encode(), v.encode()) for k, v in error.headers.items()]
        headers.append((b"content-type", b"application/json"))
        await self.send_whole(error.status, headers, body_of(error))

    async def break_off(self, reason: str) -> None:
        """End a stream that failed after it began: an error event, and no `[DONE]`."""
        log.warning("stream broke off after bytes were sent: %s", reason)
        event = b"" if self._scan is None else self._scan.held_error  # the engine's own
        if self._scan is None or not self._scan.error:
            text = f"The engine's stream broke off: {reason}."
            error = error_body(text, type_="server_error", code="stream_broken")
            event = b"data: " + error + b"\n\n"
        await self._send({"type": "http.response.body", "body": event, "more_body": False})

    async def refuse(self) -> None:
        """The engine's stream ended with an error that is the client's: what it said, as the last
        event, or as an answer of its own if nothing was sent."""
        assert self._scan is not None
        if self.started:
            event = self._scan.held_error
            await self._send({"type": "http.response.body", "body": event, "more_body": False})
        else:
            of_json = ((b"content-type", b"application/json"),)
            await self.send_whole(400, of_json, self._scan.error_said)

    def _note_content(self, scan: StreamScan) -> None:
        if scan.had_content:
            self.last_content_at = now = self._clock()
            if self.first_content_at is None:
                self.first_content_at = now
            elif self.second_content_at is None:
                self.second_content_at = now

    async def _start(self, status: int, headers: Headers, *more: tuple[bytes, bytes]) -> None:
        self.started = True
        passed = [(k, v) for k, v in headers if k not in _NOT_PASSED_ON]
        await self._send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [*passed, *more, *self._extra],
            }
        )
