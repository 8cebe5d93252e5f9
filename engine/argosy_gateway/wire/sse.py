"""Finds content, usage and the end in a stream of completion chunks, without decoding it.

`relay.attempt` feeds the bytes that come from `http1`; what `feed` returns goes to the client. That
is the same bytes, without the usage chunk if the client did not ask for it, and without the token
ids that the engine writes in a comment before an event. Only whole events are passed on, so that
one can be taken out.

Keys are searched as bytes. The model's text cannot imitate a key: inside a JSON string every quote
is escaped, so `"usage"` with bare quotes, or a newline, exists only outside strings.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeGuard

from argosy_gateway.errors import too_long

__all__ = ["StreamScan", "Usage", "check_usage", "read_usage"]

_CONTENT = re.compile(rb'"(?:content|text|reasoning_content|reasoning|refusal|arguments)":\s*"[^"]')
_CHOICE = re.compile(rb'"choices"\s*:\s*\[\s*\{\s*"index"\s*:\s*(\d+)')
_USAGE = re.compile(rb'"usage"\s*:\s*\{')
_ERROR = re.compile(rb'(?:^|\n)data: ?\{\s*"error"\s*:')
_DONE = re.compile(rb"(?:^|\n)data: ?\[DONE\]")
_IDS = re.compile(rb"^: argosy ([0-9,]*)( end)?\n", re.MULTILINE)
_HANDOVER = re.compile(rb"^: argosy-handover ([^\n]*)\n", re.MULTILINE)
_MARK, _CLOSING = b": argosy ", b" end"
_EVENT = re.compile(rb".*?\r?\n\r?\n", re.DOTALL)
_CARRY_LIMIT_BYTES = 4 << 20
"""Longest event; the rest of an unfinished one is kept in memory."""
_MOST_TOKENS = 1 << 24
"""No context is longer."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one request, as the engine reports them."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None = None
    """Prompt tokens that the engine found in its prefix cache; None if it does not say."""


def read_usage(answer: object) -> Usage | None:
    """Usage of a decoded answer or chunk; None if it has none that can be read."""
    usage = answer.get("usage") if isinstance(answer, dict) else None
    if not isinstance(usage, dict):
        return None
    prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens")
    if not _is_count(prompt) or not _is_count(completion):
        return None
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return Usage(prompt, completion, cached if _is_count(cached) else None)


def check_usage(usage: Usage | None, *, answer_bytes: int) -> Usage | None:
    """The usage of an answer of that many bytes; None if it counts more tokens than bytes.

    Each output token would make the TPOT shorter.
    """
    return usage if usage is not None and usage.completion_tokens <= answer_bytes else None


def _is_count(value: object) -> TypeGuard[int]:
    return type(value) is int and 0 <= value <= _MOST_TOKENS  # a bool is an int, too


class StreamScan:
    """The state of one stream."""

    __slots__ = (
        "_by_choice",
        "_carry",
        "content_events",
        "done",
        "error",
        "error_said",
        "had_content",
        "held_error",
        "hide_usage",
        "holds_error",
        "on_handover",
        "on_ids",
        "size",
        "usage",
        "usage_came",
    )

    def __init__(
        self,
        *,
        hide_usage: bool,
        holds_error: bool = False,
        several: bool = False,
        on_ids: Callable[[bytes, bool], None] | None = None,
    ) -> None:
        """`on_ids` gets the token ids of each event, and whether it has the finish reason.
        `several`: the answer has more than one choice."""
        self.hide_usage = hide_usage
        self.on_ids = on_ids
        self.on_handover: Callable[[bytes], object] | None = None
        """Gets what the engine says, beside the ids, of a handover that outlasted its head."""
        self.holds_error = holds_error
        """An error event and what follows it are not passed on: they stay in `held_error`."""
        self.held_error = b""
        self.had_content = False
        """Whether the last feed had text of the model."""
        self.content_events = 0
        """Events with text so far."""
        self._by_choice: dict[bytes, int] | None = {} if several else None
        """The same of each choice, by its index."""
        self.usage: Usage | None = None
        """From the latest chunk that had usage."""
        self.usage_came = False
        """The chunk at the end, which has nothing but the usage of the whole."""
        self.done = False
        """`[DONE]` has come."""
        self.error = False
        """The engine has sent an error event."""
        self.error_said = b""
        """That event's data."""
        self.size = 0
        """Bytes so far."""
        self._carry = b""
        """The unfinished event at the end of the last feed."""

    @property
    def longest_events(self) -> int:
        """Events with text of the choice that has most of them."""
        if self._by_choice is None:
            return self.content_events
        return max(self._by_choice.values(), default=0)

    def goes_on_after(self, data: bytes) -> bool:
        """Whether these are whole events, none of which can end the stream or fail it."""
        return (
            data.endswith(b"\n\n")
            and not self._carry
            and b"[DONE]" not in data
            and b'"error"' not in data
        )

    def feed(self, data: bytes) -> bytes:
        """Take the bytes that arrived; return those to pass on, possibly none.

        Raises RequestError (400) when an event grows beyond 4 MiB.
        """
        self.size += len(data)
        if self._carry:
            data = self._carry + data
            self._carry = b""
        if not data.endswith((b"\n\n", b"\r\n\r\n")):
            data = self._cut(data)
        if self.on_ids is not None:
            data = self._take_ids(data, self.on_ids)
        found = len(_CONTENT.findall(data))
        self.had_content = found > 0
        self.content_events += found
        if found and self._by_choice is not None:
            self._count_by_choice(data, self._by_choice)
        if b'"usage"' in data and _USAGE.search(data):
            data = self._take_usage(data)
        if b'"error"' in data and (error := _ERROR.search(data)):
            self.error = True
            at = data.index(b"data:", error.start())
            self.error_said = data[at:].partition(b"\n\n")[0].removeprefix(b"data:").strip()
            if self.holds_error:
                data, self.held_error = data[:at], data[at:]
        if b"[DONE]" in data and _DONE.search(data):
            self.done = True
        return data

    def resume(self) -> None:
        """Another engine goes on with the stream, at the beginning of an event."""
        self._carry = self.held_error = b""
        self.error = False

    def _take_ids(self, data: bytes, take: Callable[[bytes, bool], None]) -> bytes:
        """Text cannot imitate a comment: in a JSON string a newline is escaped."""
        if data.startswith(_MARK) and data.find(b"\n" + _MARK) < 0:  # nearly always: one event
            end = data.find(b"\n")
            ids, closing = data[len(_MARK) : end], data.endswith(_CLOSING, 0, end)
            take(ids.removesuffix(_CLOSING), closing)
            return data[end + 1 :]
        if b": argosy-handover " in data:
            if self.on_handover is not None:
                for said in _HANDOVER.findall(data):
                    self.on_handover(said)
            data = _HANDOVER.sub(b"", data)
        for ids, end in _IDS.findall(data):
            take(ids, bool(end))
        return _IDS.sub(b"", data)

    def _cut(self, data: bytes) -> bytes:
        """Keep the unfinished event for the next feed; return the finished ones."""
        end = max(data.rfind(b"\n\n") + 2, data.rfind(b"\r\n\r\n") + 4)
        if end < 4:  # rfind gave -1 for both: no event has ended
            end = 0
        self._carry = data[end:]
        if len(self._carry) > _CARRY_LIMIT_BYTES:
            raise too_long("An event of the answer", _CARRY_LIMIT_BYTES)
        return data[:end]

    def _count_by_choice(self, data: bytes, counts: dict[bytes, int]) -> None:
        """An event has one choice, as engines write them. One that names none is of choice 0."""
        for event in _EVENT.findall(data):
            if found := len(_CONTENT.findall(event)):
                named = _CHOICE.search(event)
                index = named[1] if named else b"0"
                counts[index] = counts.get(index, 0) + found

    def _take_usage(self, data: bytes) -> bytes:
        kept: list[bytes] = []
        for event in _EVENT.findall(data):
            if not (_USAGE.search(event) and self._is_usage_chunk(event) and self.hide_usage):
                kept.append(event)
        return b"".join(kept)

    def _is_usage_chunk(self, event: bytes) -> bool:
        """Read the usage in the event; true if it has nothing else (`choices` is empty)."""
        try:
            chunk = json.loads(event.partition(b"data:")[2])
        except (ValueError, RecursionError):
            return False
        if not isinstance(chunk, dict):
            return False
        self.usage = read_usage(chunk) or self.usage
        alone = chunk.get("choices") == [] and self.usage is not None
        self.usage_came = self.usage_came or alone
        return alone
