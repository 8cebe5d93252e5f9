"""The bytes that go to a client: SSE chunks and whole bodies of both OpenAI endpoints.

Everything of a chunk but its text is encoded once a request, so that a token costs one JSON
string and one concatenation.
"""

import json
import time
from json.encoder import encode_basestring_ascii as quote

from argosy_engine.server.openai.errors import ApiError

__all__ = ["DONE", "Fragments", "error_event"]

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
