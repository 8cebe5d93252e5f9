"""The load by what gateways say alone, for the time in which Prometheus has no metrics.

`shell.gather` asks gateways when Prometheus has no arrivals, or in each decision
(`metrics.askGateways`), and keeps what they said for one window, as a `Heard`. A round without
metrics becomes one with the gateways' own. They know arrivals, queues, sequences in flight and
lengths, so replicas can be added. They know neither what engines do nor the verdicts of a window,
so `pace.gates` lets no replica be removed.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from argosy_law.goals import Windows
from argosy_law.observe import FleetMetrics, RoleMetrics, Unknown, Value
from argosy_law.signals import samples
from argosy_law.signals.direct import Reading
from argosy_law.signals.samples import Round, Series, assemble
from argosy_law.signals.validity import why_unavailable


@dataclass(frozen=True, slots=True)
class Heard:
    """What gateways said lately."""

    readings: tuple[Reading, ...] = ()
    """Oldest first."""
    skew_s: float = 0.0
    """The operator's clock minus that of Prometheus, when that answered last."""


def heard(before: Heard, readings: Iterable[Reading], now: float, windows: Windows) -> Heard:
    """What was heard, with the new `readings`. `now`: seconds since the epoch, operator's clock.

    Kept for as long as lengths are averaged over. What is ahead of `now` goes: the clock was put
    back.
    """
    oldest = now - windows.lengths_s - 2 * windows.scrape_s
    kept = (one for one in before.readings if oldest <= one.at <= now)
    return replace(before, readings=(*kept, *sorted(readings, key=lambda one: one.at)))


def known(
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
