"""ASGI messages of an answer."""

from starlette.types import Message, Send

__all__ = ["body", "send_whole"]


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
