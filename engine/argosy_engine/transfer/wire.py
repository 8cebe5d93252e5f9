"""Frames of the KV protocol (designs/0001-seams.md §4): bytes to values and back, without I/O.

A frame is `!4sBBHI` (magic, version, kind, flags, length) and its payload: JSON for control; for
TOKENS 4 bytes a token; for KV `!III` (index of the first block, count, crc32), then the blocks.
"""

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any
from zlib import crc32

from argosy_engine.errors import EngineError

__all__ = [
    "HEADER_BYTES",
    "MAX_CONTROL_BYTES",
    "MAX_RAW_BYTES",
    "RUN_HEAD_BYTES",
    "SMALL_CONTROL_BYTES",
    "TOKEN_BYTES",
    "Frame",
    "Kind",
    "KvRun",
    "WireError",
    "decode_control",
    "decode_header",
    "decode_run",
    "decode_tokens",
    "encode_control",
    "encode_run",
    "encode_tokens",
]

_HEADER = struct.Struct("!4sBBHI")
_RUN = struct.Struct("!III")
_MAGIC = b"AGSY"
_VERSION = 2

HEADER_BYTES = _HEADER.size
RUN_HEAD_BYTES = _RUN.size
MAX_CONTROL_BYTES = 1 << 20
SMALL_CONTROL_BYTES = 1 << 14  # every message but PREFILL
MAX_RAW_BYTES = 1 << 26  # TOKENS and KV
TOKEN_BYTES = 4


class WireError(EngineError):
    """The peer does not speak this protocol, or its bytes were damaged."""


class Kind(IntEnum):
    PREFILL = 1
    ACCEPTED = 2
    REFUSED = 3
    READY = 4
    PULL = 5
    KV = 6
    DONE = 7
    RELEASE = 8
    RENEW = 9
    TOKENS = 10
    WAIT = 11

    @property
    def raw(self) -> bool:
        """Bytes instead of JSON."""
        return self in (Kind.TOKENS, Kind.KV)

    @property
    def longest(self) -> int:
        """Bytes of payload."""
        return MAX_RAW_BYTES if self.raw else MAX_CONTROL_BYTES


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame's head: its kind and the bytes of its payload."""

    kind: Kind
    length: int


@dataclass(frozen=True, slots=True)
class KvRun:
    """Consecutive blocks of a prompt; `first` counts from the prompt's first block."""

    first: int
    count: int
    data: memoryview


def _head(kind: Kind, length: int) -> bytes:
    limit = kind.longest
    if length > limit:
        raise WireError(f"a {kind.name} frame of {length} bytes is above the limit of {limit}")
    return _HEADER.pack(_MAGIC, _VERSION, kind, 0, length)


def encode_control(kind: Kind, payload: dict[str, Any]) -> bytes:
    """WireError when the payload is above 1 MiB."""
    text = json.dumps(payload, separators=(",", ":")).encode()
    return _head(kind, len(text)) + text


def encode_tokens(token_ids: Sequence[int]) -> bytes:
    """A whole TOKENS frame; WireError above 64 MiB, which are 16 million tokens."""
    count = len(token_ids)
    return _head(Kind.TOKENS, TOKEN_BYTES * count) + struct.pack(f"!{count}I", *token_ids)


def decode_tokens(payload: bytes) -> tuple[int, ...]:
    """Inverse of `encode_tokens`, without the header."""
    count, rest = divmod(len(payload), TOKEN_BYTES)
    if rest:
        raise WireError(f"a TOKENS frame holds {TOKEN_BYTES} bytes a token, not {len(payload)}")
    return struct.unpack(f"!{count}I", payload)


def encode_run(first: int, count: int, data: memoryview) -> bytes:
    """Header and run head; the caller sends `data` right after, without a copy."""
    head = _RUN.pack(first, count, crc32(data))
    return _head(Kind.KV, len(head) + data.nbytes) + head


def decode_header(data: bytes) -> Frame:
    """`HEADER_BYTES` bytes; WireError before any of a bad payload is read."""
    try:
        magic, version, kind, _flags, length = _HEADER.unpack(data)
    except struct.error as error:
        raise WireError(f"a frame header has {HEADER_BYTES} bytes: {error}") from error
    if magic != _MAGIC:
        raise WireError(f"the peer does not speak the KV protocol: it began with {magic!r}")
    if version != _VERSION:
        raise WireError(f"the peer speaks version {version} of the KV protocol, not {_VERSION}")
    try:
        known = Kind(kind)
    except ValueError:
        raise WireError(f"unknown frame kind {kind}") from None
    limit = known.longest
    if length > limit:
        raise WireError(f"a {known.name} frame of {length} bytes is above the limit of {limit}")
    return Frame(known, length)


def decode_control(payload: bytes) -> dict[str, Any]:
    try:
        value = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise WireError(f"a control frame is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise WireError("a control frame must hold a JSON object")
    return value


def decode_run(payload: bytes) -> KvRun:
    """Checks the crc32 of the bytes."""
    if len(payload) < _RUN.size:
        raise WireError("a KV frame is shorter than its head")
    first, count, expected = _RUN.unpack_from(payload)
    data = memoryview(payload)[_RUN.size :]
    if crc32(data) != expected:
        raise WireError(f"crc32 of blocks {first} to {first + count} is wrong")
    return KvRun(first, count, data)
