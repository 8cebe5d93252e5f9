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
    """Encodes one request's answer."""

    __slots__ = ("_body", "_chat", "_content", "_head", "_usage_tail")

    def __init__(
        self,
        *,
        request_id: str,
        model: str,
        chat: bool,
        include_usage: bool,
        created: int | None = None,
    ) -> None:
        """`created` is that of the stream's earlier chunks, if another engine sent them."""
        self._chat = chat
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
        self._content = self._head + ',"choices":[{"index":0,' + inner

    def opening(self) -> str:
        """The chunk before the first content: a chat names the role."""
        if not self._chat:
            return ""
        delta = '{"role":"assistant","content":""}'
        choice = f'{{"index":0,"delta":{delta},"logprobs":null,"finish_reason":null}}'
        return f'{self._head},"choices":[{choice}]{self._usage_tail}'

    def content(self, text: str) -> str:
        close = "}" if self._chat else ""
        tail = self._usage_tail
        return f'{self._content}{quote(text)}{close},"logprobs":null,"finish_reason":null}}]{tail}'

    def closing(self, reason: str) -> str:
        inner = '"delta":{}' if self._chat else '"text":""'
        choice = f'{{"index":0,{inner},"logprobs":null,"finish_reason":"{reason}"}}'
        return f'{self._head},"choices":[{choice}]{self._usage_tail}'

    def usage(self, usage: dict[str, object]) -> str:
        return f'{self._head},"choices":[],"usage":{json.dumps(usage)}}}\n\n'

    def whole(self, text: str, reason: str, usage: dict[str, object], **more: object) -> bytes:
        """The answer of a request without `stream`; `more` are further members."""
        choice: dict[str, object] = {"index": 0, "logprobs": None, "finish_reason": reason}
        if self._chat:
            choice["message"] = {"role": "assistant", "content": text}
        else:
            choice["text"] = text
        return json.dumps({**self._body, "choices": [choice], "usage": usage, **more}).encode()
