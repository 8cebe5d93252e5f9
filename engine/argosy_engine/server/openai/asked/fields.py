"""Reads one parameter of a request body: its type and range, or a 400 that names it.

A parameter that is null counts as left out.
"""

from collections.abc import Mapping
from typing import Any

from argosy_engine.server.openai.parameters import bad

__all__ = ["MOST_IDS", "flag", "ids", "integer", "number", "texts"]

MOST_IDS = 1 << 31
"""Of a vocabulary, and of top_k."""


def integer(body: Mapping[str, Any], name: str, default: Any, *, low: int | None = None) -> Any:
    value = body.get(name)
    if value is None:
        return default
    if type(value) is not int:
        raise bad(name, f"must be a whole number, got {value!r:.40}")
    if low is not None and value < low:
        raise bad(name, f"must be at least {low}, got {value!r:.40}")
    return value


def number(body: Mapping[str, Any], name: str, default: float, *, low: float, high: float) -> float:
    value = body.get(name)
    if value is None:
        return default
    if type(value) not in (int, float) or not low <= value <= high:
        raise bad(name, f"must be a number from {low:g} to {high:g}, got {value!r:.40}")
    return float(value)


def flag(body: Mapping[str, Any], name: str, *, default: bool = False) -> bool:
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise bad(name, f"must be true or false, got {value!r:.40}")
    return value


def ids(body: Mapping[str, Any], name: str, *, most: int = MOST_IDS) -> tuple[int, ...]:
    """Token ids, each once; empty if left out."""
    value = body.get(name) or []
    if not isinstance(value, list) or not all(type(i) is int and 0 <= i < MOST_IDS for i in value):
        raise bad(name, "must be a list of token ids")
    found = tuple(dict.fromkeys(value))
    if len(found) > most:
        raise bad(name, f"must be at most {most} different token ids, got {len(found)}")
    return found


def texts(
    body: Mapping[str, Any], name: str, most: int, *, longest: int | None = None
) -> tuple[str, ...]:
    """One text or a list of them, each of `longest` characters at most; empty if left out."""
    value = body.get(name)
    if value is None:
        return ()
    if isinstance(value, str):
        value = [value]
    if (
        not isinstance(value, list)
        or len(value) > most
        or not all(isinstance(each, str) and each for each in value)
    ):
        raise bad(name, f"must be a text or a list of at most {most} non-empty texts")
    if longest is not None and any(len(each) > longest for each in value):
        raise bad(name, f"each must have at most {longest} characters")
    return tuple(value)
