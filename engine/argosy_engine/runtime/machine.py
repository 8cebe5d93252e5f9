"""What this process may use: cores and bytes, as affinity and control groups allow."""

import os
from pathlib import Path

__all__ = ["allowed_threads", "available_bytes", "cpu_flags", "is_limited", "spin_briefly"]

_GROUP = Path("/sys/fs/cgroup")
_SPINS = 5000


def spin_briefly() -> None:
    """Let OpenMP's threads sleep soon when they wait for each other; call before torch is loaded.

    libgomp's own choice is to spin for milliseconds, which takes the core from the very thread that
    is waited for as soon as engines share cores. SmolLM2, fp32, 2 cores, a decode step of one
    sequence: alone 37 ms either way, three engines at once 240–390 → 140–190 ms. Fewer spins cost
    the lone engine (2000: 43–57 ms). What the user set holds.
    """
    if not {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & os.environ.keys():
        os.environ["GOMP_SPINCOUNT"] = str(_SPINS)


def allowed_threads() -> int:
    """Cores by affinity, or fewer by the control group's quota, at least 1."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = (_GROUP / "cpu.max").read_text().split()
        if quota != "max":
            cores = min(cores, max(1, round(int(quota) / int(period))))
    except (OSError, ValueError):
        pass
    return cores


def cpu_flags() -> set[str]:
    """What the CPU announces, in the kernel's words; empty where it cannot be read."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return set()
    for line in text.splitlines():
        name, _, values = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return set(values.split())
    return set()


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
