"""One request's answer from submit to last byte: one choice of text, or several beside each other.

The status line is sent only when the first token exists: a failure before it is a status that the
gateway may retry, a failure after it is an error event and an end without [DONE].
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Generator, Iterable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

from starlette.types import Message, Receive, Send

from argosy_engine.core.request import Emission
from argosy_engine.runtime.loop import EngineLoop
from argosy_engine.server.openai.answer import DONE, Handover, Piece, TokenSink, error_event
from argosy_engine.server.openai.choice import Choice, merge_pieces
from argosy_engine.server.openai.errors import ApiError, to_api_error
from argosy_engine.server.openai.request import Parsed
from argosy_engine.server.openai.resume import IDS_HEADER, RESUMED_HEADER, Asked, Sent, comment


class Unsent:
    """A `send` that has begun outside of a task, and waits: it is awaited once."""

    def __init__(self, waits_for: object, rest: Generator[Any, Any, None]) -> None:
        self._waits_for, self._rest = waits_for, rest

    def __await__(self) -> Generator[Any, Any, None]:
        try:
            yield self._waits_for
        except BaseException:
            self._rest.close()
            raise
        yield from self._rest


def send_now(send: Send, message: Message) -> Unsent | None:
    """Send without a task; None if the server took the message at once.

    A server waits only while a client reads slower than it is sent to.
    """
    sending = send(message).__await__()
    try:
        waits_for = next(sending)
    except StopIteration:
        return None
    return Unsent(waits_for, sending)


def body(data: bytes, *, more: bool) -> Message:
    """A part of an answer's body."""
    return {"type": "http.response.body", "body": data, "more_body": more}


async def send_whole(
    send: Send, status: int, data: bytes, headers: dict[str, str] | None = None
) -> None:
    """An answer in one piece, of JSON."""
    fields = {"content-type": "application/json", "content-length": str(len(data))}
    fields.update(headers or {})
    raw = [(name.encode(), value.encode()) for name, value in fields.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send(body(data, more=False))


class Reply:
    """Made for each request that was read; `run` answers it."""

    def __init__(
        self,
        loop: EngineLoop,
        parsed: Parsed,
        choices: list[Choice],
        public_id: str,
        asked: Asked,
        sent: Sent | None = None,
    ) -> None:
        """`sent` is what the client has from an earlier engine."""
        self._loop = loop
        self._parsed = parsed
        self._choices = choices
        self._first = choices[0]
        self._public_id = public_id
        self._asked = asked
        self._sent = sent
        self._tells_ids = asked.token_ids and parsed.stream and parsed.resumable
        self._handover = Handover(self._first.sink)
        self._started = asyncio.Queue[Choice]()
        self._is_open = False
        """The head of a stream was sent."""
        self._first_observed = False

    async def run_ended(self, reason: str, send: Send) -> None:
        """The earlier engine was lost after its last text: only the end is missing."""
        await send(self._start(b"text/event-stream; charset=utf-8"))
        closing = self._closing(self._first, Piece([], reason=reason))
        await send(body((closing + self._end()).encode() + DONE, more=False))

    async def run(self, receive: Receive, send: Send, send_body: Send | None = None) -> None:
        """ApiError before the first byte; ClientGoneError. `send_body` may be shorter than `send`
        for what follows the head of a stream."""
        watcher: asyncio.Task[None] | None = None
        try:
            for choice in self._choices[:: self._parsed.form.best_of]:
                self._submit(choice)  # the others of its prompt follow when its KV is cached
            watcher = asyncio.create_task(self._watch(receive))
            await (
                self._stream(send, send_body or send) if self._parsed.stream else self._whole(send)
            )
        finally:
            self._first.sink.reader = None
            if watcher is not None:
                watcher.cancel()
            for choice in self._choices:
                if choice.submitted and not choice.ended:
                    self._loop.abort(choice.request.request_id)
            self._observe_answers()

    def _submit(self, choice: Choice) -> None:
        refusal = self._loop.submit(choice.request, choice.sink)
        if refusal is not None:
            raise to_api_error(refusal, self._parsed.prompt_name)
        choice.submitted = True
        self._started.put_nowait(choice)

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        for choice in self._choices:
            choice.sink.disconnect()

    async def _pieces(self) -> AsyncGenerator[tuple[Choice, Piece], None]:
        """Of all choices; raises the ApiError of one that failed."""
        if len(self._choices) == 1:
            async for piece in self._first.flow.pieces(self._first.sink):
                yield self._first, self._note_end(self._first, piece)
            return
        async with aclosing(merge_pieces(self._choices, self._started)) as pieces:
            async for choice, piece in pieces:
                self._note_end(choice, piece)
                if choice.shares_its_prompt:
                    while choice.followers:
                        self._submit(choice.followers.pop(0))
                yield choice, piece

    def _note_end(self, choice: Choice, piece: Piece) -> Piece:
        if piece.error is not None:
            choice.ended = True
        elif piece.reason is not None:
            choice.ended = True
            if piece.stopped_by_text:
                self._loop.stop_here(choice.request.request_id)
        return piece

    async def _stream(self, send: Send, send_body: Send) -> None:
        left = len(self._choices)
        straight = left == 1 and self._first.tokens_are_chunks
        try:
            async with aclosing(self._pieces()) as pieces:
                async for choice, piece in pieces:
                    left -= piece.reason is not None
                    await self._send_piece(choice, piece, send, last=not left)
                    self._observe_first_token(time.monotonic())
                    if not left or piece.error is not None:
                        return
                    if straight:
                        self._first.sink.reader = partial(self._send_tokens, send_body)
        except ApiError as error:
            if not self._is_open:
                error.headers |= self._handover.headers()
                raise
            await send(body(error_event(error), more=False))

    def _send_tokens(self, send: Send, events: Sequence[Emission]) -> int:
        """Send tokens' chunks in the call that brings the tokens: to wake a task for each costs
        more than all the rest. Returns how many are dealt with; ends and failures are the task's.
        """
        choice, chunks, dealt_with = self._first, "", 0
        for event in events:
            if event.reason is not None or event.token_id is None:
                break
            dealt_with += 1
            text, ids = choice.flow.text_of(event)
            if text:
                chunk = choice.fragments.text(text)
                chunks += comment(ids) + chunk if self._tells_ids else chunk
        if chunks:
            unsent = send_now(send, body(self._handover.before(chunks.encode()), more=True))
            if unsent is not None:
                choice.sink.wait_for(unsent)
        return dealt_with

    async def _send_piece(self, choice: Choice, piece: Piece, send: Send, *, last: bool) -> None:
        if not self._is_open:
            if piece.error is not None:
                raise piece.error
            self._is_open = True
            await send(self._start(b"text/event-stream; charset=utf-8"))
        events = "".join(self._events(choice, piece)).encode()
        if piece.error is not None:
            events += error_event(piece.error)
        elif last:
            events += self._end().encode() + DONE
        if events:
            over = last or piece.error is not None
            await send(body(self._handover.before(events), more=not over))

    def _events(self, choice: Choice, piece: Piece) -> Iterable[str]:
        if not choice.opened:
            opening = choice.opening()
            if self._sent is None:
                yield opening
        for chunk, ids in choice.chunks(piece):
            yield comment(ids) + chunk if self._tells_ids and ids else chunk
        if piece.reason is not None:
            yield self._closing(choice, piece)

    def _closing(self, choice: Choice, piece: Piece) -> str:
        text, ids = choice.closing(piece)
        if self._tells_ids:
            text = comment(ids, closing=True) + text
        return "" if self._sent is not None and self._sent.closed else text

    def _end(self) -> str:
        if not self._parsed.include_usage:
            return ""
        return self._first.fragments.usage(self._usage())

    async def _whole(self, send: Send) -> None:
        async for choice, piece in self._pieces():
            if piece.error is not None:
                piece.error.headers |= self._handover.headers()
                raise piece.error
            choice.take(piece)
            self._observe_first_token(self._first.sink.first_token_s)
        more = {} if not self._parsed.chat else self._of_the_prompt()
        choices = [choice.whole() for choice in self._best()]
        for index, each in enumerate(choices):
            each["index"] = index
        data = self._first.fragments.whole(choices, self._usage(), **more)
        await send(self._start(b"application/json", length=len(data)))
        await send(body(data, more=False))

    def _best(self) -> list[Choice]:
        """All choices, or of each prompt the likeliest `n`."""
        form = self._parsed.form
        if form.best_of == form.n:
            return self._choices
        kept: list[Choice] = []
        for at in range(0, len(self._choices), form.best_of):
            some = self._choices[at : at + form.best_of]
            kept += sorted(some, key=lambda choice: -choice.mean_logprob)[: form.n]
        return kept

    def _of_the_prompt(self) -> dict[str, object]:
        return self._first.rendering.of_the_prompt(self._first.flow.prompt_likely)

    def _observe_answers(self) -> None:
        """Of each prompt whose choices have all ended."""
        form = self._parsed.form
        for at in range(0, len(self._choices), form.best_of):
            some = self._choices[at : at + form.best_of]
            if all(choice.ended for choice in some):
                longest = max(choice.flow.n_tokens for choice in some)
                self._loop.metrics.observe_answer(n=form.n, longest=longest)

    def _observe_first_token(self, at_s: float | None) -> None:
        """Once per answer: when it was written, or could have been in an unstreamed answer."""
        if at_s is None or self._first_observed:
            return
        self._first_observed = True
        self._loop.metrics.observe_first_token(at_s - self._first.request.arrival_s)

    def _usage(self) -> dict[str, object]:
        """Each prompt once, each generated token once."""
        prompt = sum(len(one.token_ids) for one in self._parsed.prompts)
        output = sum(choice.flow.n_tokens for choice in self._choices)
        if self._parsed.form.without_output:
            output = 0
        per_prompt = self._parsed.form.best_of
        cached = sum(choice.flow.cached_tokens for choice in self._choices[::per_prompt])
        return {
            "prompt_tokens": prompt,
            "completion_tokens": output,
            "total_tokens": prompt + output,
            "prompt_tokens_details": {"cached_tokens": min(cached, prompt)},
        }

    def _ttft(self) -> dict[str, str]:
        """Milliseconds from accept to the first token, which an unstreamed answer does not show."""
        sinks: list[TokenSink] = [choice.sink for choice in self._choices]
        firsts = [sink.first_token_s for sink in sinks if sink.first_token_s is not None]
        if not firsts:
            return {}
        passed_s = min(firsts) - self._first.request.arrival_s
        return {"x-argosy-ttft-ms": f"{1000 * passed_s:.1f}"}

    def _start(self, content_type: bytes, *, length: int | None = None) -> Message:
        headers = [(b"content-type", content_type), (b"cache-control", b"no-cache")]
        if length is not None:
            headers.append((b"content-length", str(length).encode()))
        tells = self._tells_ids and self._asked.handover
        named = {"x-request-id": self._public_id, **self._handover.head(tells=tells)}
        if self._tells_ids:
            named[IDS_HEADER] = "1"
        if self._sent is not None:
            named[RESUMED_HEADER] = str(len(self._sent.token_ids))
        if length is not None:
            named |= self._ttft()
        headers.extend((name.encode(), value.encode()) for name, value in named.items())
        return {"type": "http.response.start", "status": 200, "headers": headers}
