"""What our law has learnt as text, and how the law goes on with it after a restart.

`core.steps.recall` writes the text to a ConfigMap and reads it back. Nothing in it is trusted: what
is not a state of this version, or not possible, is refused, and the law begins as if nothing were
kept.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import cast

from argosy_law.estimate.demand import DemandState
from argosy_law.goals import Windows
from argosy_law.observe import plausible
from argosy_law.signals.learning import sound
from argosy_law.slo.errors import Errors
from argosy_law.state import (
    HoldState,
    Lengths,
    ScalingState,
    Want,
    restarted,
)
from argosy_law.text.record import JSON, from_json, parse_json, to_json

VERSION = 1
"""Of the text. Fields may be added without a new one; a field that means something else needs it.
"""
MOST_BYTES = 64 * 1024
"""Of the text. A ConfigMap may have 1 MiB; a state of full windows has about 25 KiB."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What outlives a restart."""

    version: int
    revision: str
    """Of the engines that were measured: another one may be another model."""
    state: ScalingState
    starts: tuple[tuple[str, float], ...] = ()
    """Role and measured seconds from a pod's creation to its readiness, newest last."""
    errors: Errors = field(default_factory=Errors)
    """Verdicts of requests, for the error budget."""


class UnusableError(ValueError):
    """The text is not what `text_of` writes. The message says why, for users."""


def text_of(kept: Kept) -> str:
    """At most `MOST_BYTES` long. What is too long loses first what Prometheus can give again."""
    for state in _shorter(kept.state):
        text = json.dumps(to_json(replace(kept, state=state)), separators=(",", ":"))
        if len(text) <= MOST_BYTES:
            return text
    return json.dumps(to_json(replace(kept, state=ScalingState())), separators=(",", ":"))


def _shorter(state: ScalingState) -> Iterator[ScalingState]:
    """The state; without past arrivals; with the constants of replicas alone."""
    yield state
    yield replace(state, demand=DemandState())
    bare = tuple(replace(role, holds=HoldState()) for role in state.roles)
    yield ScalingState(lengths=replace(state.lengths, prompts=(), answers=()), roles=bare)
    yield ScalingState(lengths=Lengths(), roles=bare)


def kept_of(text: str) -> Kept:
    """What `text_of` wrote. Raises UnusableError for any other text."""
    if len(text) > MOST_BYTES:
        raise UnusableError(f"it is longer than {MOST_BYTES} bytes")
    try:
        data = cast(JSON, parse_json(text))
        version = data.get("version") if isinstance(data, dict) else None
        if version != VERSION:
            raise UnusableError(f"its version is {version!r}, and this operator reads {VERSION}")
        kept = from_json(Kept, data)
    except UnusableError:
        raise
    except (ValueError, TypeError, OverflowError) as error:
        raise UnusableError(f"it cannot be read: {str(error)[:200]}") from error
    numbers = sound(kept.state) and kept.errors.sound
    if not numbers or not all(plausible(seconds) for _, seconds in kept.starts):
        raise UnusableError("it has numbers that cannot be right")
    return kept


def resumed(kept: Kept, revision: str, windows: Windows, hold_s: float, now: float) -> ScalingState:
    """The state with which the law goes on. `now`: seconds, on the clock of the metrics.

    After a pause in which no decision would have been missed it is the kept one. In a longer one,
    the loads of the pause are unknown: its length is added to every hold, so that a hold is over
    when it has been watched for as long as ever. After more than `hold_s`, or if a time lies ahead
    of the clock, all holds begin again. Another revision may be another model: what its replicas
    can do counts as a guess.
    """
    state = kept.state
    if kept.revision != revision:
        roles = (replace(r, estimate=replace(r.estimate, rows=0, steps=0.0)) for r in state.roles)
        state = replace(state, roles=tuple(roles))
    last_at = state.last_valid_at
    ahead = any(moment > now + windows.fresh_s for moment in _moments(state))
    if last_at is None or ahead or now - last_at > hold_s:
        return restarted(state)
    if now - last_at <= windows.fresh_s + windows.interval_s:
        return state
    return _later(state, now - windows.interval_s - last_at)


def _moments(state: ScalingState) -> Iterator[float]:
    """All times that the state holds, but those of forecasts, which are ahead."""
    times = [state.valid_since, state.last_valid_at, state.busy_at]
    times += [state.demand.end, state.demand.rose_at, state.shift.at]
    yield from (want.at for want in state.shift.highs)
    for role in state.roles:
        times += [role.holds.raised_at, role.estimate.at]
        yield from (want.at for want in (*role.holds.highs, *role.holds.lows))
    yield from (moment for moment in times if moment is not None)


def _later(state: ScalingState, by_s: float) -> ScalingState:
    """The state with the times that holds count from moved on by so many seconds."""

    def moved(at: float | None) -> float | None:
        return None if at is None else at + by_s

    def wants(of: tuple[Want, ...]) -> tuple[Want, ...]:
        return tuple(replace(want, at=want.at + by_s) for want in of)

    return replace(
        state,
        valid_since=moved(state.valid_since),
        last_valid_at=moved(state.last_valid_at),
        busy_at=moved(state.busy_at),
        shift=replace(state.shift, highs=wants(state.shift.highs), at=moved(state.shift.at)),
        roles=tuple(
            replace(
                role,
                holds=HoldState(
                    wants(role.holds.highs), wants(role.holds.lows), moved(role.holds.raised_at)
                ),
            )
            for role in state.roles
        ),
    )
