"""Numbers that Argosy's gateway writes into headers of a request. The API makes a `NewRequest` of
them."""

import re

from argosy_engine.server.openai.errors import ApiError

__all__ = ["attempt", "first_token_by_s", "priority", "tpot_limit_s"]

_PRIORITY = re.compile(r"-?[0-9]{1,3}")
_MILLISECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,6})?")


def priority(value: str) -> int:
    """From `x-argosy-priority`. Raises ApiError."""
    if not _PRIORITY.fullmatch(value):
        raise ApiError(400, "x-argosy-priority must be a whole number from -999 to 999")
    return int(value)


def tpot_limit_s(value: str | None) -> float:
    """From `x-argosy-tpot-ms`: seconds; 0 if the header is absent. Raises ApiError."""
    if value is None:
        return 0.0
    if not _MILLISECONDS.fullmatch(value) or not float(value):
        raise ApiError(400, "x-argosy-tpot-ms must be a number of milliseconds above 0, like 50")
    return float(value) / 1000


def first_token_by_s(value: str | None, arrival_s: float) -> float:
    """From `x-argosy-first-token-ms`, counted from the request's arrival here: until when its first
    token may wait for a batch; 0 if the header is absent. Raises ApiError."""
    if value is None:
        return 0.0
    if not _MILLISECONDS.fullmatch(value):
        message = "x-argosy-first-token-ms must be a number of milliseconds, like 180"
        raise ApiError(400, message)
    return arrival_s + float(value) / 1000


def attempt(value: str | None) -> int:
    """From `x-argosy-attempt`; 1 if it is absent or no number."""
    return int(value) if value is not None and value.isdecimal() and len(value) < 4 else 1
