"""What the whole answer of an engine says. Engines are not believed: any bytes give a value."""

import json

__all__ = ["error_code", "json_or_none"]


def json_or_none(body: bytes) -> object:
    """The value that the body is; None if it is no JSON."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def error_code(body: bytes) -> str | None:
    """`error.code` of an error in OpenAI's form; None if there is none."""
    content = json_or_none(body)
    error = content.get("error") if isinstance(content, dict) else None
    code = error.get("code") if isinstance(error, dict) else None
    return code if isinstance(code, str) else None
