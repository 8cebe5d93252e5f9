"""Control frames as values: each field is checked by type and range before it is used.

Peers are not trusted. `decode_message` returns a value that the engine may use as it is, or raises
WireError with a sentence that names the field. An unknown field is an error, and a missing one
that has no default.

`read_message` and `send_control` have them on an asyncio stream.
"""

import asyncio
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from argosy_engine.core.sampling import SamplingParams
from argosy_engine.transfer.wire import (
    HEADER_BYTES,
    SMALL_CONTROL_BYTES,
    Frame,
    Kind,
    WireError,
    decode_control,
    decode_header,
    encode_control,
)

MAX_LEASE_S = 86_400.0
MOST_CONNECTIONS = 4
"""That bring one prompt's KV."""
_LONGEST_GRAMMAR = 1 << 18  # characters; the HTTP side takes a quarter of it
_INT32, _INT63, _UINT32 = (1 << 31) - 1, (1 << 63) - 1, (1 << 32) - 1
_NAME = re.compile(r"[A-Za-z0-9._-]*")

Check = Callable[[Any], Any]  # returns the value to use, or raises ValueError("must be …")


@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    """First on every connection; answered only by a refusal."""

    credential: str
    """Who calls; empty where nobody asks."""

    pod_uid: str
    """The pod that is meant; empty where the caller knows no uid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefill:
    request_id: str
    attempt: int
    fingerprint: str

    tp: int
    """Ranks that the decode engine's KV heads are split over."""

    n_tokens: int
    """Length of the prompt, which the TOKENS frame after this one brings."""
    sampling: SamplingParams
    lease_s: float

    priority: int = 0
    """Lower is computed first. Left out where it is 0: engines of earlier releases know none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """The prompt is queued and has a lease."""

    ticket: str
    """128 random bits. Who shows it may have the KV, over any connection."""

    engine_epoch: str

    transports: tuple[str, ...] = ()
    """What this engine can move KV over, besides TCP."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """The prompt is computed. `Puller` compares each field with what it asked for."""

    request_id: str
    attempt: int
    engine_epoch: str
    fingerprint: str
    dtype: str
    first_token: int
    n_tokens: int
    n_blocks: int
    pod: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pull:
    """Send these blocks of the prompt; they must be ready."""

    ticket: str
    engine_epoch: str
    first_block: int
    n_blocks: int

    connections: int = 1
    """How many bring this prompt's KV: each one gets a share of the minimum rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Push(Pull):
    """Like PULL; the blocks are written over NIXL, and WRITTEN answers."""

    metadata: str
    """Of decode's NIXL agent, as base64."""
    address: int
    """Where to, in the address space of that agent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The blocks of a PUSH are where it said."""

    first_block: int
    n_blocks: int

    digest: str
    """XXH3-64 of a KV frame with these blocks, as hexadecimal digits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    n_blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """All KV is here, or no longer wanted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Renew:
    """Hold the KV for another term."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Each second until READY, and when blocks became ready."""

    step: int
    """Steps of the engine so far. An engine that hangs sends WAIT, too, but of the same step."""

    n_ready: int
    """Blocks that may be pulled now."""


Message = (
    Open
    | Prefill
    | Admitted
    | Refused
    | Ready
    | Pull
    | Push
    | Written
    | Done
    | Release
    | Renew
    | Wait
)


def decode_message(kind: Kind, payload: bytes) -> Message:
    """A control frame's payload as a value; WireError names the first field that is wrong."""
    if kind not in _MESSAGES:
        raise WireError(f"{kind.name} is no control frame")
    make, fields = _MESSAGES[kind]
    try:
        message: Message = make(**_check_fields(decode_control(payload), fields))
    except ValueError as error:
        raise WireError(f"{kind.name}: {error}") from None
    return message


def _check_fields(payload: Any, fields: Mapping[str, Check]) -> dict[str, Any]:
    if not isinstance(payload, dict):
        raise ValueError("must be an object")
    for name in payload:
        if name not in fields:
            raise ValueError(f"there is no field {name!r:.40}")
    checked: dict[str, Any] = {}
    for name, check in fields.items():
        if name not in payload and name in _MAY_BE_MISSING:
            continue
        if name not in payload:
            raise ValueError(f"{name} is missing")
        try:
            checked[name] = check(payload[name])
        except ValueError as error:
            raise ValueError(f"{name} {error}, got {_quote(payload[name])}") from None
    return checked


def _quote(value: Any) -> str:
    if isinstance(value, dict | list):
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)}"
    return f"{value!r:.40}"


def _whole(low: int, high: int, value: Any) -> int:
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"must be a whole number from {low} to {high}")
    return value


def _number(low: float, high: float, value: Any) -> float:
    if type(value) not in (int, float) or not low <= value <= high:  # NaN is never between
        raise ValueError(f"must be a number from {low:g} to {high:g}")
    return float(value)


def _text(longest: int, value: Any, *, shortest: int = 0) -> str:
    if not isinstance(value, str) or not shortest <= len(value) <= longest:
        raise ValueError(f"must be a text of {shortest} to {longest} characters")
    return value


def _name(longest: int, value: Any, *, shortest: int = 0) -> str:
    text = _text(longest, value, shortest=shortest)
    if not _NAME.fullmatch(text):
        raise ValueError("must be of letters, digits, '.', '_' and '-'")
    return text


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


def _ids(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise ValueError("must be a list of token ids")
    if not all(type(item) is int and 0 <= item <= _UINT32 for item in value):
        raise ValueError(f"must hold whole numbers from 0 to {_UINT32}")
    return tuple(value)


def _many_ids(value: Any) -> tuple[tuple[int, ...], ...]:
    if not isinstance(value, list):
        raise ValueError("must be a list of lists of token ids")
    return tuple(_ids(item) for item in value)


def _biases(value: Any) -> tuple[tuple[int, float], ...]:
    if not isinstance(value, list) or not all(
        isinstance(item, list) and len(item) == 2 for item in value
    ):
        raise ValueError("must be a list of pairs of a token id and a number")
    ids = _ids([token for token, _ in value])
    biases = [_number(-100.0, 100.0, bias) for _, bias in value]
    return tuple(zip(ids, biases, strict=True))


def _names(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or len(value) > 8:
        raise ValueError("must be a list of at most 8 names")
    return tuple(_name(16, item, shortest=1) for item in value)


def _sampling(value: Any) -> SamplingParams:
    return SamplingParams(**_check_fields(value, _SAMPLING))


_ID = partial(_name, 128, shortest=1)
_ATTEMPT = partial(_whole, 0, _INT32)
_EPOCH = partial(_name, 64, shortest=1)
_COUNT = partial(_whole, 0, _UINT32)
_TICKET = partial(_name, 32, shortest=32)
_PRIORITY = partial(_whole, -999, 999)
_MAY_BE_MISSING = frozenset({
    "priority", "transports", "presence_penalty", "frequency_penalty", "min_p", "logit_bias",
    "allowed_token_ids", "bad_words", "grammar", "sent", "connections",
})  # fmt: skip
_PULL: dict[str, Check] = {
    "ticket": _TICKET,
    "engine_epoch": _EPOCH,
    "first_block": _COUNT,
    "n_blocks": partial(_whole, 1, _UINT32),
    "connections": partial(_whole, 1, MOST_CONNECTIONS),
}

_SAMPLING: dict[str, Check] = {
    "max_tokens": partial(_whole, 1, _INT32),
    "min_tokens": partial(_whole, 0, _INT32),
    "temperature": partial(_number, 0.0, 2.0),
    "top_p": partial(_number, 0.0, 1.0),
    "repetition_penalty": partial(_number, 0.01, 100.0),
    "presence_penalty": partial(_number, -2.0, 2.0),
    "frequency_penalty": partial(_number, -2.0, 2.0),
    "min_p": partial(_number, 0.0, 1.0),
    "logit_bias": _biases,
    "allowed_token_ids": _ids,
    "bad_words": _many_ids,
    "grammar": partial(_text, _LONGEST_GRAMMAR),
    "sent": _COUNT,
    "top_k": partial(_whole, 0, _INT63),
    "seed": partial(_whole, 0, _INT63),
    "ignore_eos": _flag,
    "stop_token_ids": _ids,
}

_MESSAGES: dict[Kind, tuple[Callable[..., Message], dict[str, Check]]] = {
    Kind.OPEN: (Open, {"credential": partial(_text, 8192), "pod_uid": partial(_name, 64)}),
    Kind.PREFILL: (
        Prefill,
        {
            "request_id": _ID,
            "attempt": _ATTEMPT,
            "fingerprint": partial(_text, 4096),
            "tp": partial(_whole, 1, 1024),
            "n_tokens": partial(_whole, 1, _UINT32),
            "sampling": _sampling,
            "lease_s": partial(_number, 1e-3, MAX_LEASE_S),
            "priority": _PRIORITY,
        },
    ),
    Kind.ADMITTED: (
        Admitted,
        {"ticket": _TICKET, "engine_epoch": _EPOCH, "transports": _names},
    ),
    Kind.REFUSED: (Refused, {"reason": partial(_name, 64), "message": partial(_text, 4096)}),
    Kind.WAIT: (Wait, {"step": partial(_whole, 0, _INT63), "n_ready": _COUNT}),
    Kind.READY: (
        Ready,
        {
            "request_id": _ID,
            "attempt": _ATTEMPT,
            "engine_epoch": _EPOCH,
            "fingerprint": partial(_text, 4096),
            "dtype": partial(_text, 64),
            "first_token": _COUNT,
            "n_tokens": _COUNT,
            "n_blocks": _COUNT,
            "pod": partial(_name, 253),
        },
    ),
    Kind.PULL: (Pull, _PULL),
    Kind.PUSH: (
        Push,
        {
            **_PULL,
            "metadata": partial(_text, 12 << 10, shortest=1),
            "address": partial(_whole, 1, _INT63),
        },
    ),
    Kind.WRITTEN: (
        Written,
        {
            "first_block": _COUNT,
            "n_blocks": _COUNT,
            "digest": partial(_name, 16, shortest=16),
        },
    ),
    Kind.DONE: (Done, {"n_blocks": _COUNT}),
    Kind.RENEW: (Renew, {}),
    Kind.RELEASE: (Release, {}),
}


T = TypeVar("T")


async def in_thread(
    threads: ThreadPoolExecutor, stop: Callable[[], None], call: Callable[..., T], *arguments: Any
) -> T:
    """Run `call` in a thread. When this is cancelled, `stop` must make it end, which is awaited."""
    running = asyncio.get_running_loop().run_in_executor(threads, call, *arguments)
    try:
        return await asyncio.shield(running)
    finally:
        if not running.done():
            stop()
            await asyncio.wait((running,))
            running.exception()


async def read_head(reader: asyncio.StreamReader) -> Frame:
    """WireError; asyncio.IncompleteReadError or OSError when the peer went away."""
    return decode_header(await reader.readexactly(HEADER_BYTES))


async def read_payload(reader: asyncio.StreamReader, frame: Frame, longest: int) -> bytes:
    """The frame's payload; WireError above `longest` bytes, before any of it is read, and if it was
    damaged."""
    if frame.length > longest:
        raise WireError(
            f"a {frame.kind.name} frame of {frame.length} bytes came; at most {longest} are due"
        )
    return frame.whole(await reader.readexactly(frame.length))


async def read_message(reader: asyncio.StreamReader, longest: int = SMALL_CONTROL_BYTES) -> Message:
    """The next control frame, checked."""
    frame = await read_head(reader)
    if frame.kind.raw:
        raise WireError(f"{frame.kind.name} came where a control frame was due")
    return decode_message(frame.kind, await read_payload(reader, frame, longest))


async def send_control(writer: asyncio.StreamWriter, kind: Kind, payload: dict[str, Any]) -> None:
    writer.write(encode_control(kind, payload))
    await writer.drain()
