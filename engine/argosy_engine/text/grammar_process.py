"""Tries grammars in a process of its own: some take minutes of a core, and some end the process.

The process starts with the first grammar. It is ended by the kernel when one grammar takes too long
and by us when the client leaves, and starts anew with the next one. What it could compile is
compiled again in the engine, which takes no longer: compiled grammars cannot be sent.
"""

import asyncio
import contextlib
import os
import pickle
import signal
import sys
from asyncio.subprocess import PIPE, Process
from typing import BinaryIO

from argosy_engine.core.tokenizer import Grammars
from argosy_engine.errors import GrammarError
from argosy_engine.text.grammars import TokenGrammars

_PROGRAM = (sys.executable, "-P", "-m", "argosy_engine.text.grammar_process")
_MOST_S = 2.0
"""CPU time of one grammar. The slowest harmless ones that 64 KiB can spell take 0.4 s."""
_LENGTH = 8  # bytes before each message


class GrammarProcess:
    """Used on one event loop."""

    def __init__(self, grammars: Grammars, *, most_s: float = _MOST_S) -> None:
        self._grammars = grammars
        self._most_s = most_s
        self._turn = asyncio.Lock()
        self._process: Process | None = None
        """Waits for a grammar."""

    async def refusal(self, grammar: str) -> str | None:
        """Why no answer can be held to this grammar; None if it can. GrammarError if that cannot
        be found out. To cancel it ends its work."""
        async with self._turn:
            process, self._process = self._process or await self._start(), None
            try:
                reason = await _ask(process, grammar)
            except (asyncio.IncompleteReadError, ConnectionError):
                raise self._explain_end(await process.wait()) from None
            except asyncio.CancelledError:
                await _end(process)
                raise
            self._process = process
            return reason or None

    async def close(self) -> None:
        """No grammar is being tried, or waits for it."""
        process, self._process = self._process, None
        if process is not None:
            await _end(process)

    async def _start(self) -> Process:
        # A session of its own: Ctrl-C is for the engine, which may have requests to end.
        process = await asyncio.create_subprocess_exec(
            *_PROGRAM, stdin=PIPE, stdout=PIPE, start_new_session=True
        )
        assert process.stdin is not None
        _write(process.stdin, pickle.dumps((self._grammars.make, self._most_s)))
        return process

    def _explain_end(self, code: int) -> Exception:
        if code == -signal.SIGPROF:
            return GrammarError(f"takes more than {self._most_s:g} s to compile: simplify it")
        if code < 0:
            name = signal.Signals(-code).name
            return GrammarError(f"its compiler ended with {name}: simplify it")
        return RuntimeError(f"the process that tries grammars ended with exit status {code}")


async def _ask(process: Process, grammar: str) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    _write(process.stdin, grammar.encode())
    await process.stdin.drain()
    size = int.from_bytes(await process.stdout.readexactly(_LENGTH), "big")
    return (await process.stdout.readexactly(size)).decode()


def _write(to: asyncio.StreamWriter | BinaryIO, message: bytes) -> None:
    to.write(len(message).to_bytes(_LENGTH, "big") + message)


async def _end(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await process.wait()


def _serve(asked: BinaryIO, answers: BinaryIO) -> None:
    """Until the engine has ended, or SIGPROF does it."""

    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    make, most_s = pickle.loads(_read(asked))  # noqa: S301 - the engine's own
    grammars = TokenGrammars(make)
    grammars.refusal("start:")  # makes the tokenizer, whose time does not count
    while grammar := _read(asked):
        signal.setitimer(signal.ITIMER_PROF, most_s)
        reason = grammars.refusal(grammar.decode())
        signal.setitimer(signal.ITIMER_PROF, 0)
        _write(answers, (reason or "").encode())
        answers.flush()


def _read(stream: BinaryIO) -> bytes:
    """Empty when the engine has ended: no grammar is."""
    return stream.read(int.from_bytes(stream.read(_LENGTH), "big"))


if __name__ == "__main__":
    # What a library prints is no answer.
    with os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)
        _serve(sys.stdin.buffer, answers)
