"""One client's tokens, from the engine thread's batch to bytes on the socket.

`TokenSink` is fed on the event loop by the engine's deliveries and drained by the response.

Stop strings cut the text at the first one, even when it arrives in pieces. `Fragments` encodes
everything of a chunk but its text once a request, so that a token costs one JSON string and one
concatenation.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from json.encoder import encode_basestring_ascii as quote
from operator import itemgetter

from argosy_engine.core.handover.messages import FailedPrefill
from argosy_engine.core.limits import Refusal
from argosy_engine.core.request import Emission
from argosy_engine.core.sampling import Likely
from argosy_engine.core.tokenizer import Detokenizer
from argosy_engine.errors import ClientGoneError
from argosy_engine.server.openai.errors import ApiError, to_api_error


class StopScanner:
    """Holds back only what could still become a stop string."""

    __slots__ = ("_held", "_stops", "found", "include")

    def __init__(self, stops: tuple[str, ...], *, include: bool = False) -> None:
        self._stops = stops
        self._held = ""
        self.include = include
        """The text ends with the stop string, not before it."""
        self.found: str | None = None
        """The stop string that ended the text."""

    @property
    def looks(self) -> bool:
        """There are stop strings."""
        return bool(self._stops)

    def push(self, text: str) -> tuple[str, bool]:
        """Text that may go out, and whether a stop string was found after it."""
        if not self._stops:
            return text, False
        text = self._held + text
        found = [(at + len(stop), stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self._held = ""
            # The one that is whole first: pieces of any size give the same text.
            end, self.found = min(found, key=itemgetter(0))
            return text[: end if self.include else end - len(self.found)], True
        keep = max(_overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], False

    def flush(self) -> str:
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest proper prefix of `stop` that ends `text`."""
    at = text.find(stop[0], max(0, len(text) - len(stop) + 1))
    while at >= 0:
        if stop.startswith(text[at:]):
            return len(text) - at
        at = text.find(stop[0], at + 1)
    return 0


DONE = b"data: [DONE]\n\n"


def error_event(error: ApiError) -> bytes:
    """A failure after the status line was sent; the stream then ends without [DONE]."""
    return b"data: " + error.body() + b"\n\n"


class Fragments:
    """Encodes one choice of one request's answer; all choices share id, time and model."""

    __slots__ = (
        "_body",
        "_chat",
        "_close",
        "_content",
        "_head",
        "_index",
        "_text_tail",
        "_usage_tail",
    )

    def __init__(
        self,
        *,
        request_id: str,
        model: str,
        chat: bool,
        include_usage: bool,
        created: int | None = None,
        index: int = 0,
    ) -> None:
        """`created` is that of the stream's earlier chunks, if another engine sent them."""
        self._chat = chat
        self._index = index
        self._body = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{request_id}",
            "object": "chat.completion" if chat else "text_completion",
            "created": int(time.time()) if created is None else created,
            "model": model,
        }
        chunk = dict(self._body, object="chat.completion.chunk" if chat else "text_completion")
        self._head = "data: " + json.dumps(chunk, separators=(",", ":"))[:-1]
        self._usage_tail = ',"usage":null}\n\n' if include_usage else "}\n\n"
        inner = '"delta":{"content":' if chat else '"text":'
        self._close = "}" if chat else ""
        self._content = self._head + f',"choices":[{{"index":{index},' + inner
        end = f'"logprobs":null,"finish_reason":null}}]{self._usage_tail}'
        self._text_tail = f"{self._close},{end}"

    def opening(self, more: str = "", usage: str | None = None) -> str:
        """The chunk before the first content: a chat names the role. `more`: members of it."""
        if not self._chat:
            return ""
        delta = '{"role":"assistant","content":""}'
        choice = f'{{"index":{self._index},"delta":{delta},"logprobs":null,"finish_reason":null}}'
        return f'{self._head},"choices":[{choice}]{more}{self._tail(usage)}'

    def text(self, text: str) -> str:
        """A chunk of text, and nothing beside it."""
        return f"{self._content}{quote(text)}{self._text_tail}"

    def content(
        self, text: str, logprobs: str = "null", more: str = "", usage: str | None = None
    ) -> str:
        """A chunk of text. `more` are further members of the choice, as JSON after a comma;
        `usage` are the counts so far."""
        end = f'"logprobs":{logprobs},"finish_reason":null{more}}}]{self._tail(usage)}'
        return f"{self._content}{quote(text)}{self._close},{end}"

    def delta(
        self, delta: str, logprobs: str = "null", more: str = "", usage: str | None = None
    ) -> str:
        """A chunk of a chat with another delta than content."""
        told = f'"logprobs":{logprobs},"finish_reason":null'
        choice = f'{{"index":{self._index},"delta":{delta},{told}'
        return f'{self._head},"choices":[{choice}{more}}}]{self._tail(usage)}'

    def closing(
        self,
        reason: str,
        stop: str | int | None = None,
        logprobs: str = "null",
        more: str = "",
        usage: str | None = None,
    ) -> str:
        """The chunk with the finish reason; `stop` is the stop text or stop token id."""
        inner = '"delta":{}' if self._chat else '"text":""'
        end = f'"finish_reason":"{reason}","stop_reason":{json.dumps(stop)}{more}'
        choice = f'{{"index":{self._index},{inner},"logprobs":{logprobs},{end}}}'
        return f'{self._head},"choices":[{choice}]{self._tail(usage)}'

    def _tail(self, usage: str | None) -> str:
        return self._usage_tail if usage is None else f',"usage":{usage}}}\n\n'

    def usage(self, usage: dict[str, object]) -> str:
        return f'{self._head},"choices":[],"usage":{json.dumps(usage)}}}\n\n'

    def choice(
        self,
        text: str | None,
        reason: str,
        stop: str | int | None = None,
        logprobs: object = None,
        message: dict[str, object] | None = None,
    ) -> dict[str, object]:
        """One of the choices of a whole answer; `message` are further members of a chat's."""
        choice: dict[str, object] = {"index": self._index, "logprobs": logprobs}
        if self._chat:
            choice["message"] = {
                "role": "assistant",
                "content": text,
                "refusal": None,
                **(message or {}),
            }
        else:
            choice["text"] = text
        return {**choice, "finish_reason": reason, "stop_reason": stop}

    def whole(
        self, choices: list[dict[str, object]], usage: dict[str, object], **more: object
    ) -> bytes:
        """The answer of a request without `stream`; `more` are further members."""
        return json.dumps({**self._body, "choices": choices, "usage": usage, **more}).encode()


HANDOVER_HEADER = "x-argosy-handover"
"""`1`: the caller wants to know, in a comment of the stream, what comes of a handover that outlasts
the head. In the answer `pending`: such a comment follows, if the stream lasts."""

HELD_HEADER = "x-argosy-first-token-held-ms"
"""How long the first token of the answer was held until its sequence joined a batch, in
milliseconds; absent if it was not."""


Reader = Callable[[Sequence[Emission]], int]
"""Sends tokens without waking a task: how many of them, from the first on, it has sent."""


class TokenSink:
    """A mailbox with one reader; all methods run on the event loop's thread."""

    __slots__ = (
        "_events",
        "_failure",
        "_gone",
        "_unsent",
        "_waiter",
        "failed_prefills",
        "first_token_held_s",
        "first_token_s",
        "prefill_pod",
        "pull_whole",
        "reader",
    )

    def __init__(self) -> None:
        self.reader: Reader | None = None
        """Asked first about tokens, until `take` returns."""
        self._events: list[Emission | Refusal] = []
        self._waiter: asyncio.Future[None] | None = None
        self._unsent: Awaitable[None] | None = None
        self._failure: Exception | None = None
        self._gone = False
        self.prefill_pod = ""
        self.failed_prefills: tuple[FailedPrefill, ...] = ()
        self.pull_whole: bool | None = None
        self.first_token_s: float | None = None  # monotonic; when the token could leave
        self.first_token_held_s = 0.0

    def emit(self, *emissions: Emission) -> None:
        """Take tokens that came together, in their order."""
        if self.first_token_s is None and emissions[0].token_id is not None:
            self.first_token_s = time.monotonic()
            self.first_token_held_s = emissions[0].sequence.first_token_held_s
        sent = 0 if self.reader is None else self._send(self.reader, emissions)
        if sent < len(emissions):
            self._events.extend(emissions[sent:])
            self._wake()

    def _send(self, reader: Reader, emissions: Sequence[Emission]) -> int:
        try:
            return reader(emissions)
        except Exception as error:  # the other streams of this delivery have tokens, too
            self.reader, self._failure = None, error
            return 0

    def refuse(self, refusal: Refusal) -> None:
        self._events.append(refusal)
        self._wake()

    def disconnect(self) -> None:
        self._gone = True
        self.reader = None
        self._wake()

    def wait_for(self, unsent: Awaitable[None]) -> None:
        """The reader could not send all at once; `take` awaits the rest."""
        self.reader, self._unsent = None, unsent
        self._wake()

    async def take(self) -> list[Emission | Refusal]:
        """The events since the last call; none only after `wait_for`. Raises ClientGoneError, and
        what the reader or its sending raised. The reader is asked nothing more: what comes while
        the caller sends these must not overtake them."""
        while not self._events and not self._gone and self._unsent is None:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self._unsent is not None:
            unsent, self._unsent = self._unsent, None
            await unsent
        self.reader = None
        if self._failure is not None:
            raise self._failure
        if self._gone:
            raise ClientGoneError
        events, self._events = self._events, []
        return events

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Handover:
    """What an answer says about the handover of its prompt. The engine thread writes the sink."""

    def __init__(self, sink: TokenSink) -> None:
        self._sink = sink
        self._told: int | None = None
        """How many failed candidates the head named, while what comes of the last one is open."""

    def headers(self) -> dict[str, str]:
        """Which prefill engine computed the prompt, and which were asked and failed."""
        named = {}
        if self._sink.prefill_pod:
            named["x-argosy-prefill-pod"] = self._sink.prefill_pod
        if self._sink.failed_prefills:
            named["x-argosy-failed-prefills"] = _join_names(self._sink.failed_prefills)
        if self._sink.first_token_held_s:
            named[HELD_HEADER] = f"{1000 * self._sink.first_token_held_s:.1f}"
        return named

    def head(self, *, tells: bool) -> dict[str, str]:
        """The headers of a head; with `tells` the stream goes on to tell what it leaves open."""
        is_open = self._sink.pull_whole is None  # read first: it is written last
        named = self.headers()
        if tells and is_open and self._sink.prefill_pod:
            named[HANDOVER_HEADER] = "pending"
            self._told = len(self._sink.failed_prefills)
        return named

    def before(self, events: bytes) -> bytes:
        """Events of the stream; before the first with token ids after its end, what came of it."""
        whole = self._sink.pull_whole
        if self._told is None or whole is None or not events.startswith(b": argosy "):
            return events
        failed, self._told = self._sink.failed_prefills[self._told :], None
        said = "whole" if whole else f"failed {_join_names(failed)}"
        return f": argosy-handover {said}\n".encode() + events


def _join_names(failed: Iterable[FailedPrefill]) -> str:
    return ",".join(f"{address}={reason}" for address, reason in failed)


@dataclass(slots=True)
class Piece:
    """The result of one wake-up: texts in order, and the end if it was reached."""

    texts: list[str]
    covered: list[list[int]] = field(default_factory=list)
    """For each text the tokens that it completes; those that gave no text are with the next one."""
    likely: list[list[Likely]] = field(default_factory=list)
    """For each text what is told of these tokens; empty lists if nothing is asked."""
    reason: str | None = None
    stopped_by_text: bool = False
    error: ApiError | None = None


class TextFlow:
    """Tokens to text for one request: detokenise, look for stop strings, count."""

    __slots__ = (
        "_detokenizer",
        "_min_tokens",
        "_scanner",
        "cached_tokens",
        "n_tokens",
        "prompt_likely",
        "prompt_name",
        "replayed",
        "stop",
        "uncovered",
        "uncovered_likely",
    )

    def __init__(
        self, detokenizer: Detokenizer, scanner: StopScanner, min_tokens: int, prompt_name: str
    ) -> None:
        self.prompt_name = prompt_name
        """The member of the body that holds the prompt."""
        self._detokenizer = detokenizer
        self._scanner = scanner
        self._min_tokens = min_tokens
        self.n_tokens = 0
        self.cached_tokens = 0
        self.uncovered: list[int] = []
        """Tokens since the last text: they gave none yet, or ended the answer."""
        self.uncovered_likely: list[Likely] = []
        """What is told of them."""
        self.replayed: list[str] = []
        """Texts that were sent before."""
        self.stop: str | int | None = None
        """The stop text or stop token id that ended the answer; None for the model's own end."""
        self.prompt_likely: Mapping[int, Likely] = {}
        """What is told of the prompt's tokens, by position; complete with the first token."""

    def replay(self, event: Emission) -> str | None:
        """Take a token whose text was sent before; the finish reason if it is the last one."""
        piece = Piece([])
        self._token(event, piece)
        self.replayed += piece.texts
        self.uncovered = []
        return piece.reason

    def first(self, token_id: int) -> str:
        """The text of an answer that has only this token."""
        return self._detokenizer.push(token_id) + self._detokenizer.flush()

    @property
    def looks_for_stops(self) -> bool:
        """A text may end the answer."""
        return self._scanner.looks

    def text_of(self, event: Emission) -> tuple[str, list[int]]:
        """Text and the tokens that it completes, of a token that is not the last; both are empty
        where no character is whole yet. Only if nothing looks for stops or asks what is told."""
        assert event.token_id is not None
        self.n_tokens += 1
        covered = self.uncovered
        covered.append(event.token_id)
        text = self._detokenizer.push(event.token_id)
        if not text:
            return "", []
        self.uncovered = []
        return text, covered

    async def pieces(self, sink: TokenSink) -> AsyncIterator[Piece]:
        """Pieces until one has a reason or an error; ClientGoneError passes through."""
        while True:
            piece = self.piece(await sink.take())
            yield piece
            if piece.reason is not None or piece.error is not None:
                return

    def piece(self, events: list[Emission | Refusal]) -> Piece:
        """What these events make."""
        piece = Piece([])
        for event in events:
            if isinstance(event, Refusal):
                piece.error = to_api_error(event, self.prompt_name)
            elif event.reason == "error":
                piece.error = _failure(event, self.prompt_name)
            else:
                self._token(event, piece)
            if piece.reason is not None or piece.error is not None:
                break
        return piece

    def _token(self, event: Emission, piece: Piece) -> None:
        ends_by_stop_id = event.reason == "stop"
        self.n_tokens += 1
        self.cached_tokens = event.sequence.cached_tokens
        self.prompt_likely = event.sequence.prompt_likely
        text = ""
        if event.token_id is not None:
            self.uncovered.append(event.token_id)
            if event.likely:
                self.uncovered_likely.append(event.likely)
            if self._scanner.include or not ends_by_stop_id:
                text = self._detokenizer.push(event.token_id)
        if event.reason is not None:
            text += self._detokenizer.flush()
        if text:
            text, stopped = self._scan(text)
            if stopped:
                piece.reason, piece.stopped_by_text = "stop", event.reason is None
                self.stop = self._scanner.found
        if event.reason is not None and piece.reason is None:
            text += self._scanner.flush()
            piece.reason = event.reason
            if ends_by_stop_id and event.token_id in event.sequence.sampling.stop_token_ids:
                self.stop = event.token_id
        if text:
            piece.texts.append(text)
            piece.covered.append(self.uncovered)
            piece.likely.append(self.uncovered_likely)
            self.uncovered, self.uncovered_likely = [], []

    def _scan(self, text: str) -> tuple[str, bool]:
        if self.n_tokens < self._min_tokens:
            return text, False
        return self._scanner.push(text)


def _failure(event: Emission, prompt_name: str) -> ApiError:
    match event.code:
        case "context_length_exceeded":
            return ApiError(400, event.message, param=prompt_name, code=event.code)
        case "invalid":
            return ApiError(400, event.message, code=event.code)
        case "queue_timeout" | "kv_transfer_failed":
            headers = {"retry-after": "1"}
            return ApiError(503, event.message, "server_error", None, event.code, headers)
        case _:
            return ApiError(500, event.message, "server_error", None, event.code)
