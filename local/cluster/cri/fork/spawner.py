"""The runtime's end of the fork server: starts processes and learns when they end.

All runs on the event loop's thread. `launch.py` makes the spec files, `forkserver.py` reads them;
exit statuses come back here and go on to `pods.py`.
"""

import array
import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

_REPOSITORY = Path(__file__).resolve().parents[4]


class SpawnError(Exception):
    """A process could not be started; the text names the step that failed."""


@dataclass(slots=True)
class Process:
    """One started process."""

    pid: int
    pidfd: int
    done: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it has ended."""
    status: int = -1
    """Its exit code, or 128 + the number of the fatal signal; -1 while it runs."""

    def send(self, number: int) -> None:
        """Send it a signal; does nothing if it has ended."""
        if not self.done.is_set():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, number)


def exit_code(wait_status: int) -> int:
    """A shell's exit code for a wait status: 128 + the signal if one ended it."""
    code = os.waitstatus_to_exitcode(wait_status)
    return code if code >= 0 else 128 - code


class Spawner:
    """Owns the fork server. Calls `on_lost` if that dies: every container has died with it."""

    def __init__(self, *, on_lost: Callable[[], None]) -> None:
        self._on_lost = on_lost
        self._numbers = count(1)
        self._replies: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._processes: dict[int, Process] = {}
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control = ours
        # From the main thread: PR_SET_PDEATHSIG of the fork server follows it.
        self._server = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "local.cluster.cri.fork.forkserver",
                str(theirs.fileno()),
                str(os.getpid()),
            ],
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": str(_REPOSITORY)},
            start_new_session=True,
        )
        theirs.close()
        ours.setblocking(False)
        asyncio.get_running_loop().add_reader(ours, self._receive)

    def close(self) -> None:
        """End the fork server and with it every container; returns when it has ended."""
        self._on_lost = lambda: None
        asyncio.get_running_loop().remove_reader(self._control)
        self._control.close()
        self._server.wait(timeout=10)

    def _receive(self) -> None:
        while True:
            try:
                data, ancillary, _, _ = self._control.recvmsg(
                    1 << 20, socket.CMSG_LEN(4), socket.MSG_CMSG_CLOEXEC
                )
            except BlockingIOError:
                return
            except OSError:
                data, ancillary = b"", []
            if not data:
                asyncio.get_running_loop().remove_reader(self._control)
                self._on_lost()
                return
            pidfds = [fd for _, _, raw in ancillary for fd in array.array("i", raw)]
            self._dispatch(json.loads(data), pidfds)

    def _dispatch(self, message: dict[str, Any], pidfds: list[int]) -> None:
        job = message["job"]
        if "status" in message:
            process = self._processes.pop(job)
            process.status = exit_code(message["status"])
            process.done.set()
            os.close(process.pidfd)
            return
        if "pid" in message:
            # Registered with the reply: its end may arrive before the waiting call continues.
            message["process"] = self._processes[job] = Process(message["pid"], pidfds[0])
        reply = self._replies.pop(job)
        if not reply.done():
            reply.set_result(message)

    async def start(self, op: str, *, stdout: int, stderr: int, **message: object) -> Process:
        """Start a process and return after its exec. SpawnError if a step before it failed.

        The caller closes `stdout` and `stderr`.
        """
        error_read, error_write = os.pipe()
        os.set_blocking(error_read, False)
        try:
            try:
                reply = await self._ask({"op": op, **message}, [stdout, stderr, error_write])
            finally:
                os.close(error_write)
            text = (await read_to_end(error_read, limit=4096)).decode(errors="replace")
        finally:
            os.close(error_read)
        if "error" in reply or text:
            raise SpawnError(text or reply["error"])
        process: Process = reply["process"]
        return process

    async def release(self, sandbox: str) -> None:
        """Release a pod's namespaces; the kernel removes them with the last process in them."""
        await self._ask({"op": "release", "sandbox": sandbox}, [])

    async def _ask(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        job = next(self._numbers)
        reply: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._replies[job] = reply
        data = json.dumps({"job": job, **message}).encode()
        while True:
            try:
                socket.send_fds(self._control, [data], fds)
                break
            except BlockingIOError:
                await asyncio.sleep(0.001)
        return await reply


async def read_to_end(fd: int, *, limit: int) -> bytes:
    """Read a non-blocking descriptor to its end; discard what exceeds `limit` bytes."""
    loop = asyncio.get_running_loop()
    ended = loop.create_future()
    chunks: list[bytes] = []
    size = 0

    def readable() -> None:
        nonlocal size
        try:
            data = os.read(fd, 65536)
        except BlockingIOError:
            return
        if not data:
            loop.remove_reader(fd)
            if not ended.done():
                ended.set_result(None)
        elif size < limit:
            chunks.append(data[: limit - size])
            size += len(data)

    loop.add_reader(fd, readable)
    try:
        await ended
    finally:
        loop.remove_reader(fd)
    return b"".join(chunks)
