"""What becomes of a request in the SLO's books. Pure: `relay` brings times, `metrics` counts.

The table (DESIGN §13): TTFT runs from the first byte of the request that this process read to the
first content byte; TPOT = (last content - first content) / (n - 1), n from usage, and n = 1 counts
as met. Of an answer in one piece the engine names the first token's time (designs/0003). Shed and
failed requests miss both limits. A client that leaves is a miss if it had waited longer than the
TTFT limit, else it is not counted. Requests refused for their own fault (4xx but 429) are not
counted.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

__all__ = [
    "Ending",
    "Outcome",
    "Slo",
    "Verdict",
    "first_token_after_s",
    "judge",
    "tpot_s",
    "ttft_s",
]


@dataclass(frozen=True, slots=True)
class Slo:
    """Both limits, in seconds."""

    ttft_s: float
    tpot_s: float


class Ending(StrEnum):
    """How a request ended."""

    OK = "ok"
    """`[DONE]` or a whole body was passed on."""
    INVALID = "invalid"
    """Answered 4xx for the request's own fault."""
    SHED = "shed"
    """Answered 429, by this gateway or by the engine."""
    FAILED = "failed"
    """Anything else that is not the client's doing."""
    CLIENT_GONE = "client_gone"
    """The client closed, or stopped reading."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One ended request; times in seconds on one monotonic clock."""

    ending: Ending
    received_at: float
    ended_at: float
    first_content_at: float | None = None
    last_content_at: float | None = None
    output_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """True is met."""

    ttft: bool
    tpot: bool


def ttft_s(outcome: Outcome) -> float | None:
    """Seconds to the first content byte; an answer without any content counts at its end."""
    if outcome.first_content_at is not None:
        return outcome.first_content_at - outcome.received_at
    if outcome.ending is Ending.OK:
        return outcome.ended_at - outcome.received_at
    return None


def tpot_s(outcome: Outcome) -> float | None:
    """Seconds per output token after the first; None where there is no second token."""
    n = outcome.output_tokens
    if n is None or n < 2 or outcome.first_content_at is None or outcome.last_content_at is None:
        return None
    return (outcome.last_content_at - outcome.first_content_at) / (n - 1)


def first_token_after_s(named_ms: bytes | None, *, whole_s: float) -> float:
    """Seconds from the dispatch of an unstreamed request to its first token.

    `named_ms` is the engine's `x-argosy-ttft-ms`. Without it (an engine of an older version), and
    where it cannot be true, the first token counts as late as the whole answer.
    """
    try:
        seconds = float(named_ms) / 1000 if named_ms else whole_s
    except ValueError:
        return whole_s
    return seconds if math.isfinite(seconds) and 0 <= seconds <= whole_s else whole_s


def judge(outcome: Outcome, slo: Slo) -> Verdict | None:
    """The verdict of an ended request, or None where it is not counted."""
    match outcome.ending:
        case Ending.SHED | Ending.FAILED:
            return Verdict(ttft=False, tpot=False)
        case Ending.INVALID:
            return None
        case Ending.CLIENT_GONE:
            seen_at = outcome.first_content_at
            waited_s = (outcome.ended_at if seen_at is None else seen_at) - outcome.received_at
            # Of TPOT nothing can be said; the miss is carried by TTFT.
            return Verdict(ttft=False, tpot=True) if waited_s > slo.ttft_s else None
        case Ending.OK:
            first, per_token = ttft_s(outcome), tpot_s(outcome)
            return Verdict(
                ttft=first is not None and first <= slo.ttft_s,
                tpot=per_token is None or per_token <= slo.tpot_s,
            )
