"""One thread that loads the model and then runs every step.

OpenMP keeps a team of threads for each thread that computes. If one thread loaded and another ran
the steps, there would be two teams. libgomp would count more threads than cores, and its waiting
threads would sleep instead of spinning.
"""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

__all__ = ["Worker"]

T = TypeVar("T")


class Worker:
    """Runs jobs one after the other on one daemon thread."""

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def call(self, work: Callable[[], T]) -> "Future[T]":
        """Queue `work`; the future has its result or its exception."""
        future: Future[T] = Future()
        self._jobs.put(lambda: _into(future, work))
        return future

    def end(self) -> None:
        """End the thread after the queued jobs."""
        self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()


def _into(future: "Future[Any]", work: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(work())
    except BaseException as error:  # the caller waits for the result and raises it
        future.set_exception(error)
