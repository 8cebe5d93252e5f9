"""What gateways say when the operator asks them itself.

A `Reading` is one more sample of a counter that Prometheus scrapes, too, so no request counts
twice. It shows what has arrived since the last scrape. Gateways that did not answer keep their
samples of Prometheus, and `samples.arrival_bins` ends where the last of all gateways does.

`shell.gather` asks gateways when Prometheus has no arrivals, or in each decision
(`metrics.askGateways`), and keeps what they said for one window, as a `Heard`. A round without
metrics becomes one with the gateways' own. They know arrivals, queues, sequences in flight and
lengths, so replicas can be added. They know neither what engines do nor the verdicts of a window,
so `pace.gates` lets no replica be removed.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import isfinite

from argosy_law.goals import Windows
from argosy_law.observe import FleetMetrics, RoleMetrics, Unknown, Value, plausible
from argosy_law.signals import samples
from argosy_law.signals.samples import RECEIVED, WAITING, Round, Series, assemble
from argosy_law.signals.validity import why_unavailable

FASTEST = 1e5
"""Requests per second of one gateway beyond which a reading is not believed: no gateway process
takes so many."""
AHEAD_S = 60.0
"""Seconds after the round beyond which a reading is not believed: a round lasts less, so one of the
clocks has jumped."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One gateway's answer."""

    pod: str
    at: float
    """Seconds since the epoch, on the operator's clock."""
    accepted: float
    """Its counter of requests, by outcome; so is `shed`."""
    shed: float
    waiting_prompt_tokens: float
    """Of the requests in its queue."""
    load: "Load | None" = None
    """None from an older gateway, which does not say."""


@dataclass(frozen=True, slots=True)
class Load:
    """What a gateway knows of the engines' work and of its requests."""

    outstanding_prompt_tokens: float
    """Sent to engines and not computed yet."""
    decoding: float
    """Its sequences in flight that have their first token."""
    answered: float
    """Its counter of answered requests; the others are those of their tokens."""
    prompt_tokens: float
    prompt_tokens_squared: float
    output_tokens: float


def with_readings(taken: Round, readings: Iterable[Reading], skew_s: float) -> Round:
    """The round with the readings as the newest samples of their gateways.

    `skew_s` is the operator's clock minus that of the samples. A reading is left out if it cannot
    be true, if Prometheus has a newer sample, or if a counter is lower than there: the gateway
    began anew, or the two clocks do not agree well enough to tell which came first. A reading from
    the future is left out, too: it would make all samples of Prometheus look old.
    """
    found = {reading.pod: replace(reading, at=reading.at - skew_s) for reading in readings}
    fresh = {pod: reading for pod, reading in found.items() if _fits(reading, taken)}
    series = tuple(_extend(one, fresh.get(one.labels.get("pod", ""))) for one in taken.series)
    at = max([taken.at, *(reading.at for reading in fresh.values())])
    return replace(taken, series=series, at=at)


def _fits(reading: Reading, taken: Round) -> bool:
    """Whether the reading continues every counter of its gateway; without any it continues none."""
    numbers = (reading.accepted, reading.shed, reading.waiting_prompt_tokens)
    if not all(map(plausible, numbers)):
        return False
    if not isfinite(reading.at) or reading.at > taken.at + AHEAD_S:
        return False
    counters = [
        one for one in taken.series if one.name == RECEIVED and one.labels.get("pod") == reading.pod
    ]
    return bool(counters) and all(one.usable and _continues(reading, one) for one in counters)


def _continues(reading: Reading, one: Series) -> bool:
    value = _value(reading, one)
    if value is None:
        return True
    at, before = one.samples[-1]
    return at < reading.at and before <= value <= before + FASTEST * (reading.at - at)


def _value(reading: Reading, one: Series) -> float | None:
    """The reading's number for this series; None if it has none."""
    if one.name == WAITING:
        return reading.waiting_prompt_tokens
    if one.name != RECEIVED:
        return None
    return {"accepted": reading.accepted, "shed": reading.shed}.get(one.labels.get("outcome", ""))


def _extend(one: Series, reading: Reading | None) -> Series:
    value = None if reading is None else _value(reading, one)
    if reading is None or value is None or not one.samples or one.samples[-1][0] >= reading.at:
        return one
    return replace(one, samples=(*one.samples, (reading.at, value)))


@dataclass(frozen=True, slots=True)
class Heard:
    """What gateways said lately."""

    readings: tuple[Reading, ...] = ()
    """Oldest first."""
    skew_s: float = 0.0
    """The operator's clock minus that of Prometheus, when that answered last."""


def remember_readings(
    before: Heard, readings: Iterable[Reading], now: float, windows: Windows
) -> Heard:
    """What was heard, with the new `readings`. `now`: seconds since the epoch, operator's clock.

    Kept for as long as lengths are averaged over. What is ahead of `now` goes: the clock was put
    back.
    """
    oldest = now - windows.lengths_s - 2 * windows.scrape_s
    kept = (one for one in before.readings if oldest <= one.at <= now)
    return replace(before, readings=(*kept, *sorted(readings, key=lambda one: one.at)))


def fill_metrics(
    metrics: FleetMetrics, before: Heard, pods: frozenset[str], now: float, windows: Windows
) -> tuple[FleetMetrics, Heard]:
    """The metrics, or those of the gateways alone where these have no arrivals.

    `pods` are the names of Ready gateways, `now` is as in `heard`. The metrics stay as they are if
    the gateways have not said enough either: two answers are needed for a rate, and requests reach
    no gateway if none is Ready.
    """
    why = why_unavailable(metrics, windows)
    if why is None:
        return metrics, replace(before, skew_s=metrics.clock_skew_s)
    if not pods:
        return metrics, before
    # Gateways may have been asked after this round began.
    now = max([now, *(one.at for one in before.readings)])
    at = now - before.skew_s
    series = tuple(one for pod in _pods(before) for one in _series(pod, before))
    alone = assemble(Round(at, series, len(pods), len(pods), pods), windows)
    if isinstance(alone.arrivals, Unknown):
        return metrics, before
    newest = {one.pod: one for one in before.readings if now - one.at <= windows.fresh_s}
    return replace(
        alone,
        roles=_roles(tuple(newest.values()), at),
        # These are gateways without samples in Prometheus, and now none has any.
        silent_gateways=(),
        clock_skew_s=before.skew_s,
        gateways_alone=why,
    ), before


def _pods(said: Heard) -> tuple[str, ...]:
    return tuple(sorted({one.pod for one in said.readings}))


def _series(pod: str, said: Heard) -> tuple[Series, ...]:
    """The counters of one gateway, under the names that they have in Prometheus."""
    mine = [one for one in said.readings if one.pod == pod]
    labels = {"pod": pod, "role": "gateway"}

    def series(name: str, numbers: Iterable[float], **more: str) -> Series:
        times = (one.at - said.skew_s for one in mine)
        return Series(name, labels | more, tuple(zip(times, numbers, strict=True)))

    received = (
        series(samples.RECEIVED, (one.accepted for one in mine), outcome="accepted"),
        series(samples.RECEIVED, (one.shed for one in mine), outcome="shed"),
    )
    loads = [one.load for one in mine if one.load is not None]
    if len(loads) < len(mine):
        return received
    answered = [load.answered for load in loads]
    return (
        *received,
        series(f"{samples.PROMPTS}_count", answered),
        series(f"{samples.PROMPTS}_sum", (load.prompt_tokens for load in loads)),
        series(samples.PROMPTS_SQUARED, (load.prompt_tokens_squared for load in loads)),
        series(f"{samples.OUTPUTS}_count", answered),
        series(f"{samples.OUTPUTS}_sum", (load.output_tokens for load in loads)),
    )


def _roles(newest: tuple[Reading, ...], at: float) -> tuple[RoleMetrics, ...]:
    """The engines' work as their gateways know it. No pod of theirs reports.

    Prompts count whole: what prefix caches have of them, only engines know.
    """
    loads = [one.load for one in newest if one.load is not None]
    queued = sum(one.waiting_prompt_tokens for one in newest)
    queued += sum(load.outstanding_prompt_tokens for load in loads)
    outstanding = Value(queued, at)
    running = (
        Value(sum(load.decoding for load in loads), at)
        if len(loads) == len(newest)
        else Unknown("NoSamples")
    )
    return (
        RoleMetrics("prefill", outstanding_prompt_tokens=outstanding),
        RoleMetrics("decode", running=running),
        RoleMetrics("colocated", running=running, outstanding_prompt_tokens=outstanding),
    )
