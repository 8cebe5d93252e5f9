"""An event loop whose clock jumps: a test of hours takes milliseconds, and no load disturbs it."""

import asyncio
import functools
import math
import selectors
from collections.abc import Callable, Coroutine
from typing import Any


class VirtualLoop(asyncio.SelectorEventLoop):
    """Sleeps end at once, in their order; `time()` is the sum of what was slept."""

    def __init__(self) -> None:
        self._selector_of_time = _Jumping(self)
        self.now = 1000.0
        super().__init__(self._selector_of_time)

    def time(self) -> float:
        return self.now


class _Jumping(selectors.SelectSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise AssertionError("everything waits, and no time is set: the test would hang")
        self._loop.now += timeout
        if timeout:
            self._loop.now = math.nextafter(self._loop.now, math.inf)  # a tiny sleep ends, too
        return super().select(0)


def run(main: Coroutine[Any, Any, Any]) -> Any:
    """Run the coroutine to its end in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


def timed(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Makes a test of a coroutine function that runs in virtual time."""

    @functools.wraps(test)
    def timed_test(**given: Any) -> None:
        run(test(**given))

    return timed_test
