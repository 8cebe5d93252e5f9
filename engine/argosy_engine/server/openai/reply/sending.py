"""ASGI messages of an answer."""

from collections.abc import Generator
from typing import Any

from starlette.types import Message, Send

__all__ = ["Unsent", "body", "send_now", "send_whole"]


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
