"""The figures of one run, their targets, and `summary.json`."""

import json
import os
import platform
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from rich.table import Table

from local.demo.view import console

TARGETS: dict[str, tuple[str, float]] = {
    "seconds_total": ("<=", 600),
    "seconds_warm": ("<=", 300),
    "answer_correct": ("==", 1),
    "pd_equals_colocated": ("==", 1),
    "prefill_replicas_max": (">=", 2),
    "decode_replicas_max": (">=", 2),
    "replicas_back_at_min": ("==", 1),
    "attainment_after_settling": (">=", 0.9),
    "settling_s": ("<=", 20),
    "scored_requests_per_phase_min": (">=", 50),
    "requests_lost": ("==", 0),
    "writes_at_rest_per_minute": ("==", 0),
    "hints_work": ("==", 1),
    "cpu_busy_share_p95": ("<=", 0.9),
    "cluster_start_s": ("<=", 10),
}


OF_THE_MACHINE = {"seconds_total", "seconds_warm", "cluster_start_s", "cpu_busy_share_p95"}
"""Targets that a slow or busy machine misses; they are shown, and fail nobody's demo."""


@dataclass
class Figures:
    """What this run measured; nothing here is a constant."""

    began: float
    """Unix time at which `make demo` was entered."""
    caches_complete: float | None = None
    """Unix time at which binaries, environment and weights were all there."""
    values: dict[str, float] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)

    def put(self, name: str, value: float, digits: int = 3) -> None:
        """Record one figure."""
        self.values[name] = round(float(value), digits)

    def finish(self, ours: bool) -> None:
        """Close the clocks; on a cluster that was there before, some figures stay open."""
        now = time.time()
        self.put("seconds_total", now - self.began, 1)
        self.put("seconds_warm", now - (self.caches_complete or self.began), 1)
        if not ours:
            self.notes["cluster"] = "an existing one: no audit log, CPU share is this machine's"

    def missed(self) -> list[str]:
        """Names of targets that this run did not reach or did not measure."""
        return [name for name in TARGETS if not self._reached(name)]

    def _reached(self, name: str) -> bool:
        sign, target = TARGETS[name]
        value = self.values.get(name)
        if value is None:
            return False
        return {"<=": value <= target, ">=": value >= target, "==": value == target}[sign]

    def write(self, path: Path) -> None:
        """The figures file (DESIGN §11)."""
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
        document = {
            "figures": dict(sorted(self.values.items())),
            "environment": {
                "date": datetime.now(UTC).date().isoformat(),
                "cores": len(os.sched_getaffinity(0)),
                "memory_gib": round(memory, 1),
                "processor": _processor(),
                "kernel": platform.release(),
                "python": platform.python_version(),
                **self.notes,
            },
            "command": "make demo",
        }
        path.write_text(json.dumps(document, indent=2) + "\n")


def print_table(found: Figures, missed: list[str]) -> None:
    """All figures, those with a target beside it."""
    table = Table("figure", "measured", "target", title="this run", title_justify="left")
    for name, value in sorted(found.values.items()):
        sign, target = TARGETS.get(name, ("", 0))
        style = "red" if name in missed else None
        table.add_row(name, f"{value:g}", f"{sign} {target:g}" if sign else "", style=style)
    for name in missed:
        if name not in found.values:
            table.add_row(name, "not measured", "{} {:g}".format(*TARGETS[name]), style="red")
    console.print(table)


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()
