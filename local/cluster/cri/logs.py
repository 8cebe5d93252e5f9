"""Writes container output in the CRI log format, on the runtime's event loop.

A line is `2026-01-31T12:00:00.123456789Z stdout F text`. P instead of F marks a part of a line that
is longer than 16 KiB. The kubelet renames a full file and then asks for `reopen`.
"""

import asyncio
import os
import time
from pathlib import Path

_PART_BYTES = 16 * 1024


def timestamp(now_ns: int) -> str:
    """RFC 3339 with nanoseconds, UTC."""
    seconds, fraction = divmod(now_ns, 1_000_000_000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{fraction:09d}Z"


def cut(stream: bytes, pending: bytes, data: bytes, *, stamp: bytes) -> tuple[bytes, bytes]:
    """Format the whole lines of `pending + data`; returns (log text, the unfinished rest)."""
    out = []
    *lines, rest = (pending + data).split(b"\n")
    for line in lines:
        while len(line) > _PART_BYTES:
            out.append(b"%s %s P %s\n" % (stamp, stream, line[:_PART_BYTES]))
            line = line[_PART_BYTES:]
        out.append(b"%s %s F %s\n" % (stamp, stream, line))
    while len(rest) >= _PART_BYTES:
        out.append(b"%s %s P %s\n" % (stamp, stream, rest[:_PART_BYTES]))
        rest = rest[_PART_BYTES:]
    return b"".join(out), rest


class ContainerLog:
    """Reads a container's two pipes into one file until both are closed."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._file = self._open()
        self._open_streams = 0
        self.ended = asyncio.Event()
        self.ended.set()

    def _open(self) -> int:
        if self._path is None:
            return os.open("/dev/null", os.O_WRONLY)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)

    def reopen(self) -> None:
        """Write to a new file at the same path."""
        os.close(self._file)
        self._file = self._open()

    def pipe(self, stream: str) -> int:
        """The write end of a new pipe; the caller closes it after the container's start."""
        read, write = os.pipe()
        os.set_blocking(read, False)
        self._open_streams += 1
        self.ended.clear()
        loop = asyncio.get_running_loop()
        name, pending = stream.encode(), b""

        def readable() -> None:
            nonlocal pending
            try:
                data = os.read(read, 65536)
            except BlockingIOError:
                return
            stamp = timestamp(time.time_ns()).encode()
            if data:
                text, pending = cut(name, pending, data, stamp=stamp)
                os.write(self._file, text)
                return
            if pending:
                os.write(self._file, b"%s %s F %s\n" % (stamp, name, pending))
            loop.remove_reader(read)
            os.close(read)
            self._open_streams -= 1
            if self._open_streams == 0:
                self.ended.set()

        loop.add_reader(read, readable)
        return write

    def close(self) -> None:
        """Close the file; the pipes must have ended."""
        os.close(self._file)
