"""The edge of the OpenAI protocol: requests in, error bodies out.

Only what the gateway itself must know is read from a request; everything else is the engine's to
judge, and its answer passes through unchanged.
"""

import json
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from argosy_gateway.errors import RequestError

__all__ = ["CompletionRequest", "body_of", "error_body", "read_completion", "request_id_of"]

_PROMPT_LEVELS = 16  # the API knows three: parts in a message's content, and their text
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """One request as it goes to an engine."""

    path: str
    body: bytes
    stream: bool
    hide_usage: bool
    """The client did not ask for the usage chunk; the gateway did."""
    prompt_chars: int
    """Characters of the prompt (an id of a tokenised prompt counts as four): an estimate."""
    request_id: str = ""
    received_at: float = 0.0


def body_of(error: RequestError) -> bytes:
    """The response body of a request that is answered here."""
    return error_body(error.message, type_=error.type, param=error.param, code=error.code)


def error_body(
    message: str, *, type_: str, param: str | None = None, code: str | None = None
) -> bytes:
    """`{"error": …}` as OpenAI's clients parse it."""
    return _dump({"error": {"message": message, "type": type_, "param": param, "code": code}})


def request_id_of(given: bytes | None) -> str:
    """The client's id when it is at most 128 of `[A-Za-z0-9._-]`, else a new one."""
    text = given.decode("latin-1") if given else ""
    return text if _REQUEST_ID.fullmatch(text) else uuid.uuid4().hex


def read_completion(path: str, body: bytes, *, served_name: str) -> CompletionRequest:
    """Check a request and make the engine's form of it. Raises RequestError (400, 404)."""
    try:
        return _read(path, body, served_name)
    except RecursionError as error:
        raise RequestError(400, "The request body is nested too deeply.") from error


def _read(path: str, body: bytes, served_name: str) -> CompletionRequest:
    request = _decode(body)
    model = request.get("model")
    if not isinstance(model, str) or not model:
        raise RequestError(
            400, f"'model' must be a string; this fleet serves '{served_name}'.", param="model"
        )
    if model != served_name:
        raise RequestError(
            404,
            f"The model '{model[:128]}' does not exist here; this fleet serves '{served_name}'.",
            param="model",
            code="model_not_found",
        )
    stream = request.get("stream") or False
    if not isinstance(stream, bool):
        raise RequestError(400, "'stream' must be true or false.", param="stream")
    prompt_chars = _prompt_chars(
        request, "messages" if path.endswith("chat/completions") else "prompt"
    )
    if not stream:
        return CompletionRequest(
            path, body, stream=False, hide_usage=False, prompt_chars=prompt_chars
        )
    options = request.get("stream_options") or {}
    if not isinstance(options, dict):
        raise RequestError(400, "'stream_options' must be an object.", param="stream_options")
    asked = options.get("include_usage") is True
    if not asked:
        body = _with_usage(body, request, options)
    return CompletionRequest(
        path, body, stream=True, hide_usage=not asked, prompt_chars=prompt_chars
    )


def _with_usage(body: bytes, request: dict[str, Any], options: dict[str, Any]) -> bytes:
    """The body with the wish for usage; as it came where it can be, for long ones cost time."""
    if "stream_options" in request or json.detect_encoding(body) != "utf-8":
        return _dump({**request, "stream_options": {**options, "include_usage": True}})
    return body.rstrip(b" \t\r\n")[:-1] + b',"stream_options":{"include_usage":true}}'


def _decode(body: bytes) -> dict[str, Any]:
    def not_finite(name: str) -> NoReturn:
        raise RequestError(400, f"{name} is not JSON; numbers must be finite.")

    try:
        request = json.loads(body, parse_constant=not_finite, parse_int=_whole)
    except ValueError as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        raise RequestError(400, f"The request body is not JSON: {error}.") from error
    if not isinstance(request, dict):
        raise RequestError(400, "The request body must be a JSON object.")
    return request


def _whole(digits: str) -> int:
    """In Python, not in C: other threads get a turn while a million token ids are read."""
    return int(digits)


def _dump(value: object) -> bytes:
    """Half a surrogate pair, which JSON can write and UTF-8 cannot, stays an escape."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.encode(errors="backslashreplace")


def _prompt_chars(request: Mapping[str, Any], field_name: str) -> int:
    prompt = request.get(field_name)
    if prompt is None:
        raise RequestError(400, f"'{field_name}' is required.", param=field_name)
    if field_name == "messages":
        if not isinstance(prompt, list) or not all(isinstance(m, dict) for m in prompt):
            raise RequestError(400, "'messages' must be a list of objects.", param="messages")
        return sum(_text_chars(m.get("content")) for m in prompt)
    return _text_chars(prompt)


def _text_chars(value: object, levels: int = _PROMPT_LEVELS) -> int:
    if levels == 0:
        raise RecursionError  # at a depth of ours, not at what is left of Python's own
    if isinstance(value, str):
        # Characters, for speed: the tokens per byte are learnt from usage.
        return len(value)
    if isinstance(value, int):
        return 4
    if isinstance(value, dict):
        return _text_chars(value.get("text"), levels - 1)
    if isinstance(value, list):
        return sum(_text_chars(v, levels - 1) for v in value)
    return 0
