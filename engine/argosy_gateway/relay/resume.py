"""What another engine needs to go on with a stream (designs/0010-streams-survive.md). Pure.

Each request has one Resume, in its Answer. `wire.sse` hands over the token ids that the engine
writes beside the text. When the engine is gone, `attempt` sends the client's request again, with
those ids in its body.
"""

import re

from argosy_gateway.relay.metrics import ResumeReason

__all__ = ["IdBudget", "Resume"]

_CREATED = re.compile(rb'"created":\s*(\d{1,12})\b')


class IdBudget:
    """How many bytes of token ids all streams of this process keep."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self.held = 0
        """Bytes."""

    def take(self, size: int) -> bool:
        """Whether there is room for that many bytes more; if so, they are counted."""
        if self.held + size > self._most:
            return False
        self.held += size
        return True

    def give_back(self, size: int) -> None:
        """These bytes are no longer kept."""
        self.held -= size


class Resume:
    """What the client of one stream has."""

    __slots__ = (
        "_closed",
        "_created",
        "_ids",
        "_kept",
        "_most",
        "_possible",
        "_reason",
        "revision",
    )

    def __init__(self, kept: IdBudget, most_bytes: int) -> None:
        """`most_bytes` bounds the ids of this stream."""
        self._kept, self._most = kept, most_bytes
        self._ids = bytearray()
        self._created = 0
        self._closed = False
        self._possible = False
        self.revision: str | None = None
        """Revision of the pods that may go on; None before the stream has begun."""
        self._reason: ResumeReason | None = None

    @property
    def possible(self) -> bool:
        """Another engine can go on: the ids of all text that the client has are known."""
        return self._possible

    @property
    def closed(self) -> bool:
        """The client has the finish reason."""
        return self._closed

    @property
    def count(self) -> int:
        """Number of ids."""
        return self._ids.count(b",")

    def begin(self, revision: str, *, with_ids: bool) -> None:
        """A stream begins. `with_ids`: its engine writes the ids."""
        self.end()
        self.revision, self._possible = revision, with_ids

    def read_created(self, events: bytes) -> None:
        """The first events that the client gets."""
        found = _CREATED.search(events)
        if found is None:
            self._possible = False
        else:
            self._created = int(found[1])

    def add(self, ids: bytes, closing: bool) -> None:
        """The ids of the text in the next event, as the engine wrote them: `5,7`."""
        self._closed = self._closed or closing
        size = len(ids) + 1
        if not ids or not self._possible:
            return
        if len(self._ids) + size > self._most or not self._kept.take(size):
            self.end()
            return
        self._ids += ids
        self._ids += b","

    def interrupt(self, reason: ResumeReason) -> None:
        """An engine failed or drains. The first one since the stream went on gives the reason."""
        self._reason = self._reason or reason

    def continue_elsewhere(self) -> ResumeReason:
        """Another engine goes on; why."""
        reason, self._reason = self._reason or ResumeReason.CLOSED, None
        return reason

    def body(self, body: bytes) -> bytes:
        """The client's request, a JSON object in UTF-8, with what it has of the answer."""
        ids = bytes(self._ids[:-1])
        closed = b"true" if self._closed else b"false"
        return body.rstrip(b" \t\r\n")[
            :-1
        ] + b',"argosy_resume":{"token_ids":[%b],"closed":%b,"created":%d}}' % (
            ids,
            closed,
            self._created,
        )

    def end(self) -> None:
        """Give the memory back; the stream cannot go on elsewhere any more."""
        self._kept.give_back(len(self._ids))
        self._ids = bytearray()
        self._possible = self._closed = False
