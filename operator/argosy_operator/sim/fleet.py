"""A fleet of prefill and decode pods in virtual time.

A prefill pod works off a queue, a decode pod steps a batch.

Requests come from `sim.loop`. Counters leave as samples with the names and labels of the real
programs, so that a law sees the simulator through the same `samples.assemble` as a cluster. Not
modelled: KV pressure, preemption, network. Steps take the times of a `goals.Profile`.
"""

from collections import deque
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import Literal

from argosy_operator.api.v1alpha1 import RoleName
from argosy_operator.core.scaling.goals import SLO, Goals, Profile
from argosy_operator.core.scaling.signals.samples import (
    KV_CAPACITY,
    OUTPUTS,
    OUTSTANDING,
    PROMPTS,
    PROMPTS_SQUARED,
    RECEIVED,
    RUNNING,
    STEP_COUNTERS,
    TRANSFERS,
    VERDICTS,
    Series,
)

Event = tuple[float, int, str, object]


@dataclass(frozen=True, slots=True)
class Setup:
    """What is simulated."""

    engine: Profile
    """How long steps take, the same in every pod."""
    goals: Goals
    cold_s: float
    """Seconds from "replica wanted" to "ready"."""
    gpus_per_replica: int = 4
    """As many as a replica of the 70B preset takes."""
    law: str = "goodput"
    """Name in `law.LAWS` of the law that decides."""

    @property
    def slo(self) -> SLO:
        """Raises ValueError without `goals.slo`: requests could not be scored."""
        if self.goals.slo is None:
            raise ValueError("goals.slo is missing: set it, so that requests can be scored")
        return self.goals.slo

    @property
    def keep_s(self) -> float:
        """How long samples are kept: the longest window that is asked for."""
        windows = self.goals.windows
        return max(windows.attainment_s, windows.lengths_s) + 2 * windows.scrape_s


@dataclass(slots=True)
class Request:
    """One request. Times are seconds of the simulation."""

    arrived: float
    prompt: int
    """Tokens."""
    output: int
    """Tokens of the whole answer."""
    first: float = 0.0
    """Time of the first token."""
    done: int = 0
    """Output tokens so far."""
    last: float = 0.0
    """Time of the newest token."""


@dataclass(slots=True)
class Pod:
    """One engine pod: a queue and what it works on."""

    name: str
    role: RoleName
    wanted_at: float
    ready_at: float
    draining: bool = False
    busy: bool = False
    """Whether a step is running."""
    waiting: deque[Request] = field(default_factory=deque)
    running: list[Request] = field(default_factory=list)
    counters: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STEP_COUNTERS, 0.0))

    @property
    def outstanding_tokens(self) -> int:
        """Prompt tokens that are queued or being prefilled."""
        own = self.running if self.role == "prefill" else []
        return sum(request.prompt for request in (*self.waiting, *own))

    @property
    def empty(self) -> bool:
        return not self.waiting and not self.running


def _count(pod: Pod, **growth: float) -> None:
    """Add one step to the pod's counters, by the names of `StepDelta`."""
    for name, part in STEP_COUNTERS.items():
        pod.counters[name] += 1 if part == "steps" else growth.get(part, 0.0)


class Fleet:
    """The simulated fleet: `advance` moves time, `scale` sets the replicas of a role."""

    def __init__(self, setup: Setup, start: float) -> None:
        self.setup, self.now = setup, start
        self.scrape_s = setup.goals.windows.scrape_s
        self.pods: dict[str, Pod] = {}
        self.starts: dict[RoleName, list[float]] = {"prefill": [], "decode": []}
        self.finished: list[Request] = []
        self.history: dict[tuple[str, tuple[tuple[str, str], ...]], deque[tuple[float, float]]] = {}
        self._names, self._order = count(), count()
        self._events: list[Event] = []
        self._held: deque[Request] = deque()
        self._gateway = dict.fromkeys(
            (RECEIVED, f"{PROMPTS}_sum", f"{PROMPTS}_count", PROMPTS_SQUARED), 0.0
        )
        self._gateway |= dict.fromkeys((f"{OUTPUTS}_sum", f"{OUTPUTS}_count"), 0.0)
        self._verdicts = {(ttft, tpot): 0.0 for ttft in ("ok", "miss") for tpot in ("ok", "miss")}
        self._at(start, "scrape", None)

    def arrive(self, at: float, prompt: int, output: int) -> None:
        """Let a request of so many tokens arrive at time `at`."""
        self._at(at, "arrive", Request(at, prompt, output))

    def live(self, role: RoleName) -> list[Pod]:
        """Pods that are wanted, ready or not."""
        return [pod for pod in self.pods.values() if pod.role == role and not pod.draining]

    def ready(self, role: RoleName) -> list[Pod]:
        """Pods that take requests."""
        return [pod for pod in self.live(role) if pod.ready_at <= self.now]

    def scale(self, role: RoleName, replicas: int, *, warm: bool = False) -> None:
        """New pods are ready after the cold start; surplus ones (least work first) drain."""
        pods = self.live(role)
        for _ in range(replicas - len(pods)):
            ready_at = self.now + (0.0 if warm else self.setup.cold_s)
            name = f"{role}-{next(self._names)}"
            self.pods[name] = Pod(name, role, self.now, ready_at)
            self._at(ready_at, "ready", name)
        surplus = sorted(
            pods, key=lambda pod: (pod.ready_at <= self.now, len(pod.running), -pod.wanted_at)
        )
        for pod in surplus[: max(len(pods) - replicas, 0)]:
            pod.draining = True
            self._retire(pod)

    def advance(self, until: float) -> None:
        """Let everything happen that is due by `until`."""
        while self._events and self._events[0][0] <= until:
            self.now, _, kind, what = heappop(self._events)
            self._happen(kind, what)
        self.now = until

    def series(self) -> tuple[Series, ...]:
        """Samples of the last `keep_s` as a Prometheus would return them."""
        oldest = self.now - self.setup.keep_s
        taken = []
        for (name, labels), samples in self.history.items():
            inside = tuple(s for s in samples if s[0] >= oldest)
            if inside:
                taken.append(Series(name, dict(labels), inside))
        return tuple(taken)

    def _at(self, time: float, kind: str, what: object) -> None:
        heappush(self._events, (time, next(self._order), kind, what))

    def _happen(self, kind: str, what: object) -> None:
        match kind, what:
            case "arrive", Request() as request:
                self._gateway[RECEIVED] += 1
                self._route("prefill", request)
            case "ready", str(name) if name in self.pods:
                pod = self.pods[name]
                self.starts[pod.role].append(pod.ready_at - pod.wanted_at)
                while self._held:
                    self._route("prefill", self._held.popleft())
            case "prefilled", Pod() as pod:
                self._prefilled(pod)
            case "stepped", Pod() as pod:
                self._stepped(pod)
            case "scrape", _:
                self._scrape()
                self._at(self.now + self.scrape_s, "scrape", None)

    def _route(self, role: Literal["prefill", "decode"], request: Request) -> None:
        pods = self.ready(role)
        if not pods:
            self._held.append(request)
            return
        if role == "prefill":
            pod = min(pods, key=lambda pod: pod.outstanding_tokens)
        else:
            pod = min(pods, key=lambda pod: len(pod.running) + len(pod.waiting))
        pod.waiting.append(request)
        if not pod.busy:
            self._begin(pod)

    def _begin(self, pod: Pod) -> None:
        if pod.role == "prefill":
            if not pod.waiting:
                return
            request = pod.waiting.popleft()
            pod.running = [request]
            seconds = self.setup.engine.prefill_s(request.prompt)
            _count(pod, seconds=seconds, prefill_tokens=request.prompt, prefill_requests=1)
            self._at(self.now + seconds, "prefilled", pod)
        else:
            pod.running.extend(pod.waiting)
            pod.waiting.clear()
            if not pod.running:
                return
            context = sum(request.prompt + request.done for request in pod.running)
            seconds = self.setup.engine.step_s(len(pod.running), context)
            sequences = len(pod.running)
            _count(pod, seconds=seconds, decode_sequences=sequences, context_tokens=context)
            self._at(self.now + seconds, "stepped", pod)
        pod.busy = True

    def _prefilled(self, pod: Pod) -> None:
        pod.busy = False
        request = pod.running.pop()
        request.first = request.last = self.now
        request.done = 1
        if request.done >= request.output:
            self._finish(request)
        else:
            self._route("decode", request)
        self._begin(pod)
        self._retire(pod)

    def _stepped(self, pod: Pod) -> None:
        pod.busy = False
        for request in pod.running:
            request.done += 1
            request.last = self.now
            if request.done >= request.output:
                self._finish(request)
        pod.running = [request for request in pod.running if request.done < request.output]
        self._begin(pod)
        self._retire(pod)

    def _retire(self, pod: Pod) -> None:
        if pod.draining and pod.empty:
            self.pods.pop(pod.name, None)

    def met(self, request: Request) -> tuple[bool, bool]:
        """(TTFT met, TPOT met)."""
        tpot = (request.last - request.first) / max(request.output - 1, 1)
        return (
            request.first - request.arrived <= self.setup.slo.ttft_s,
            tpot <= self.setup.slo.tpot_s,
        )

    def _finish(self, request: Request) -> None:
        self.finished.append(request)
        ttft, tpot = self.met(request)
        self._verdicts["ok" if ttft else "miss", "ok" if tpot else "miss"] += 1
        for name, by in (
            (f"{PROMPTS}_sum", request.prompt),
            (f"{PROMPTS}_count", 1),
            (PROMPTS_SQUARED, request.prompt**2),
            (f"{OUTPUTS}_sum", request.output),
            (f"{OUTPUTS}_count", 1),
        ):
            self._gateway[name] += by

    def _scrape(self) -> None:
        gateway = {"role": "gateway", "pod": "gateway-0"}
        for name, value in self._gateway.items():
            self._sample(
                name, gateway | ({"outcome": "accepted"} if name == RECEIVED else {}), value
            )
        for (ttft, tpot), value in self._verdicts.items():
            self._sample(VERDICTS, gateway | {"ttft": ttft, "tpot": tpot}, value)
        for pod in self.pods.values():
            if pod.ready_at > self.now:
                continue
            labels = {"role": pod.role, "pod": pod.name}
            for name, value in pod.counters.items():
                self._sample(name, labels, value)
            for part in ("sum", "count"):
                self._sample(f"{TRANSFERS}_{part}", labels | {"side": "receive"}, 0.0)
            self._sample(RUNNING, labels, len(pod.running))
            self._sample(OUTSTANDING, labels, pod.outstanding_tokens)
            self._sample(KV_CAPACITY, labels, self.setup.engine.kv_tokens)

    def _sample(self, name: str, labels: dict[str, str], value: float) -> None:
        key = (name, tuple(sorted(labels.items())))
        samples = self.history.setdefault(key, deque())
        samples.append((self.now, value))
        while samples[0][0] < self.now - self.setup.keep_s - self.scrape_s:
            samples.popleft()
