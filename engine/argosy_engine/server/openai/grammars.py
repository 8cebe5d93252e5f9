"""Grammars are compiled before their requests are submitted: no step waits for one."""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

from starlette.types import Receive

from argosy_engine.core.tokenizer import Grammars
from argosy_engine.errors import GrammarError
from argosy_engine.server.openai.asked.structure import Structure
from argosy_engine.server.openai.errors import overloaded
from argosy_engine.server.openai.parameters import bad
from argosy_engine.server.openai.text_threads import while_connected
from argosy_engine.text.grammar_process import GrammarProcess

__all__ = ["Compiler"]

_MOST_WAITING = 64


class Compiler:
    """Of one engine; runs on the event loop."""

    def __init__(self, grammars: Grammars | None, process: GrammarProcess | None) -> None:
        """Without a process grammars are tried in this one, without a limit of time: for tests."""
        self._grammars = grammars
        self._process = process
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammars")
        self._waiting = 0

    @asynccontextmanager
    async def compiled(self, structure: Structure, receive: Receive) -> AsyncIterator[None]:
        """The block in which a request lives that is held to it. ApiError 400 and 429,
        ClientGoneError."""
        if not structure.grammar or self._grammars is None:
            yield
            return
        with self._grammars.held(structure.grammar):
            if not self._grammars.knows(structure.grammar):
                await while_connected(self._compile(self._grammars, structure), receive)
            yield

    async def _compile(self, grammars: Grammars, structure: Structure) -> None:
        if self._waiting >= _MOST_WAITING:
            raise overloaded(f"{self._waiting} grammars wait to be compiled; retry later")
        aio, grammar = asyncio.get_running_loop(), structure.grammar
        self._waiting += 1
        try:
            if self._process is None:
                refusal = await aio.run_in_executor(self._thread, grammars.refusal, grammar)
            else:
                refusal = await self._process.refusal(grammar)
            if refusal is not None:
                raise bad(structure.field, f"no answer can be held to it: {refusal}")
            await aio.run_in_executor(self._thread, grammars.prepare, grammar)
        except GrammarError as error:
            raise bad(structure.field, str(error)) from error
        finally:
            self._waiting -= 1

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
