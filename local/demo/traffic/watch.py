"""One reading a second during the ramp: the fleet's status, the machine, the client's records.

The live view shows each reading; the picture and the figures are made from all of them.
"""

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from local.demo.kube import Kube
from local.demo.traffic.plan import RAMP, steps
from local.demo.traffic.score import Limits, Seen, attainment


@dataclass(frozen=True, slots=True)
class Reading:
    """One second of the ramp."""

    at_s: float
    """Seconds since the load began."""
    phase: str
    """Name of the plan's phase; `after` when the plan has ended."""
    offered_rps: float
    """Requests a second that the plan sends in this phase."""
    attainment: float | None
    """Share of the requests due in the last 12 s that met the SLO; None if none ended."""
    prefill: tuple[int, int]
    """(ready, desired) replicas."""
    decode: tuple[int, int]
    """(ready, desired) replicas."""
    gpus: int
    """GPUs that both roles hold."""
    cpu_share: float
    """Busy share of all cores since the last reading, 0 to 1."""
    decision: str
    """The scaling law's last decision, as the fleet's status gives it."""


class Records:
    """Reads the client's output file while it grows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._at = 0
        self.seen: list[Seen] = []

    def read(self) -> list[Seen]:
        """All records so far."""
        if self.path.exists():
            with self.path.open() as lines:
                lines.seek(self._at)
                while (line := lines.readline()).endswith("\n"):
                    self.seen.append(Seen(**json.loads(line)))
                    self._at = lines.tell()
        return self.seen


class BusyShare:
    """Busy share of all cores since the last call, from /proc/stat."""

    def __init__(self) -> None:
        self._last = self._now()

    def read(self) -> float:
        """Between 0 and 1."""
        last, self._last = self._last, self._now()
        total = self._last[1] - last[1]
        return (self._last[0] - last[0]) / total if total else 0.0

    @staticmethod
    def _now() -> tuple[int, int]:
        ticks = [int(n) for n in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        idle = ticks[3] + ticks[4]
        return sum(ticks) - idle, sum(ticks)


def roles(status: dict[str, Any]) -> tuple[tuple[int, int], tuple[int, int], int]:
    """(ready, desired) of prefill and of decode, and the GPUs they hold, from a fleet's status."""
    found = status.get("roles", {})
    pairs = []
    gpus = 0
    for name in ("prefill", "decode"):
        role = found.get(name, {})
        pairs.append((int(role.get("ready", 0)), int(role.get("desired", 0))))
        gpus += int(role.get("gpus", 0))
    return pairs[0], pairs[1], gpus


def last_decision(status: dict[str, Any]) -> str:
    """`reason: message` of the last decision in a fleet's status."""
    record = status.get("autoscaling", {}).get("lastDecision", {})
    text = f"{record.get('reason', '')}: {record.get('message', '')}"
    return text if text != ": " else "none yet"


@dataclass
class Watch:
    """Takes a reading a second in a thread of its own, and shows it."""

    kube: Kube
    path: str
    records: Records
    limits: Limits
    show: Callable[[Reading], None]
    readings: list[Reading] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _start: float = 0.0

    def start(self) -> None:
        """Begin; now is second 0 of the plan."""
        self._start = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End after the reading in progress."""
        self._stop.set()
        if self._thread:
            self._thread.join()

    def _run(self) -> None:
        busy = BusyShare()
        begun = steps()
        while not self._stop.wait(1.0):
            at = time.monotonic() - self._start
            number = max(n for n, begin in enumerate(begun) if begin <= at)
            over = at > begun[-1] + RAMP[-1].seconds
            phase = RAMP[number]
            recent = [r for r in self.records.read() if at - 12 < r.due_s <= at]
            status = (self.kube.get(self.path) or {}).get("status", {})
            prefill, decode, gpus = roles(status)
            reading = Reading(
                at_s=at,
                phase="after" if over else phase.name,
                offered_rps=0.0 if over else phase.rate_per_s,
                attainment=attainment(recent, self.limits),
                prefill=prefill,
                decode=decode,
                gpus=gpus,
                cpu_share=busy.read(),
                decision=last_decision(status),
            )
            self.readings.append(reading)
            self.show(reading)
