"""Frames of the KV protocol (designs/0008-kv-protocol-2.md): bytes to values and back, without I/O.

A frame is `!4sBBHII` (magic, version, kind, flags, length, check) and its payload. Control frames
hold JSON, TOKENS 4 bytes a token; their check is the lower half of the XXH3-64 of kind, length and
payload. KV holds `!II` (index of the first block, count), the blocks, and the XXH3-64 of all that;
its check is of kind and length alone.
"""

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import xxhash

from argosy_engine.errors import EngineError

_HEADER = struct.Struct("!4sBBHII")
_CHECKED = struct.Struct("!BI")
_RUN = struct.Struct("!II")
_MAGIC = b"AGSY"
_VERSION = 4

HEADER_BYTES = _HEADER.size
RUN_HEAD_BYTES = _RUN.size
DIGEST_BYTES = 8
MAX_CONTROL_BYTES = 1 << 20
SMALL_CONTROL_BYTES = 1 << 14  # every message but PREFILL
MAX_SAMPLING_BYTES = MAX_CONTROL_BYTES - SMALL_CONTROL_BYTES  # of the 1 MiB of a PREFILL
MAX_RAW_BYTES = 1 << 26  # TOKENS and KV
TOKEN_BYTES = 4
Digest = xxhash.xxh3_64
"""Of a KV frame. It finds damage; it is no proof against a forger."""


class WireError(EngineError):
    """The peer does not speak this protocol, or its bytes were damaged."""

    def __init__(self, message: str, *, other_release: bool = False) -> None:
        super().__init__(message)
        self.other_release = other_release
        """The peer speaks another version of the protocol."""


class Kind(IntEnum):
    OPEN = 1
    PREFILL = 2
    TOKENS = 3
    ADMITTED = 4
    WAIT = 5
    READY = 6
    PULL = 7
    KV = 8
    DONE = 9
    RENEW = 10
    RELEASE = 11
    REFUSED = 12
    PUSH = 13
    WRITTEN = 14

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
    check: int = field(default=0, compare=False)

    def whole(self, payload: bytes) -> bytes:
        """The payload; WireError if it or the head was damaged. Not for KV, which has a digest."""
        if _check(self.kind, self.length, payload) != self.check:
            raise WireError(f"a {self.kind.name} frame was damaged: its check is wrong")
        return payload


@dataclass(frozen=True, slots=True)
class RunHead:
    """Consecutive blocks of a prompt; `first` counts from the prompt's first block."""

    first: int
    count: int


def _head(kind: Kind, length: int, payload: bytes = b"") -> bytes:
    limit = kind.longest
    if length > limit:
        raise WireError(f"a {kind.name} frame of {length} bytes is above the limit of {limit}")
    return _HEADER.pack(_MAGIC, _VERSION, kind, 0, length, _check(kind, length, payload))


def _check(kind: Kind, length: int, payload: bytes) -> int:
    digest = Digest(_CHECKED.pack(kind, length))
    digest.update(payload)
    return int(digest.intdigest()) & 0xFFFF_FFFF


def encode_control(kind: Kind, payload: dict[str, Any]) -> bytes:
    """WireError when the payload is above 1 MiB."""
    text = json.dumps(payload, separators=(",", ":")).encode()
    return _head(kind, len(text), text) + text


def encode_tokens(token_ids: Sequence[int]) -> bytes:
    """A whole TOKENS frame; WireError above 64 MiB, which are 16 million tokens."""
    payload = struct.pack(f"!{len(token_ids)}I", *token_ids)
    return _head(Kind.TOKENS, len(payload), payload) + payload


def decode_tokens(payload: bytes) -> tuple[int, ...]:
    """Inverse of `encode_tokens`, without the header."""
    count, rest = divmod(len(payload), TOKEN_BYTES)
    if rest:
        raise WireError(f"a TOKENS frame holds {TOKEN_BYTES} bytes a token, not {len(payload)}")
    return struct.unpack(f"!{count}I", payload)


def encode_run_head(first: int, count: int, size: int) -> tuple[bytes, bytes]:
    """(frame header, run head) of `count` blocks that have `size` bytes together.

    The blocks follow without a copy, then the digest of run head and blocks. WireError above 64
    MiB.
    """
    head = _RUN.pack(first, count)
    return _head(Kind.KV, len(head) + size + DIGEST_BYTES), head


def decode_run_head(data: bytes) -> RunHead:
    """`RUN_HEAD_BYTES` bytes."""
    return RunHead(*_RUN.unpack(data))


def decode_header(data: bytes) -> Frame:
    """`HEADER_BYTES` bytes; WireError before any of a bad payload is read."""
    try:
        magic, version, kind, _flags, length, check = _HEADER.unpack(data)
    except struct.error as error:
        raise WireError(f"a frame header has {HEADER_BYTES} bytes: {error}") from error
    if magic != _MAGIC:
        raise WireError(f"the peer does not speak the KV protocol: it began with {magic!r}")
    if version != _VERSION:
        raise WireError(
            f"the peer speaks version {version} of the KV protocol, not {_VERSION}: prefill and "
            "decode engines must be of the same release",
            other_release=True,
        )
    try:
        known = Kind(kind)
    except ValueError:
        raise WireError(f"unknown frame kind {kind}") from None
    limit = known.longest
    if length > limit:
        raise WireError(f"a {known.name} frame of {length} bytes is above the limit of {limit}")
    frame = Frame(known, length, check)
    if known is Kind.KV:
        frame.whole(b"")
    return frame


def decode_control(payload: bytes) -> dict[str, Any]:
    try:
        value = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise WireError(f"a control frame is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise WireError("a control frame must hold a JSON object")
    return value
