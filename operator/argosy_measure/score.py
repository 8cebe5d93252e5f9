"""What the requests of a load come to: the share within the limits, its interval, and rates.

A request is within the limits when it has a whole answer and meets both. A failed one is not.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from argosy_measure.client import Answer

Z = 1.96
"""Of an interval that holds the true share in 95 of 100 loads."""
LATE_SHARE = 0.1
"""A request is late when the client sent it later than this share of the TTFT limit."""
MOST_LATE = 0.01
"""With a larger share of late requests the load is not the one that was asked for."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What an answer must keep, and how many must."""

    ttft_s: float
    tpot_s: float
    goal: float = 0.9
    """Share of requests, between 0 and 1."""


@dataclass(frozen=True, slots=True)
class Row:
    """One request, as any client records it."""

    at_s: float
    """When it was sent, in seconds after the load began."""
    ended_s: float
    """When its answer ended, likewise."""
    ttft_s: float | None
    """None: no token came."""
    tpot_s: float | None
    """None: fewer than two tokens came."""
    tokens: int = 0
    """Of the answer."""
    prompt_tokens: int | None = None
    """None: unknown."""
    late_s: float = 0.0
    """How late the client itself sent it."""
    status: int | None = None
    """Of HTTP, where the record has it."""
    error: str | None = None
    """Why there is no whole answer."""
    id: str = ""

    def meets(self, limits: Limits) -> bool:
        """Whether there is a whole answer within both limits."""
        return (
            self.error is None
            and self.ttft_s is not None
            and self.ttft_s <= limits.ttft_s
            and (self.tpot_s is None or self.tpot_s <= limits.tpot_s)
        )


def row_of(answer: Answer, begin: float) -> Row:
    """Make the row of an answer to a load that began at `begin` of the client's clock."""
    return Row(
        at_s=answer.sent - begin,
        ended_s=answer.ended - begin,
        ttft_s=answer.ttft_s,
        tpot_s=answer.tpot_s,
        tokens=answer.tokens,
        prompt_tokens=answer.prompt_tokens,
        late_s=answer.late_s,
        status=answer.status,
        error=answer.error,
        id=answer.request.id,
    )


def wilson(met: int, of: int, z: float = Z) -> tuple[float, float]:
    """Return Wilson's interval of a share (Wilson 1927); (0, 1) when nothing was counted."""
    if not of:
        return 0.0, 1.0
    share, square = met / of, z * z / of
    middle = (share + square / 2) / (1 + square)
    half = z * math.sqrt(share * (1 - share) / of + square / of / 4) / (1 + square)
    # At both ends the exact values are 0 and 1.
    low = 0.0 if met == 0 else max(0.0, middle - half)
    return low, 1.0 if met == of else min(1.0, middle + half)


def percentile(values: Iterable[float], share: float) -> float | None:
    """Return the smallest value that this share of the values does not exceed; None of none."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None


@dataclass(frozen=True, slots=True)
class Spread:
    """Percentiles in seconds, over the requests that have the value. None: none has."""

    p50: float | None
    p90: float | None
    p99: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Compute the percentiles of these values."""
        return cls(*(percentile(values, share) for share in (0.5, 0.9, 0.99)))


@dataclass(frozen=True, slots=True)
class Score:
    """What a load came to."""

    requests: int
    met: int
    """Requests within both limits."""
    failed: int
    attainment: float
    low: float
    """Wilson's interval of the attainment."""
    high: float
    seconds: float
    """From the first request to the end of the last answer."""
    requests_per_s: float
    goodput_per_s: float
    """Requests within both limits per second."""
    tokens_per_s: float
    """Of answers."""
    ttft_s: Spread
    tpot_s: Spread
    late: int
    """Requests that the client itself sent late."""
    late_s: Spread

    @property
    def client_overloaded(self) -> bool:
        """Whether the client was too slow for the load that it was asked for."""
        return self.late > MOST_LATE * self.requests

    def figures(self) -> dict[str, object]:
        """Return all figures, as JSON writes them."""
        return {**asdict(self), "client_overloaded": self.client_overloaded}


def score(rows: Sequence[Row], limits: Limits) -> Score:
    """Compute what the requests came to. ValueError for none."""
    if not rows:
        raise ValueError("no request was recorded")
    met = sum(row.meets(limits) for row in rows)
    low, high = wilson(met, len(rows))
    # A single answer of no length, such as a refused connection, takes no time.
    seconds = max(max(row.ended_s for row in rows) - min(row.at_s for row in rows), 1e-9)
    return Score(
        requests=len(rows),
        met=met,
        failed=sum(row.error is not None for row in rows),
        attainment=met / len(rows),
        low=low,
        high=high,
        seconds=seconds,
        requests_per_s=len(rows) / seconds,
        goodput_per_s=met / seconds,
        tokens_per_s=sum(row.tokens for row in rows) / seconds,
        ttft_s=Spread.of([row.ttft_s for row in rows if row.ttft_s is not None]),
        tpot_s=Spread.of([row.tpot_s for row in rows if row.tpot_s is not None]),
        late=sum(row.late_s > LATE_SHARE * limits.ttft_s for row in rows),
        late_s=Spread.of([row.late_s for row in rows]),
    )
