"""One client's tokens, from the engine thread's batch to bytes on the socket.

`TokenSink` is fed on the event loop by the engine's deliveries and drained by the response.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field

from argosy_engine.core.handover.messages import FailedPrefill
from argosy_engine.core.limits import Refusal
from argosy_engine.core.request import Emission
from argosy_engine.core.sampling import Likely
from argosy_engine.core.tokenizer import Detokenizer
from argosy_engine.errors import ClientGoneError
from argosy_engine.server.openai.errors import ApiError, refused
from argosy_engine.text.stops import StopScanner

__all__ = ["HANDOVER_HEADER", "HELD_HEADER", "Handover", "Piece", "TextFlow", "TokenSink"]

HANDOVER_HEADER = "x-argosy-handover"
"""`1`: the caller wants to know, in a comment of the stream, what comes of a handover that outlasts
the head. In the answer `pending`: such a comment follows, if the stream lasts."""

HELD_HEADER = "x-argosy-first-token-held-ms"
"""How long the first token of the answer was held until its sequence joined a batch, in
milliseconds; absent if it was not."""


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
        self.reader: Callable[[Emission], bool] | None = None
        """Asked first about each token, until `take` returns; True: it has sent it, and no
        task is woken."""
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

    def emit(self, emission: Emission) -> None:
        if self.first_token_s is None and emission.token_id is not None:
            self.first_token_s = time.monotonic()
            self.first_token_held_s = emission.sequence.first_token_held_s
        if self.reader is not None and self._is_read(self.reader, emission):
            return
        self._events.append(emission)
        self._wake()

    def _is_read(self, reader: Callable[[Emission], bool], emission: Emission) -> bool:
        try:
            return reader(emission)
        except Exception as error:  # the other streams of this delivery have tokens, too
            self.reader, self._failure = None, error
            return False

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
            named["x-argosy-failed-prefills"] = _named(self._sink.failed_prefills)
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
        said = "whole" if whole else f"failed {_named(failed)}"
        return f": argosy-handover {said}\n".encode() + events


def _named(failed: Iterable[FailedPrefill]) -> str:
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
                piece.error = refused(event, self.prompt_name)
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
