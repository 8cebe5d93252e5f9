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

A request that missed has one reason, the one that took most of its time: `relay` measures a
`Course` of each request, and `metrics` counts the reasons. A prompt whose own computation takes
longer than the TTFT limit is named before anything else: no free pod would have helped it. A
request that missed both limits is counted for its first token, which came first.
"""

import math
from dataclasses import dataclass, replace
from enum import StrEnum

from argosy_gateway.config import Slo

__all__ = [
    "STRAIGHT",
    "Course",
    "Ending",
    "Miss",
    "Outcome",
    "Path",
    "Verdict",
    "first_token_after_s",
    "held_s",
    "judge",
    "reason_of",
    "tpot_s",
    "ttft_s",
]


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


class Miss(StrEnum):
    """Why, for the label `reason`. docs/reference/misses.md has the words."""

    NO_POD = "no_pod"
    """No engine pod could serve: a cold start, or all pods were gone."""
    QUEUE = "queue"
    """It waited in the gateway for its turn."""
    RETRY = "retry"
    """A pod that was killed, failed or drained had it before."""
    AHEAD = "ahead"
    """Prompts of others were ahead of it in the engine."""
    PROMPT = "prompt"
    """Its own prompt takes longer than the TTFT limit to compute."""
    HELD = "held"
    """Its first token was held until it joined a batch."""
    TRANSFER = "transfer"
    """The KV transfer delayed its second token."""
    MOVED = "moved"
    """Its stream went on at another pod."""
    DECODE = "decode"
    """The steps of decode were too slow."""
    SHED = "shed"
    """It was refused for load."""
    FAILED = "failed"
    """It got no whole answer."""


@dataclass(frozen=True, slots=True)
class Course:
    """What the gateway saw of a request on its way. Durations are seconds."""

    no_pod_s: float = 0.0
    """Waiting while no engine pod could serve."""
    waited_s: float = 0.0
    """From the request's first byte until it was first sent, the time without pods included."""
    lost_s: float = 0.0
    """From the first sending to that to the pod that answered."""
    own_share: float = 1.0
    """The request's own prompt tokens, of all that the pod had yet to compute when it was sent."""
    first_gap_s: float = 0.0
    """From the first content to the second."""
    handed_over: bool = False
    """The KV came from another pod than the one that generates."""
    moves: int = 0
    """How often the stream went on at another pod."""


class Path:
    """A request's way while it lasts: `relay` adds each attempt as it ends.

    Times are the event loop's, in seconds.
    """

    __slots__ = (
        "_first_sent_at",
        "_handed_over",
        "_moves",
        "_own_share",
        "_received_at",
        "_sent_at",
    )

    def __init__(self, received_at: float) -> None:
        self._received_at = received_at
        self._first_sent_at: float | None = None
        self._sent_at = received_at
        self._own_share = 1.0
        self._handed_over = False
        self._moves = 0

    def add_attempt(
        self, sent_at: float, *, own_share: float, handed_over: bool, goes_on: bool
    ) -> None:
        """An attempt ended. `goes_on`: it was for the rest of a stream that had begun."""
        if goes_on:
            self._moves += 1
            return
        if self._first_sent_at is None:
            self._first_sent_at = sent_at
        self._sent_at, self._own_share, self._handed_over = sent_at, own_share, handed_over

    def course(
        self,
        now: float,
        *,
        without_pods_at: float,
        first_content_at: float | None,
        second_content_at: float | None,
    ) -> Course:
        """The whole way, `now` that the request has ended. `without_pods_at`: when the gateway last
        saw that no engine pod could serve."""
        if self._first_sent_at is None:  # it was never sent
            self._first_sent_at = self._sent_at = now
        waited_s = max(self._first_sent_at - self._received_at, 0.0)
        both = first_content_at is not None and second_content_at is not None
        return Course(
            no_pod_s=min(max(without_pods_at - self._received_at, 0.0), waited_s),
            waited_s=waited_s,
            lost_s=max(self._sent_at - self._first_sent_at, 0.0),
            own_share=self._own_share,
            first_gap_s=(second_content_at or 0.0) - (first_content_at or 0.0) if both else 0.0,
            handed_over=self._handed_over,
            moves=self._moves,
        )


STRAIGHT = Course()
"""Sent at once to an idle pod."""


def reason_of(outcome: Outcome, verdict: Verdict, slo: Slo, course: Course) -> Miss | None:
    """Why an ended request missed; None if it met both limits."""
    if verdict.ttft and verdict.tpot:
        return None
    if outcome.ending is Ending.SHED:
        return Miss.SHED
    if outcome.ending is Ending.FAILED:
        return Miss.FAILED
    return _late_first(outcome, slo, course) if not verdict.ttft else _slow(outcome, slo, course)


def _late_first(outcome: Outcome, slo: Slo, course: Course) -> Miss:
    """Where the time to the first token went."""
    first_at = outcome.first_content_at
    total_s = (outcome.ended_at if first_at is None else first_at) - outcome.received_at
    engine_s = max(total_s - course.waited_s - course.lost_s - outcome.held_s, 0.0)
    prompt_s = engine_s * course.own_share
    if prompt_s > slo.ttft_s:
        return Miss.PROMPT
    parts = {
        Miss.NO_POD: course.no_pod_s,
        Miss.QUEUE: course.waited_s - course.no_pod_s,
        Miss.RETRY: course.lost_s,
        Miss.AHEAD: engine_s - prompt_s,
        Miss.HELD: outcome.held_s,
    }
    largest = max(parts, key=lambda reason: parts[reason])
    return largest if parts[largest] > 0 else Miss.PROMPT


def _slow(outcome: Outcome, slo: Slo, course: Course) -> Miss:
    """Why the tokens after the first came too slowly."""
    if course.moves:
        return Miss.MOVED
    n, per_token = max(outcome.output_tokens or 2, 2), tpot_s(outcome)
    if per_token is None or not course.handed_over:
        return Miss.DECODE
    # Without the transfer the second token comes after a usual step.
    rest_s = per_token * (n - 1) - course.first_gap_s
    step_s = rest_s / (n - 2) if n > 2 else 0.0
    without_s = (rest_s + min(step_s, course.first_gap_s)) / (n - 1)
    return Miss.TRANSFER if without_s <= slo.tpot_s else Miss.DECODE
