"""Has the runner move the KV of preempted requests between its pool and the host, before a step."""

import time
from collections.abc import Callable

from argosy_engine.core.runner import Runner
from argosy_engine.core.step import SchedulerOutput

__all__ = ["move_kv"]


def move_kv(
    runner: Runner, scheduled: SchedulerOutput, moved: Callable[[str, int, float], None]
) -> None:
    """To the host first, because blocks that were given up may be filled from it.

    `moved` is told of each direction, "out" or "in", how many blocks moved in how many seconds.
    """
    for direction, copy, copies in (
        ("out", runner.to_host, scheduled.to_host),
        ("in", runner.from_host, scheduled.from_host),
    ):
        if copies:
            began = time.perf_counter()
            copy(copies)
            moved(direction, len(copies), time.perf_counter() - began)
