"""What the whole answer of an engine says. Engines are not believed: any bytes give a value."""

import json

__all__ = ["blames_client", "context_length", "error_code", "json_or_none", "longest_share"]


def json_or_none(body: bytes) -> object:
    """The value that the body is; None if it is no JSON."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def context_length(body: bytes) -> int | None:
    """`max_model_len` of the first model of a list of models; None if it has none."""
    content = json_or_none(body)
    models = content.get("data") if isinstance(content, dict) else None
    first = models[0] if isinstance(models, list) and models else None
    length = first.get("max_model_len") if isinstance(first, dict) else None
    return length if type(length) is int else None


def error_code(body: bytes) -> str | None:
    """`error.code` of an error in OpenAI's form; None if there is none."""
    code = _error(body).get("code")
    return code if isinstance(code, str) else None


def blames_client(body: bytes) -> bool:
    """Whether an error in OpenAI's form says that the request is wrong. vLLM and SGLang write the
    status that it would have had before the stream began."""
    error = _error(body)
    code = error.get("code")
    if type(code) is int:
        return 400 <= code < 500 and code not in (401, 408, 429)
    return error.get("type") == "invalid_request_error"


def _error(body: bytes) -> dict[str, object]:
    content = json_or_none(body)
    error = content.get("error") if isinstance(content, dict) else None
    return error if isinstance(error, dict) else {}


def longest_share(content: dict[str, object], sequences: int) -> float:
    """Of all tokens that the engine drew for its `sequences`, the share of the longest choice.

    By characters: an answer counts its tokens only together. Choices that `best_of` left out count
    as much as the others on average.
    """
    choices = content.get("choices")
    if sequences < 2 or not isinstance(choices, list) or not choices:
        return 1.0
    sizes = [_size(choice) for choice in choices]
    drawn = max(sequences, len(sizes))
    if not any(sizes):
        return 1 / drawn
    return max(sizes) / sum(sizes) * len(sizes) / drawn


def _size(choice: object) -> int:
    """Characters of a choice, those of its calls of tools included."""
    if not isinstance(choice, dict):
        return 0
    text, message = choice.get("text"), choice.get("message")
    if isinstance(text, str):
        return len(text)
    if not isinstance(message, dict):
        return 0
    parts = (message.get(name) for name in ("content", "reasoning", "tool_calls"))
    return sum(len(part if isinstance(part, str) else str(part)) for part in parts if part)
