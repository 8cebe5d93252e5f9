"""What a client is told: errors of the gateway, word for word, and how an answer is framed."""

import json

import pytest

from argosy_gateway.relay.answer import Answer
from argosy_gateway.relay.resume import IdBudget, Resume
from tests.gateway.direct import Client


def error(client: Client) -> dict[str, object]:
    assert client.headers["content-type"] == "application/json"
    assert client.headers["content-length"] == str(len(client.text.encode()))
    assert client.headers["x-request-id"]
    found: dict[str, object] = json.loads(client.text)["error"]
    return found


# How an answer is framed


class Sent:
    """What ASGI's `send` was given."""

    def __init__(self, *, close: bool = False) -> None:
        self.messages: list[dict[str, object]] = []
        resume = Resume(IdBudget(1000), 1000)
        self.answer = Answer(self._send, "id", clock=lambda: 5.0, close=close, resume=resume)

    async def _send(self, message: dict[str, object]) -> None:
        self.messages.append(message)


def head(status: int, *headers: tuple[bytes, bytes]) -> dict[str, object]:
    return {"type": "http.response.start", "status": status, "headers": list(headers)}


def body(data: bytes, more: bool = False) -> dict[str, object]:
    return {"type": "http.response.body", "body": data, "more_body": more}


ID = (b"x-request-id", b"id")
TYPE = (b"content-type", b"text/event-stream")
OF_THE_ENGINE = [
    (name, b"x")
    for name in (
        b"connection", b"content-length", b"date", b"keep-alive", b"server", b"transfer-encoding",
        b"x-request-id", b"x-argosy-ttft-ms", b"x-argosy-token-ids", b"x-argosy-resumed",
        b"x-argosy-handover", b"x-argosy-first-token-held-ms", b"x-argosy-failed-prefills",
    )
]  # fmt: skip


@pytest.mark.parametrize("close", [False, True])
async def test_a_whole_answer_has_its_length_and_none_of_what_is_the_engines_own(close):
    sent = Sent(close=close)
    await sent.answer.send_whole(201, [*OF_THE_ENGINE, TYPE], b"hello")
    more = [(b"connection", b"close")] if close else []
    assert sent.messages == [head(201, TYPE, (b"content-length", b"5"), ID, *more), body(b"hello")]
    assert sent.answer.started
