"""JSON of a scaling law's values, both ways: a published decision can be replayed.

`core.steps.targets` writes a record to status and log; `kubectl argosy explain` and the
tests read it. Dataclasses are written by their fields. Signals are `{"value": v, "at": t}`,
`{"idle": t}` and `{"unknown": reason}`.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from argosy_law.observe import Idle, Unknown, Value

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
