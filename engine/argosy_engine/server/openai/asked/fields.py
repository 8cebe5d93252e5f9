"""Reads one parameter of a request body: its type and range, or a 400 that names it.

A parameter that is null counts as left out.
"""

from collections.abc import Mapping
from typing import Any

from argosy_engine.server.openai.parameters import bad

__all__ = ["MOST_IDS", "flag", "ids", "integer", "limit_name", "number", "texts", "whole", "wholes"]

MOST_IDS = 1 << 31
"""Of a vocabulary, and of top_k."""


def whole(value: Any) -> int | None:
    """A whole number, which may be written as 2.0; None for anything else."""
    if type(value) is int:
        return value
    return int(value) if type(value) is float and value.is_integer() else None


def wholes(values: Any) -> list[int] | None:
    """A list of whole numbers; None for anything else."""
    if not isinstance(values, list):
        return None
    if all(type(each) is int for each in values):
        return values
    found = [number for each in values if (number := whole(each)) is not None]
    return found if len(found) == len(values) else None


def limit_name(body: Mapping[str, Any]) -> str:
    """The member that bounds the answer's tokens, as the client writes it."""
    newer = body.get("max_completion_tokens") is not None
    return "max_completion_tokens" if newer else "max_tokens"


def integer(body: Mapping[str, Any], name: str, default: Any, *, low: int | None = None) -> Any:
    value = body.get(name)
    if value is None:
        return default
    found = whole(value)
    if found is None:
        raise bad(name, f"must be a whole number, got {value!r:.40}")
    if low is not None and found < low:
        raise bad(name, f"must be at least {low}, got {value!r:.40}")
    return found


def number(
    body: Mapping[str, Any],
    name: str,
    default: float,
    *,
    low: float,
    high: float,
    above: bool = False,
) -> float:
    """`above`: `low` itself is refused."""
    value = body.get(name)
    if value is None:
        return default
    inside = type(value) in (int, float) and low <= value <= high and not (above and value == low)
    if not inside:
        span = f"above {low:g} and at most {high:g}" if above else f"from {low:g} to {high:g}"
        raise bad(name, f"must be a number {span}, got {value!r:.40}")
    return float(value)


def flag(body: Mapping[str, Any], name: str, *, default: bool = False, within: str = "") -> bool:
    """`within`: the parameter whose member it is."""
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise bad(
            f"{within}.{name}" if within else name, f"must be true or false, got {value!r:.40}"
        )
    return value


def ids(
    body: Mapping[str, Any], name: str, vocab_size: int, *, most: int = MOST_IDS
) -> tuple[int, ...]:
    """Token ids of the model, each once; empty if left out."""
    value = body.get(name)
    if value is None:
        return ()
    given = wholes(value)
    if given is None or not all(0 <= each < vocab_size for each in given):
        raise bad(name, f"must be a list of token ids, which are 0 … {vocab_size - 1}")
    found = tuple(dict.fromkeys(given))
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
