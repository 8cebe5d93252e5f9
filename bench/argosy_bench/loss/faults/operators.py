"""Kills the operator that leads after a number of its writes for one fleet.

Writes are read from the API server's log, which names the pod that made each. So it is also seen
whether the kill was between two writes of one change: the leader had made some, and the next leader
had to make more.
"""

import contextlib
import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator

from argosy_bench.loss.fleet import (
    Fleet,
    NotWholeError,
    Pod,
    name_of,
    processes_of,
    restarts_of,
)
from local.demo.places.place import SYSTEM

AT_A_TIME = threading.Lock()
"""One fleet at a time kills the operator: it is the same one for all fleets."""
_WRITES = ("create", "update", "patch", "delete")
_NOT_OF_A_FLEET = ("leases", "events")
_POD = "authentication.kubernetes.io/pod-name"
_LOOK_EVERY_S = 0.002
"""A write takes an operator several milliseconds."""
_WITHIN_S = 30.0


class Writes:
    """What operators have written into one namespace since this object was made."""

    def __init__(self, fleet: Fleet) -> None:
        self._namespace, self._path = fleet.namespace, fleet.cluster.audit_log
        self._log = self._path.open()
        self._log.seek(0, os.SEEK_END)
        self._part = ""
        self.by_pod: Counter[str] = Counter()

    def read(self) -> Counter[str]:
        """Read on, and return the writes by pod."""
        self._part += self._log.read()
        if self._path.stat().st_ino != os.fstat(self._log.fileno()).st_ino:  # a new log was begun
            self._log.close()
            self._log = self._path.open()
            self._part += self._log.read()
        *lines, self._part = self._part.split("\n")
        self.by_pod.update(pod for line in lines if (pod := writer(line, self._namespace)))
        return self.by_pod

    def close(self) -> None:
        """Close the log."""
        self._log.close()


def writer(line: str, namespace: str) -> str | None:
    """The operator's pod that made this write of the log in the namespace; None for all else."""
    if f"{SYSTEM}:argosy-operator" not in line or f'"{namespace}"' not in line:
        return None
    with contextlib.suppress(ValueError, KeyError):
        entry = json.loads(line)
        about = entry["objectRef"]
        if (
            entry["verb"] in _WRITES
            and about["namespace"] == namespace
            and about["resource"] not in _NOT_OF_A_FLEET
        ):
            pod: str = entry["user"]["extra"][_POD][0]
            return pod
    return None


@contextlib.contextmanager
def writes_into(fleet: Fleet) -> Iterator[Writes]:
    """Writes from the beginning of the block on."""
    writes = Writes(fleet)
    try:
        yield writes
    finally:
        writes.close()


def kill_after(fleet: Fleet, leader: Pod, writes: Writes, count: int) -> int:
    """SIGKILL the leader as soon as it has made so many writes; how many it has made then.
    NotWholeError if it makes none within 30 s."""
    processes = processes_of(leader)
    deadline = time.monotonic() + _WITHIN_S
    while writes.read()[name_of(leader)] < count and time.monotonic() < deadline:
        time.sleep(_LOOK_EVERY_S)
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    fleet.until("the leader is gone", lambda: not set(processes) & set(processes_of(leader)))
    if restarts_of(leader):  # kubelets wait longer after each restart, and no one would lead
        fleet.delete_at_once(leader)
    if not (made := writes.read()[name_of(leader)]):
        raise NotWholeError(f"{name_of(leader)} wrote nothing within {_WITHIN_S:.0f} s")
    return made
