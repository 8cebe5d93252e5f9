"""What each answer was worth, and which event came before a loss: pure functions.

A request counts as accepted once it was sent. It may end in four ways: with exactly its text,
refused with 429, with another text, or lost. A connection that ends without an answer while a
gateway is killed is no fault of ours: the client asks again, as any client may, and a stream that
had begun is counted apart.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from argosy_bench.cluster.requests import Ask, Asks, ask_of
from argosy_bench.cluster.schedule import Event, Kind


class Mark(StrEnum):
    """What an event was seen to have done besides."""

    FLIPPED = "flipped"
    """A pod has changed its role and kept its process."""
    BETWEEN_WRITES = "between_writes"
    """The operator had made some writes of a change when it was killed, and the next leader made
    the others."""


class Outcome(StrEnum):
    """How a request ended."""

    OK = "ok"
    SHED = "shed"
    LOST = "lost"
    MISMATCH = "mismatch"
    CUT_WITH_GATEWAY = "cut_with_gateway"


@dataclass(frozen=True, slots=True)
class Seen:
    """What the client saw of one request. Times are seconds on the machine's monotonic clock."""

    number: int
    sent_s: float
    ended_s: float
    status: int | None = None
    """None: no answer began."""
    broken: bool = False
    """The connection ended before the answer did."""
    fault: str = ""
    """What the answer lacks or has too much; empty for one that is whole."""
    text: str = ""
    unanswered_s: tuple[float, ...] = ()
    """When connections ended without a byte of an answer; the request was sent again."""
    pods: str = ""
    """The pods that the answer names."""


@dataclass(frozen=True, slots=True)
class Happened:
    """An event, and the time from its beginning until the fleet was whole again."""

    event: Event
    began_s: float
    whole_s: float
    recovered: bool = True
    detail: str = ""
    """The pod that it happened to, or why the fleet did not become whole."""
    marks: frozenset[Mark] = frozenset()


@dataclass(frozen=True, slots=True)
class Loss:
    """A request that did not get its text, and the last event that began before its end."""

    number: int
    outcome: Outcome
    stream: bool
    sent_s: float
    ended_s: float
    after: str
    event: int | None
    detail: str
    fleet: str = ""


@dataclass(slots=True)
class Verdict:
    """All requests of a run."""

    outcomes: Counter[Outcome] = field(default_factory=Counter)
    sent_again: int = 0
    """Requests that the client had to send more than once."""
    losses: list[Loss] = field(default_factory=list)

    def __iadd__(self, other: "Verdict") -> "Verdict":
        self.outcomes += other.outcomes
        self.sent_again += other.sent_again
        self.losses += other.losses
        return self


def judge(
    seen: Iterable[Seen], events: Sequence[Happened], asks: Asks = ask_of, fleet: str = ""
) -> Verdict:
    """Compare every answer of one fleet with its text."""
    verdict = Verdict()
    for one in seen:
        ask = asks(one.number)
        outcome, detail = _outcome(one, ask, events)
        verdict.outcomes[outcome] += 1
        verdict.sent_again += bool(one.unanswered_s)
        if outcome not in (Outcome.OK, Outcome.SHED):
            verdict.losses.append(_loss(one, ask, outcome, detail, events, fleet))
    return verdict


def _outcome(seen: Seen, ask: Ask, events: Sequence[Happened]) -> tuple[Outcome, str]:
    for at_s in seen.unanswered_s:
        if not _gateway_was_killed(at_s, events):
            return Outcome.LOST, "a connection ended without an answer, and no gateway was killed"
    if seen.status == 429:
        return Outcome.SHED, ""
    if seen.broken and seen.status == 200 and _gateway_was_killed(seen.ended_s, events):
        return Outcome.CUT_WITH_GATEWAY, seen.fault
    if seen.status != 200 or seen.broken or seen.fault:
        return Outcome.LOST, seen.fault or f"status {seen.status}"
    if seen.text != ask.text:
        return Outcome.MISMATCH, f"{seen.text[:80]!r} instead of {ask.text[:80]!r}"
    return Outcome.OK, ""


def _gateway_was_killed(at_s: float, events: Sequence[Happened]) -> bool:
    return any(
        happened.event.kind is Kind.KILL
        and happened.event.role == "gateway"
        and happened.began_s <= at_s <= happened.whole_s
        for happened in events
    )


def _loss(
    seen: Seen, ask: Ask, outcome: Outcome, detail: str, events: Sequence[Happened], fleet: str
) -> Loss:
    before = [happened for happened in events if happened.began_s <= seen.ended_s]
    last = max(before, key=lambda happened: happened.began_s, default=None)
    return Loss(
        number=seen.number,
        outcome=outcome,
        stream=ask.stream,
        sent_s=seen.sent_s,
        ended_s=seen.ended_s,
        after=last.event.name if last else "",
        event=last.event.number if last else None,
        detail=f"{detail} {seen.pods}".strip(),
        fleet=fleet,
    )


def by_kind(events: Iterable[Happened], losses: Iterable[Loss]) -> list[dict[str, object]]:
    """One row for each kind of event: how often, how long, and the requests lost after it."""
    lost = Counter(loss.after for loss in losses if loss.outcome is Outcome.LOST)
    rows: dict[str, list[Happened]] = {}
    for happened in events:
        rows.setdefault(happened.event.name, []).append(happened)
    return [
        {
            "event": name,
            "count": len(those),
            "requests_lost": lost[name],
            "whole_again_s_max": round(max(h.whole_s - h.began_s for h in those), 1),
            "unrecovered": sum(not h.recovered for h in those),
        }
        for name, those in sorted(rows.items())
    ]
