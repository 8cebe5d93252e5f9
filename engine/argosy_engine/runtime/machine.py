"""What the machine gives this process: cores and memory, and how long its start took."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

_GROUP = Path("/sys/fs/cgroup")
_SPINS_ALONE = 20_000
_SPINS_SHARED = 5000
_SPINNING = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")


def set_spinning() -> None:
    """Set how long OpenMP's threads spin before they sleep; call before torch is loaded.

    A thread that waits for its team spins. Where the engine has the cores to itself, sleeping only
    delays the step. Where it shares them, a spinning thread may hold the core that the awaited
    thread needs. docs/explanation/compute.md has measurements of both. `GOMP_SPINCOUNT` and
    `OMP_WAIT_POLICY` take precedence if the user sets them.

    OpenBLAS, which numpy loads, gets no threads: numpy multiplies nothing here, and they would spin
    on the cores while the model loads.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if not any(name in os.environ for name in _SPINNING):
        os.environ["GOMP_SPINCOUNT"] = str(_SPINS_SHARED if shares_cores() else _SPINS_ALONE)


def shares_cores() -> bool:
    """Whether other processes may use the cores that this one computes on.

    A pod shares its node's cores, unless it has a set of its own with exactly their quota, as the
    kubelet's static CPU policy gives. Outside a pod, the engine has its cores to itself unless a
    quota limits it; two engines that are started by hand do not know of each other.
    """
    own, quota = len(os.sched_getaffinity(0)), _quota_cores()
    if quota is not None and quota < own:
        return True
    in_pod = "KUBERNETES_SERVICE_HOST" in os.environ
    exclusive = own < (os.cpu_count() or own) and quota == own
    return in_pod and not exclusive


def allowed_threads() -> int:
    """Cores by affinity, or fewer by the control group's quota, at least 1."""
    cores, quota = len(os.sched_getaffinity(0)), _quota_cores()
    return cores if quota is None else min(cores, max(1, round(quota)))


def _quota_cores() -> float | None:
    """Cores' worth of time that the control group allows; None: no limit."""
    try:
        quota, period = (_GROUP / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return None


def is_limited() -> bool:
    """Whether a control group bounds this process' memory."""
    return _limit_bytes() is not None


def available_bytes() -> int:
    """Memory that this process can still take."""
    free = _meminfo_available()
    limit = _limit_bytes()
    if limit is not None:
        free = min(free, limit - _number(_GROUP / "memory.current", default=0))
    return max(0, free)


def _limit_bytes() -> int | None:
    limit = _number(_GROUP / "memory.max", default=-1)
    return None if limit < 0 else limit


def _number(path: Path, *, default: int) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return default


def _meminfo_available() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


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
