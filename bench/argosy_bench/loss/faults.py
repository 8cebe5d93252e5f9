"""Carries out the events of a schedule; each returns when its fault is over.

A fault that lasts (a stopped process, a cut network) lasts until a number of requests have ended
meanwhile, so that it is felt at any speed of the machine.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator

from argosy_bench.loss.fleet import (
    Fleet,
    NotWholeError,
    Pod,
    name_of,
    processes_of,
    restarts_of,
    role_of,
    writes_of_the_operator,
)
from argosy_bench.loss.judge import Happened
from argosy_bench.loss.schedule import LEAST, Event, Kind
from local.cluster.errors import ApiError

FELT_BY = 12
"""Requests that end while a fault lasts."""
_LASTS_AT_MOST_S = 12.0
"""Of a fault that keeps requests from ending. Liveness probes give a pod 30 s."""

_CUT = """
# One way: what the pod sends still leaves.
table inet argosy_loss {{
  chain arrive {{ type filter hook input priority 0; tcp dport {port} drop; }}
}}
"""
_UNCUT = ["nft", "delete", "table", "inet", "argosy_loss"]
_DEVICE = ["dev", "eth0", "root"]
_RATE = ["rate", "200kbit", "burst", "16kb", "latency", "2s"]
_SLOW = ["tc", "qdisc", "add", *_DEVICE, "tbf", *_RATE]
_NOT_SLOW = ["tc", "qdisc", "del", *_DEVICE]


class Faults:
    """What can be done to a fleet."""

    def __init__(self, fleet: Fleet, ended: Callable[[], int]) -> None:
        self._fleet = fleet
        self._ended = ended
        """How many requests have ended so far."""
        self._batch = 64

    def carry_out(self, event: Event) -> Happened:
        """Let it happen and wait until the fleet is whole again."""
        began_s, detail = time.monotonic(), ""
        try:
            detail = self._do(event)
            self._fleet.until_whole(event.replicas)
        except (NotWholeError, ApiError, OSError, subprocess.CalledProcessError) as error:
            problem = f"{detail} {type(error).__name__}: {error}".strip()
            return Happened(event, began_s, time.monotonic(), recovered=False, detail=problem)
        return Happened(event, began_s, time.monotonic(), detail=detail)

    def _do(self, event: Event) -> str:
        match event.kind:
            case Kind.SCALE:
                self._fleet.scale(event.role, event.replicas[event.role])
                return ""
            case Kind.ROLLOUT:
                self._batch = 160 - self._batch  # 64 and 96 in turn
                self._fleet.edit(engine={"maxNumSeqs": self._batch})
                self._until_seen()
                return ""
            case Kind.MODE:
                return self._change_mode(event)
            case Kind.OPERATOR:
                return self._kill_operator(event)
        pod = self._victim(event.role, freshest=event.kind is not Kind.DELETE)
        match event.kind:
            case Kind.DELETE:
                self._fleet.delete(pod)
            case Kind.KILL:
                self._kill(pod)
            case Kind.STOP:
                self._stop(pod)
            case Kind.CUT:
                cut = _CUT.format(port=8002 if event.role == "prefill" else 8000)
                with _inside(pod, ["nft", "-f", "-"], _UNCUT, given=cut):
                    self._until_felt()
            case Kind.SLOW:
                with _inside(pod, _SLOW, _NOT_SLOW):
                    self._until_felt()
            case Kind.RECALL:
                self._recall(pod)
        return name_of(pod)

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

    def _change_mode(self, event: Event) -> str:
        """To colocated, and back when the fleet is whole in that mode. Its roles begin anew then,
        so that their replicas are asked for again."""
        self._fleet.edit(mode="colocated")
        self._until_seen()
        self._fleet.until_whole({"colocated": LEAST})
        self._fleet.edit(mode="disaggregated")
        self._until_seen()
        for role, replicas in event.replicas.items():
            self._fleet.scale(role, replicas)
        return ""

    def _kill_operator(self, event: Event) -> str:
        """Kill the leader after its first write for a change of replicas."""
        leader, before = self._fleet.operator(), writes_of_the_operator(self._fleet)
        self._fleet.scale(event.role, event.replicas[event.role])
        self._fleet.until("a write", lambda: writes_of_the_operator(self._fleet) > before, 30)
        _signal(leader, signal.SIGKILL)
        return name_of(leader)


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


@contextlib.contextmanager
def _inside(pod: Pod, begin: list[str], end: list[str], given: str = "") -> Iterator[None]:
    """Run one command in the pod's network before the block, and the other after it."""
    inside = ["nsenter", "-t", str(processes_of(pod)[0]), "-n", "--"]
    subprocess.run([*inside, *begin], input=given, text=True, check=True, capture_output=True)
    try:
        yield
    finally:
        subprocess.run([*inside, *end], check=False, capture_output=True)


def may_change_networks() -> bool:
    """Whether this user may enter a pod's network; an ordinary one may not."""
    return os.geteuid() == 0
