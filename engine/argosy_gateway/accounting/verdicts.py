"""Whether an ended request met the SLO. Pure: `relay` passes times in, `metrics` counts.

TTFT runs from the request's first byte that this process read to the first byte of content. TPOT is
(last content - first content) / (n - 1), with n output tokens from usage; a single token meets it.
An unknown n counts as two. Of several choices, which are drawn beside each other, n is that of the
longest one.
For an answer in one piece the engine reports the first token's time (designs/0003).

| how it ended | TTFT | TPOT |
|---|---|---|
| answered | TTFT ≤ limit | TPOT ≤ limit |
| shed (429) or failed | miss | miss |
| the client left, having waited longer than the TTFT limit | miss | met |
| the client left earlier | not counted | not counted |
| refused for an error in it (4xx but 429) | not counted | not counted |
"""

import math
from dataclasses import dataclass, replace
from enum import StrEnum

__all__ = [
    "Ending",
    "Outcome",
    "Slo",
    "Verdict",
    "first_token_after_s",
    "held_s",
    "judge",
    "tpot_s",
    "ttft_s",
]


@dataclass(frozen=True, slots=True)
class Slo:
    """The limits, in seconds."""

    ttft_s: float
    tpot_s: float


class Ending(StrEnum):
    """How a request ended."""

    OK = "ok"
    """The client was sent `[DONE]` or a whole body, and no error event."""
    INVALID = "invalid"
    """The engine answered 4xx because of an error in the request."""
    SHED = "shed"
    """Answered 429, by this gateway or by the engine."""
    FAILED = "failed"
    """It ended in any other way that the client did not cause."""
    CLIENT_GONE = "client_gone"
    """The client closed, or stopped reading."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One ended request; times are the event loop's, in seconds."""

    ending: Ending
    received_at: float
    """When this process read the request's first byte."""
    ended_at: float
    first_content_at: float | None = None
    """None if the client was sent no content."""
    last_content_at: float | None = None
    output_tokens: int | None = None
    """Of the longest choice; None if unknown."""
    held_s: float = 0.0
    """How long the engine held the first token, until its sequence joined a batch."""

    @property
    def at_once(self) -> "Outcome":
        """The same request, had its first token not been held."""
        if self.first_content_at is None:
            return self
        first_at = max(self.first_content_at - self.held_s, self.received_at)
        return replace(self, first_content_at=first_at, held_s=0.0)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether each limit was met."""

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
    """Seconds per output token after the first; None if there is no second token."""
    n = outcome.output_tokens
    if n is None or n < 2 or outcome.first_content_at is None or outcome.last_content_at is None:
        return None
    return (outcome.last_content_at - outcome.first_content_at) / (n - 1)


def first_token_after_s(reported_ms: bytes | None, *, whole_s: float) -> float:
    """Seconds from the sending of an unstreamed request to its first token.

    `reported_ms` is the engine's header `x-argosy-ttft-ms`, `whole_s` the time to the whole answer.
    Without the header (an engine of an older version), or if its value is not possible, the first
    token counts as late as the whole answer.
    """
    try:
        seconds = float(reported_ms) / 1000 if reported_ms else whole_s
    except ValueError:
        return whole_s
    return seconds if math.isfinite(seconds) and 0 <= seconds <= whole_s else whole_s


def held_s(reported_ms: bytes | None) -> float:
    """Seconds from the engine's header `x-argosy-first-token-held-ms`; 0 without it.

    A value that is not possible counts as 0.
    """
    try:
        seconds = float(reported_ms) / 1000 if reported_ms else 0.0
    except ValueError:
        return 0.0
    return seconds if math.isfinite(seconds) and seconds >= 0 else 0.0


def judge(outcome: Outcome, slo: Slo) -> Verdict | None:
    """The verdict of an ended request by the table above; None if it is not counted."""
    match outcome.ending:
        case Ending.SHED | Ending.FAILED:
            return Verdict(ttft=False, tpot=False)
        case Ending.INVALID:
            return None
        case Ending.CLIENT_GONE:
            first_at = outcome.first_content_at
            waited_s = (outcome.ended_at if first_at is None else first_at) - outcome.received_at
            # TPOT is unknown: only TTFT counts the miss.
            return Verdict(ttft=False, tpot=True) if waited_s > slo.ttft_s else None
        case Ending.OK:
            # Two tokens make the slowest pace that the times allow.
            slowest = outcome.output_tokens or 2
            first, per_token = ttft_s(outcome), tpot_s(replace(outcome, output_tokens=slowest))
            return Verdict(
                ttft=first is not None and first <= slo.ttft_s,
                tpot=per_token is None or per_token <= slo.tpot_s,
            )
