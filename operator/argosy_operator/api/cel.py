"""Pieces of CEL, the language in which a CRD tells the API server what to refuse."""

from collections.abc import Iterable


def literal(text: str) -> str:
    """A CEL string literal; backslashes and quotes of the text are kept."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def literals(texts: Iterable[str]) -> str:
    """A CEL list of string literals."""
    return "[" + ", ".join(literal(text) for text in texts) + "]"


def matches(path: str, pattern: str) -> str:
    """True when the text at `path` matches the regular expression (RE2 syntax)."""
    return f"{path}.matches({literal(pattern)})"
