"""JSON of a scaling law's values, both ways: a published decision can be replayed.

`core.steps.targets` writes a record to status and log; `kubectl argosy explain` and the tests read
it. `core.steps.targets` keeps what the law has learnt over a restart in the same form. Dataclasses
are written by their fields. Signals are `{"value": v, "at": t}`, `{"idle": t}` and `{"unknown":
reason}`.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from argosy_law.estimate.demand import DemandState
from argosy_law.estimate.longer import AnsweredState
from argosy_law.goals import Windows
from argosy_law.observe import Idle, Unknown, Value, plausible
from argosy_law.signals.learning import sound
from argosy_law.slo import Errors
from argosy_law.state import (
    HoldState,
    ScalingState,
    Want,
    restarted,
)

T = TypeVar("T")
JSON = None | bool | int | float | str | list["JSON"] | dict[str, "JSON"]


def parse_json(text: str | bytes) -> Any:
    """JSON that a pod, another program or a person wrote.

    Raises ValueError for all that is none, and for what no program of ours writes and arithmetic
    cannot take: NaN, numbers beyond those of a float, integers of more than 64 bits, thousands of
    brackets.
    """
    try:
        return json.loads(text, parse_constant=_finite, parse_float=_finite, parse_int=_integer)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is no finite number")
    return number


def _integer(text: str) -> int:
    number = int(text)
    if not -(2**63) <= number < 2**63:
        raise ValueError("an integer has more than 64 bits")
    return number


def to_json(value: object) -> JSON:
    """Any value of this package as JSON. Raises TypeError for a value of another kind."""
    match value:
        case Value(value=number, at=at):
            return {"value": number, "at": at}
        case Idle(at=at):
            return {"idle": at}
        case Unknown(reason=reason):
            return {"unknown": reason}
        case Enum():
            return str(value.value)
        case None | bool() | int() | float() | str():
            return value
        case Mapping():
            return {str(k): to_json(v) for k, v in value.items()}
        case Sequence():
            return [to_json(v) for v in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in fields(value)}
    raise TypeError(f"{type(value).__name__} has no JSON form in a decision record")


def from_json(kind: type[T], data: JSON) -> T:
    """The value of class `kind` that `to_json` wrote. Raises ValueError with the field's path.

    Unknown fields are ignored, so that a newer operator's record can be read.
    """
    return cast(T, _read(kind, data, kind.__name__))


def _read(kind: object, data: JSON, path: str) -> object:
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        return _read_union(get_args(kind), data, path)
    if origin is Literal:
        if data not in get_args(kind):
            raise ValueError(
                f"{path}: expected one of {', '.join(map(str, get_args(kind)))}, not {data!r}"
            )
        return data
    if origin is tuple:
        return _read_tuple(get_args(kind), data, path)
    if origin is dict:
        _require(isinstance(data, dict), path, "an object")
        of = get_args(kind)[1]
        return {k: _read(of, v, f"{path}.{k}") for k, v in cast(dict[str, JSON], data).items()}
    if isinstance(kind, type) and is_dataclass(kind):
        _require(isinstance(data, dict), path, "an object")
        hints, given = get_type_hints(kind), cast(dict[str, JSON], data)
        known = {k: v for k, v in given.items() if k in hints}
        try:
            return kind(**{k: _read(hints[k], v, f"{path}.{k}") for k, v in known.items()})
        except TypeError as error:
            raise ValueError(f"{path}: {error}") from error
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(data)
    return _read_scalar(kind, data, path)


def _read_scalar(kind: object, data: JSON, path: str) -> object:
    if kind is float:
        number = isinstance(data, int | float) and not isinstance(data, bool)
        _require(number, path, "a number")
        return float(cast(float, data))
    _require(isinstance(kind, type) and isinstance(data, kind), path, f"{kind}")
    return data


def _read_union(kinds: tuple[object, ...], data: JSON, path: str) -> object:
    if data is None and NoneType in kinds:
        return None
    if isinstance(data, dict):
        if "unknown" in data:
            return Unknown(str(data["unknown"]))
        if "idle" in data:
            return Idle(cast(float, _read(float, data["idle"], path)))
        if "value" in data and "at" in data and Value in kinds:
            at = cast(float, _read(float, data["at"], path))
            return Value(cast(float, _read(float, data["value"], path)), at)
    rest = [k for k in kinds if k not in (NoneType, Value, Idle, Unknown)]
    _require(len(rest) == 1, path, "one of the three signals")
    return _read(rest[0], data, path)


def _read_tuple(kinds: tuple[object, ...], data: JSON, path: str) -> object:
    _require(isinstance(data, list), path, "a list")
    items = cast(list[JSON], data)
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        return tuple(_read(kinds[0], v, f"{path}[{i}]") for i, v in enumerate(items))
    _require(len(items) == len(kinds), path, f"a list of {len(kinds)}")
    pairs = enumerate(zip(kinds, items, strict=True))
    return tuple(_read(k, v, f"{path}[{i}]") for i, (k, v) in pairs)


def _require(holds: bool, path: str, wanted: str) -> None:
    if not holds:
        raise ValueError(f"{path}: expected {wanted}")


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
    for state in _shorten(kept.state):
        text = json.dumps(to_json(replace(kept, state=state)), separators=(",", ":"))
        if len(text) <= MOST_BYTES:
            return text
    return json.dumps(to_json(replace(kept, state=ScalingState())), separators=(",", ":"))


def _shorten(state: ScalingState) -> Iterator[ScalingState]:
    """The state; without past arrivals; with the constants of replicas alone."""
    yield state
    yield replace(state, demand=DemandState(), answered=AnsweredState())
    roles = tuple(replace(role, holds=HoldState()) for role in state.roles)
    bare = ScalingState(roles=roles, first_tokens=state.first_tokens)
    yield replace(bare, lengths=replace(state.lengths, prompts=(), answers=()))
    yield bare


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
    return _shift_times(state, now - windows.interval_s - last_at)


def _moments(state: ScalingState) -> Iterator[float]:
    """All times that the state holds, but those of forecasts, which are ahead."""
    times = [state.valid_since, state.last_valid_at, state.busy_at]
    times += [state.demand.end, state.demand.rose_at, state.shift.at, state.answered.end]
    times.append(state.first_tokens.other_since)
    yield from (want.at for want in state.shift.highs)
    for role in state.roles:
        times += [role.holds.raised_at, role.estimate.at]
        yield from (want.at for want in (*role.holds.highs, *role.holds.lows))
    yield from (moment for moment in times if moment is not None)


def _shift_times(state: ScalingState, by_s: float) -> ScalingState:
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
        first_tokens=replace(state.first_tokens, other_since=moved(state.first_tokens.other_since)),
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
