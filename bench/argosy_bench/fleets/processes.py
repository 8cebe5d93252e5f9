"""Processes of a fleet on loopback: engines and a gateway, as the suites beside start them."""

import asyncio
import contextlib
import os
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Iterable

__all__ = ["kill", "start", "until_ready"]


async def start(words: str, **environment: str) -> Process:
    """Start `argosy` with these words of its command line."""
    command = (sys.executable, "-m", "argosy", *words.split())
    return await asyncio.create_subprocess_exec(
        *command, env={**os.environ, **environment}, stderr=DEVNULL
    )


async def kill(processes: Iterable[Process]) -> None:
    """End these processes; some may have ended."""
    ended = []
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        ended.append(process.wait())
    await asyncio.gather(*ended)


async def until_ready(admin: int) -> None:
    """Wait until the process with this admin port is ready. TimeoutError after 60 s."""
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection("127.0.0.1", admin)
                writer.write(b"GET /ready HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
                head = await reader.readline()
                writer.close()
                if b" 200 " in head:
                    return
            await asyncio.sleep(0.05)
