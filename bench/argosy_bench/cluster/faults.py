"""Carries out the events of a schedule; each returns when its fault is over.

A fault that lasts (a stopped process, a cut network) lasts until a number of requests have ended
meanwhile, so that it is felt at any speed of the machine. Rules of networks are put into the pod's
own network, so that nothing else on the machine feels them; this needs the rights of root. Writes
of the operator are read from the API server's log, which names the pod that made each.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

import httpx

from argosy_bench.cluster.fleet import (
    Fleet,
    NotWholeError,
    Pod,
    name_of,
    processes_of,
    restarts_of,
    role_of,
    uid_of,
)
from argosy_bench.cluster.judge import Happened, Mark
from argosy_bench.cluster.schedule import LEAST, Event, Kind, other_role
from local.cluster.errors import ApiError
from local.demo.places.place import SYSTEM

API, KV = 8000, 8002
_THROUGH = 18002
"""Where the damaging process listens; no port of a pod."""

_DROPPED = """
# One way: what the pod sends still leaves.
table inet argosy_loss {{
  chain arrive {{ type filter hook input priority 0; tcp dport {port} drop; }}
}}
"""
_DIVERTED = """
# Only what comes from outside: the damaging process itself reaches the port.
table inet argosy_loss {{
  chain arrive {{
    type nat hook prerouting priority -100;
    tcp dport {port} redirect to :{through};
  }}
}}
"""
_UNDO = ["nft", "delete", "table", "inet", "argosy_loss"]
_DEVICE = ["dev", "eth0", "root"]
_RATE = ["rate", "200kbit", "burst", "16kb", "latency", "2s"]


def may_change_networks() -> bool:
    """Whether this user may enter a pod's network; an ordinary one may not."""
    return os.geteuid() == 0


def _inside(pod: Pod) -> list[str]:
    return ["nsenter", "-t", str(processes_of(pod)[0]), "-n", "--"]


@contextlib.contextmanager
def _changed(
    inside: list[str], begin: list[str], end: list[str], given: str = ""
) -> Iterator[None]:
    """Run one command in the pod's network before the block, and the other after it."""
    subprocess.run([*inside, *begin], input=given, text=True, check=True, capture_output=True)
    try:
        yield
    finally:
        subprocess.run([*inside, *end], check=False, capture_output=True)


@contextlib.contextmanager
def cut(pod: Pod, port: int) -> Iterator[None]:
    """Packets to this port of the pod are dropped."""
    with _changed(_inside(pod), ["nft", "-f", "-"], _UNDO, _DROPPED.format(port=port)):
        yield


@contextlib.contextmanager
def slowed(pod: Pod) -> Iterator[None]:
    """The pod sends 200 kbit/s."""
    begin = ["tc", "qdisc", "add", *_DEVICE, "tbf", *_RATE]
    with _changed(_inside(pod), begin, ["tc", "qdisc", "del", *_DEVICE]):
        yield


@contextlib.contextmanager
def corrupted(pod: Pod, port: int, seed: int) -> Iterator[None]:
    """A bit in each direction of each new connection to this port arrives turned over."""
    inside, address = _inside(pod), pod["status"]["podIP"]
    program = [sys.executable, "-m", "argosy_bench.cluster.corrupting"]
    words = [*inside, *program, str(_THROUGH), address, str(port), str(seed)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                raise OSError("the process that damages bytes does not listen: see above")
            rules = _DIVERTED.format(port=port, through=_THROUGH)
            with _changed(inside, ["nft", "-f", "-"], _UNDO, rules):
                yield
        finally:
            process.kill()


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


FELT_BY = 8
"""Requests that end while a fault lasts."""
_LASTS_AT_MOST_S = 12.0
"""Of a fault that keeps requests from ending. Liveness probes give a pod 30 s."""
_BETWEEN_FLIPS_S = 31.0
"""The operator's own pause between two flips (designs/0013), and a second."""
_FAILED = (NotWholeError, ApiError, httpx.HTTPError, OSError, subprocess.CalledProcessError)
"""What an event ends with that the fleet does not recover from."""


class Faults:
    """What can be done to a fleet."""

    def __init__(self, fleet: Fleet, ended: Callable[[], int]) -> None:
        self._fleet = fleet
        self._ended = ended
        """How many requests have ended so far."""
        self._batch = 64
        self._flipped_s = float("-inf")
        self._detail = ""

    def carry_out(self, event: Event) -> Happened:
        """Let it happen and wait until the fleet is whole again."""
        began_s, self._detail, marks = time.monotonic(), "", set[Mark]()
        recovered = True
        try:
            with self._during(event, marks):
                self._fleet.until_whole(event.replicas)
        except _FAILED as error:
            recovered = False
            self._detail = f"{self._detail} {type(error).__name__}: {error}".strip()
        detail, whole_s = self._detail, time.monotonic()
        return Happened(event, began_s, whole_s, recovered, detail, frozenset(marks))

    @contextlib.contextmanager
    def _during(self, event: Event, marks: set[Mark]) -> Iterator[None]:
        """The event happens before the block, in which the fleet becomes whole; what is to be seen
        only then is looked at after it."""
        match event.kind:
            case Kind.OPERATOR:
                with self._kill_operator(event, marks):
                    yield
            case Kind.FLIP:
                with self._flip(event, marks):
                    yield
            case Kind.SCALE | Kind.ROLLOUT | Kind.MODE:
                self._change(event)
                yield
            case _:
                self._befall(event)
                yield

    def _change(self, event: Event) -> None:
        """What a user asks for."""
        match event.kind:
            case Kind.SCALE:
                self._fleet.scale(event.role, event.replicas[event.role])
            case Kind.ROLLOUT:
                self._roll_out()
                self._until_seen()
            case Kind.MODE:
                self._change_mode(event)

    def _befall(self, event: Event) -> None:
        """What happens to one pod."""
        pod = self._victim(event.role, freshest=event.kind is not Kind.DELETE)
        self._detail = name_of(pod)
        match event.kind:
            case Kind.DELETE:
                self._fleet.delete(pod)
            case Kind.KILL:
                self._kill(pod)
            case Kind.STOP:
                self._stop(pod)
            case Kind.RECALL:
                self._recall(pod)
            case Kind.CUT | Kind.SLOW | Kind.CORRUPT:
                with self._bad_network(event, pod):
                    self._until_felt()

    def _bad_network(self, event: Event, pod: Pod) -> contextlib.AbstractContextManager[None]:
        port = KV if event.role == "prefill" else API
        match event.kind:
            case Kind.CUT:
                return cut(pod, port)
            case Kind.SLOW:
                return slowed(pod)
        return corrupted(pod, port, event.number)

    def _victim(self, role: str, *, freshest: bool) -> Pod:
        """The pod whose container was restarted least often, because kubelets wait longer after
        each restart; one that is deleted is the most restarted."""
        pods = sorted(self._fleet.pods(role), key=lambda p: (restarts_of(p), name_of(p)))
        return pods[0 if freshest else -1]

    def _until_felt(self) -> None:
        before = self._ended()
        with contextlib.suppress(NotWholeError):
            self._fleet.until(
                "requests end", lambda: self._ended() >= before + FELT_BY, _LASTS_AT_MOST_S
            )

    def _until_seen(self) -> None:
        """Until the operator has seen the spec: a fleet may look whole that has not begun."""
        self._fleet.until("the operator sees the spec", self._fleet.is_observed)

    def _kill(self, pod: Pod) -> None:
        before = restarts_of(pod)
        _signal(pod, signal.SIGKILL)

        def restarted() -> bool:
            now = [p for p in self._fleet.pods(role_of(pod)) if name_of(p) == name_of(pod)]
            return not now or restarts_of(now[0]) > before

        self._fleet.until(f"{name_of(pod)} is started again", restarted)

    def _stop(self, pod: Pod) -> None:
        stopped = _signal(pod, signal.SIGSTOP)
        try:
            self._until_felt()
        finally:
            for process in stopped:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGCONT)

    def _recall(self, pod: Pod) -> None:
        """As a person: begin a drain, and take it back when the gateways have seen it."""
        self._fleet.annotate(pod, drain=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
        try:
            self._until_felt()
        finally:
            self._fleet.annotate(pod, drain=None)

    def _roll_out(self) -> None:
        self._batch = 160 - self._batch  # 64 and 96 in turn
        self._fleet.edit(engine={"maxNumSeqs": self._batch})

    def _change_mode(self, event: Event) -> None:
        """To colocated, and back when the fleet is whole in that mode. Its roles begin anew then,
        so that their replicas are asked for again."""
        self._fleet.edit(mode="colocated")
        self._until_seen()
        self._fleet.until_whole({"colocated": LEAST})
        self._fleet.edit(mode="disaggregated")
        self._until_seen()
        for role, replicas in event.replicas.items():
            self._fleet.scale(role, replicas)

    @contextlib.contextmanager
    def _flip(self, event: Event, marks: set[Mark]) -> Iterator[None]:
        """One role is to have a pod less and the other one more; a pod is marked that stays."""
        taker, giver = event.role, other_role(event.role)
        ahead = {taker: event.replicas[taker] - 1, giver: event.replicas[giver] + 1}
        for role, replicas in ahead.items():
            self._fleet.scale(role, replicas)
        self._fleet.until_whole(ahead)
        due_s = self._flipped_s + _BETWEEN_FLIPS_S
        self._fleet.until("a flip may be", lambda: time.monotonic() > due_s)
        before = {uid_of(pod) for pod in self._fleet.pods(giver)}
        for role in (giver, taker):
            self._fleet.scale(role, event.replicas[role])
        yield
        flipped = [pod for pod in self._fleet.pods(taker) if uid_of(pod) in before]
        self._flipped_s = time.monotonic()
        self._detail = f"flipped: {' '.join(map(name_of, flipped)) or 'none, a pod was started'}"
        if flipped:
            marks.add(Mark.FLIPPED)

    @contextlib.contextmanager
    def _kill_operator(self, event: Event, marks: set[Mark]) -> Iterator[None]:
        """Kill the leader between two of the writes that a change of the fleet needs."""
        with AT_A_TIME, writes_into(self._fleet) as writes:
            leader = self._fleet.operator()
            if event.role:
                self._fleet.scale(event.role, event.replicas[event.role])
            else:
                self._roll_out()
            # A change of replicas needs one write before its status, a rollout several.
            count = 1 if event.role else 1 + event.number % 4
            made = kill_after(self._fleet, leader, writes, count)
            self._detail = f"{name_of(leader)} killed after {made} writes"
            self._until_seen()
            yield
            with contextlib.suppress(NotWholeError):  # the fleet may be whole before anyone leads
                self._fleet.until("a write", lambda: writes.read().total() > made, 30)
            later = writes.read().total() - made
            self._detail += f", {later} were made later"
            if later:
                marks.add(Mark.BETWEEN_WRITES)


def _signal(pod: Pod, number: signal.Signals) -> list[int]:
    """Signal all processes of a pod; those that got it. NotWholeError if none runs."""
    reached = []
    for process in processes_of(pod):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)
            reached.append(process)
    if not reached:
        raise NotWholeError(f"no process of pod {name_of(pod)} runs")
    return reached
