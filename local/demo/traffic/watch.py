"""One reading a second during the ramp: the fleet's pods, the machine, the client's records.

The live view shows each reading; the picture and the figures are made from all of them.
"""

import contextlib
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from local.demo.kube import Kube
from local.demo.traffic import pods
from local.demo.traffic.plan import RAMP, steps
from local.demo.traffic.score import Limits, Seen, attainment_at

RECENT_S = 12.0
"""Window of the attainment in a reading."""


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
    """Share of the requests that ended in the last 12 s and met the SLO; None if none ended."""
    prefill: tuple[int, int]
    """(ready, desired) replicas."""
    decode: tuple[int, int]
    """(ready, desired) replicas."""
    gpus: int
    """GPUs that the fleet's pods hold."""
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


def last_decision(status: dict[str, Any]) -> str:
    """`reason: message` of the last decision in a fleet's status."""
    record = status.get("autoscaling", {}).get("lastDecision", {})
    text = f"{record.get('reason', '')}: {record.get('message', '')}"
    return text if text != ": " else "none yet"


@dataclass
class Watch:
    """Takes a reading a second in a thread of its own, and shows it."""

    kube: Kube
    namespace: str
    fleet: str
    path: str
    records: Records
    limits: Limits
    show: Callable[[Reading], None]
    readings: list[Reading] = field(default_factory=list)
    names: dict[str, set[str]] = field(default_factory=dict)
    """Names of all pods that were seen, by role."""
    restarts: dict[str, int] = field(default_factory=dict)
    """Most container restarts of each pod that was seen, by its uid."""
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self, begin: float) -> None:
        """Read from `begin` on, the plan's second 0 on the monotonic clock."""
        self._thread = threading.Thread(target=self._run, args=(begin,), name="watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End after the reading in progress."""
        self._stop.set()
        if self._thread:
            self._thread.join()

    def _run(self, begin: float) -> None:
        busy = BusyShare()
        self._stop.wait(max(0.0, begin - time.monotonic()))
        while not self._stop.wait(1.0):
            # Without a reading of this second: the gap shows, and a long one fails the run.
            with contextlib.suppress(httpx.HTTPError):
                self._read(begin, busy)

    def _read(self, begin: float, busy: BusyShare) -> None:
        found = pods.look(self.kube, self.namespace, self.fleet)
        status = (self.kube.get(self.path) or {}).get("status", {})
        self.note(found)
        at, begun = time.monotonic() - begin, steps()
        phase = RAMP[max(n for n, step in enumerate(begun) if step <= at)]
        over = at > begun[-1] + RAMP[-1].seconds
        prefill, decode = (found.roles[role] for role in pods.ROLES)
        reading = Reading(
            at_s=at,
            phase="after" if over else phase.name,
            offered_rps=0.0 if over else phase.rate_per_s,
            attainment=attainment_at(self.records.read(), self.limits, at, RECENT_S),
            prefill=(prefill.ready, prefill.desired),
            decode=(decode.ready, decode.desired),
            gpus=found.gpus,
            cpu_share=busy.read(),
            decision=last_decision(status),
        )
        self.readings.append(reading)
        self.show(reading)

    def note(self, found: pods.Pods) -> None:
        """Remember names and restarts, also of pods that are removed later."""
        for role, names in found.names.items():
            self.names.setdefault(role, set()).update(names)
        for uid, restarts in found.restarts.items():
            self.restarts[uid] = max(restarts, self.restarts.get(uid, 0))
