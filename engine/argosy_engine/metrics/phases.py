"""How long each phase of the engine's start took."""

import os
import time
from collections.abc import Callable
from typing import Literal

__all__ = ["Phase", "StartPhases", "process_age_s"]

Phase = Literal["process", "model", "warm_up", "ports"]
"""process: the interpreter, its imports and the command line. model: weights, tokenizer and KV
pool. warm_up: the first step. ports: the engine's thread and its ports."""


def process_age_s() -> float:
    """Seconds since the kernel started this process, interpreter and imports included."""
    with open("/proc/self/stat", encoding="ascii") as stat:
        ticks = int(stat.read().rsplit(")", 1)[1].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


class StartPhases:
    """Each phase begins where the one before it ended, the first with the process."""

    def __init__(self, age_s: Callable[[], float] = process_age_s) -> None:
        self._age_s = age_s
        self.total_s = 0.0
        self.seconds: dict[Phase, float] = {}

    def end(self, phase: Phase) -> None:
        before, self.total_s = self.total_s, self._age_s()
        self.seconds[phase] = self.total_s - before
