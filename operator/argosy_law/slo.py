"""The error budget: which share of the requests that may miss the SLO has missed it, and how fast.

Verdicts come in bins of one scrape from `signals.samples`; `core.status` and the operator's metrics
show the `Spent`. Three spans of slots are kept, so that 30 days take few bytes. Windows and
thresholds are those of The Site Reliability Workbook, chapter 5, table 5-8. The reasons why
requests miss the SLO have their words here, too.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Literal

BUDGET_S = 30 * 86_400.0
"""The window of the error budget."""
SPANS = ((60.0, 3600.0), (300.0, 6 * 3600.0), (10_800.0, BUDGET_S))
"""(length of a slot, how far back slots are kept), in seconds: 60 + 72 + 240 slots."""
WINDOWS: Mapping[str, float] = {
    "5m": 300.0,
    "30m": 1800.0,
    "1h": 3600.0,
    "6h": 6 * 3600.0,
    "3d": 3 * 86_400.0,
}
"""Windows of burn rates, in seconds."""
Alert = Literal["Page", "Ticket", "None"]
ALERTS: tuple[tuple[Alert, float, str, str], ...] = (
    ("Page", 14.4, "1h", "5m"),
    ("Page", 6.0, "6h", "30m"),
    ("Ticket", 1.0, "3d", "6h"),
)
"""(what to do, burn rate, long window, short window): both windows must burn faster. 14.4 spends
two percent of 30 days' budget in an hour."""
SEVERITY: tuple[Alert, ...] = ("None", "Ticket", "Page")
"""The mildest first."""
STAYS = 0.5
"""Of a threshold: an alert that was there stays as long as both windows burn faster than this, so
that a rate around the threshold is one alert and not many."""
NEARLY_ALL = 0.9
"""No burn rate exceeds 1/(1 − goal): at a goal of 90 % it is 10. A threshold counts at most as this
share of the requests."""
SEEN_ENOUGH = 0.5
"""Share of a window that must have been seen for a burn rate of it."""


@dataclass(frozen=True, slots=True)
class Verdicts:
    """Requests that ended in one scrape interval."""

    end: float
    """Seconds since the epoch, on the clock of the metrics."""
    met: float
    """Those that met both limits."""
    ended: float
    """All that were judged, requests that were shed included."""


Slot = tuple[float, float, float, float]
"""Start, requests that met the SLO, all requests, and seconds of it that were seen."""


@dataclass(frozen=True, slots=True)
class Errors:
    """What is kept of the verdicts."""

    began: float | None = None
    """Start of the first bin, seconds since the epoch."""
    end: float | None = None
    """End of the newest bin; None: nothing was seen yet."""
    slots: tuple[tuple[Slot, ...], ...] = field(default_factory=lambda: ((),) * len(SPANS))
    """For each of `SPANS`, oldest first. Slots in which nothing was seen are absent."""

    @property
    def sound(self) -> bool:
        """Whether it can be what `taken` makes; False for one that was read back corrupt."""
        ends = all(at is None or isfinite(at) for at in (self.began, self.end))
        return ends and len(self.slots) == len(SPANS) and all(map(_sound, self.slots, SPANS))


@dataclass(frozen=True, slots=True)
class Spent:
    """The error budget at one time. Rates are multiples of the rate that spends it in 30 days."""

    used: float | None
    """Share of the budget of the requests of the last 30 days; above 1 it is overspent. None: no
    request was judged, or the goal allows no miss."""
    since: float
    """Seconds since the epoch: the first verdict, or the oldest slot of the 30 days."""
    seen: float
    """Share of the time since then in which verdicts were known."""
    burn: Mapping[str, float]
    """By window; without those of which too little was seen."""
    alert: Alert


def taken(errors: Errors, bins: Iterable[Verdicts], scrape_s: float) -> Errors:
    """The errors with the bins that are new. A bin is counted once, however often it is seen."""
    for one in bins:
        newer = errors.end is None or one.end > errors.end + scrape_s / 2
        if newer and _possible(one):
            slots = tuple(
                _with(kept, span, one, scrape_s)
                for kept, span in zip(errors.slots, SPANS, strict=True)
            )
            began = one.end - scrape_s if errors.began is None else errors.began
            errors = Errors(began, one.end, slots)
    return errors


def _possible(one: Verdicts) -> bool:
    return isfinite(one.end) and isfinite(one.ended) and 0 <= one.met <= one.ended * (1 + 1e-9)


def _with(
    kept: tuple[Slot, ...], span: tuple[float, float], one: Verdicts, scrape_s: float
) -> tuple[Slot, ...]:
    """The slots of one span with one more bin, without those that are too old."""
    slot_s, back_s = span
    middle = one.end - scrape_s / 2
    start = middle - middle % slot_s
    old = tuple(slot for slot in kept if slot[0] > start - back_s)
    met, ended, seen_s = 0.0, 0.0, 0.0
    if old and old[-1][0] >= start:
        start, met, ended, seen_s = old[-1]
        old = old[:-1]
    return (*old, (start, met + one.met, ended + one.ended, min(seen_s + scrape_s, slot_s)))


def spent(errors: Errors, goal: float) -> Spent | None:
    """The budget as of the newest bin; None before the first one. `goal`: `slo.attainment`."""
    whole = errors.slots[-1]
    if errors.end is None or errors.began is None or not whole:
        return None
    since = max(errors.began, whole[0][0])
    met, ended, seen_s = _sum(whole)
    allowed = (1 - goal) * ended
    rates = {name: _burn(errors, window_s, goal) for name, window_s in WINDOWS.items()}
    burn = {name: rate for name, rate in rates.items() if rate is not None}
    seen = min(seen_s / max(errors.end - since, 1.0), 1.0)
    used = (ended - met) / allowed if allowed > 0 else None
    return Spent(used, since, seen, burn, _alert(burn, goal))


def _sum(slots: Iterable[Slot]) -> tuple[float, float, float]:
    """Requests that met the SLO, all requests, and seconds seen."""
    met = ended = seen_s = 0.0
    for slot in slots:
        met, ended, seen_s = met + slot[1], ended + slot[2], seen_s + slot[3]
    return met, ended, seen_s


def _burn(errors: Errors, window_s: float, goal: float) -> float | None:
    """The burn rate over the newest `window_s`; None if too little of it was seen.

    A window without requests burns nothing.
    """
    assert errors.end is not None
    slots, (slot_s, _) = next(
        pair for pair in zip(errors.slots, SPANS, strict=True) if pair[1][1] >= window_s
    )
    # The newest slot has just begun: as many slots as the window has, and that one.
    begin = errors.end - window_s - slot_s
    met, ended, seen_s = _sum(slot for slot in slots if slot[0] >= begin)
    if seen_s < SEEN_ENOUGH * window_s or goal >= 1:
        return None
    return (ended - met) / ended / (1 - goal) if ended > 0 else 0.0


def lasting(now: Spent, goal: float, before: Alert) -> Alert:
    """The alert as a condition has it: one that was there stays until a window of each of its rules
    burns at less than `STAYS` of the threshold. `before`: what the condition says now."""
    still = min(before, _alert(now.burn, goal, STAYS), key=SEVERITY.index)
    return max(now.alert, still, key=SEVERITY.index)


def _alert(burn: Mapping[str, float], goal: float, part: float = 1.0) -> Alert:
    """What the burn rates ask for, at this part of the thresholds. A window of which too little was
    seen asks for nothing."""
    most = NEARLY_ALL / (1 - goal) if goal < 1 else 0.0
    for what, rate, long, short in ALERTS:
        limit = part * min(rate, most)
        if burn.get(long, 0.0) > limit and burn.get(short, 0.0) > limit:
            return what
    return "None"


def _sound(slots: tuple[Slot, ...], span: tuple[float, float]) -> bool:
    slot_s, back_s = span
    return len(slots) <= back_s / slot_s + 1 and all(
        all(isfinite(n) for n in slot) and 0 <= slot[1] <= slot[2] * (1 + 1e-9) and slot[3] >= 0
        for slot in slots
    )


WORDS: dict[str, str] = {
    "no_pod": "waited because no engine pod could serve: a cold start, or all pods were gone",
    "queue": "waited in the gateway for a free place",
    "retry": "began again, because a pod was killed, failed or drained",
    "ahead": "waited in the engine behind other prompts",
    "prompt": "have a prompt that takes longer to compute than spec.slo.ttft.target allows",
    "held": "waited with their first token for a place in a batch (slo.firstToken)",
    "transfer": "lost too much time by the KV transfer for the few tokens of their answer",
    "moved": "went on at another pod in the middle of their answer",
    "decode": "got their tokens too slowly: the decode steps take too long",
    "shed": "were refused for load",
    "failed": "got no whole answer",
}
"""Reason → what such requests did."""
LEAST = 0.005
"""Share of the judged requests from which a reason is shown."""


def in_words(reason: str, share: float) -> str:
    """One line for people."""
    return f"{share:.1%} {WORDS.get(reason, f'missed it by {reason}')}"
