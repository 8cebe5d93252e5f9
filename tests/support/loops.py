"""Tests that run on asyncio's event loop and on uvloop, which the gateway's process uses."""

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop


def on_both_loops(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Makes two tests of a coroutine function; the outermost of its decorators but `mark`s."""

    @functools.wraps(test)
    def run(new_loop: Callable[[], asyncio.AbstractEventLoop], **given: Any) -> None:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(test(**given))

    own = inspect.Parameter("new_loop", inspect.Parameter.KEYWORD_ONLY)
    given = inspect.signature(test).parameters.values()
    run.__signature__ = inspect.Signature([*given, own])  # type: ignore[attr-defined]
    loops = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
    return pytest.mark.parametrize("new_loop", loops.values(), ids=loops.keys())(run)
