"""A simulated engine for the tests of commands."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack

import pytest

from argosy_bench.processes import engine


@pytest.fixture(scope="session")
def engine_url() -> Iterator[str]:
    """The URL of a simulated engine, which runs as a process of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def run(main):
        return asyncio.run_coroutine_threadsafe(main, loop).result()

    stack = AsyncExitStack()
    try:
        yield run(stack.enter_async_context(engine("engine"))).url
    finally:
        run(stack.aclose())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
