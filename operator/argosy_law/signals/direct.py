"""What gateways said when the operator asked them itself, added to what Prometheus has of them.

A reading is one more sample of a counter that Prometheus scrapes, too, so no request counts twice.
It shows what has arrived since the last scrape. Gateways that did not answer keep their samples of
Prometheus, and `samples.arrival_bins` ends where the last of all gateways does, as ever.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import isfinite

from argosy_law.observe import plausible
from argosy_law.signals.samples import RECEIVED, WAITING, Round, Series

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
    series = tuple(_extended(one, fresh.get(one.labels.get("pod", ""))) for one in taken.series)
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


def _extended(one: Series, reading: Reading | None) -> Series:
    value = None if reading is None else _value(reading, one)
    if reading is None or value is None or not one.samples or one.samples[-1][0] >= reading.at:
        return one
    return replace(one, samples=(*one.samples, (reading.at, value)))
