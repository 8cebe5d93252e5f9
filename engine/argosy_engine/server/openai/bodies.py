"""Reads request bodies: each has a limit, and the long ones share one.

The first step of every request. The gateway sends whole bodies at once. A client that sends slowly
holds a bounded number of bytes for a bounded time.
"""

import asyncio

from starlette.types import Receive

from argosy_engine.errors import ClientGoneError
from argosy_engine.server.openai.errors import ApiError, overloaded

__all__ = ["SHORT_BYTES", "Bodies", "long_bytes"]

SHORT_BYTES = 64 << 10  # a body up to this is read and tokenised in some 20 ms
_LONG_BYTES = 64 << 20  # shared by longer bodies; the pod holds weights and KV pool as well
_LONG_BODIES = 8
_WHOLE_WITHIN_S = 60.0
_GATEWAY_ADDS = 1024  # bytes: a seed, and the wish for usage, where the client did not name them
_SENT_IDS = 1 << 20  # bytes: the gateway's limit for the token ids of a stream that goes on here


def long_bytes(limit: int) -> int:
    """Upper bound of all long bodies together, in bytes; one body may have `limit` bytes."""
    return max(limit, min(_LONG_BODIES * limit, _LONG_BYTES))


class Bodies:
    """All bodies that arrive at one port; runs on the event loop."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._most = long_bytes(limit) + _GATEWAY_ADDS
        self._arriving = 0

    async def read(self, receive: Receive, *, resumes: bool = False) -> bytes:
        """The whole body; ApiError (408, 413, 429), ClientGoneError.

        With `resumes` it also has the token ids of a stream that goes on here.
        """
        most = self._limit + _GATEWAY_ADDS + (_SENT_IDS if resumes else 0)
        try:
            async with asyncio.timeout(_WHOLE_WITHIN_S):
                return await self._read(receive, most)
        except TimeoutError:
            text = f"the body did not arrive within {_WHOLE_WITHIN_S:g} s: send it faster"
            raise ApiError(408, text, code="body_timeout") from None

    async def _read(self, receive: Receive, most: int) -> bytes:
        parts: list[bytes] = []
        size = 0
        try:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGoneError
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                self._arriving += len(parts[-1])
                self._check(size, most)
                if not message.get("more_body"):
                    return b"".join(parts)
        finally:
            self._arriving -= size

    def _check(self, size: int, most: int) -> None:
        if size > most:
            text = f"the body is larger than {self._limit} bytes: send a shorter prompt"
            raise ApiError(413, text, code="body_too_large")
        if size > SHORT_BYTES and self._arriving > max(self._most, most):
            raise overloaded(f"bodies of {self._arriving} bytes are arriving; retry later")
