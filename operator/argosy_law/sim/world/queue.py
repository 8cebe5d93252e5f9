"""The gateway's queue: which request waits, and which goes next.

`fleet.World` asks it when a request comes and whenever work has left a pod. The rules are those of
`argosy_gateway.routing` (designs/0009-queue.md) for one gateway, one flow and one class; a test
plays both on the same load and compares their dispatches and refusals.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence
from copy import deepcopy
from heapq import heapify, heappop, heappush
from math import inf

from argosy_law.sim.traces import Trace
from argosy_law.sim.world.learnt import Margin, Pace, Places
from argosy_law.sim.world.machine import Setup
from argosy_law.sim.world.pods import ColocatedPod, DecodePod, PrefillPod, Request, least_open

LATE_EVERY = 16
"""Of so many dispatches one is a late one's, if any is late."""
STEP_TOKENS = 2048
"""What the gateway takes for an engine's step, whatever the engine's is."""
FEW_PROMPTS = 2
"""One that is computed and one that follows it without a gap."""
HOLD = 0.4
"""Share of the limit: behind a longer backlog a prompt would only wait in the engine."""
SHORT = 0.1
"""Share of the limit: a shorter backlog, which fits into one step, is nearly nothing."""


Prefiller = PrefillPod | ColocatedPod


class Queue:
    """Requests that wait in the gateway."""

    def __init__(self, setup: Setup, trace: Trace) -> None:
        self.tokens = 0
        """Prompt tokens of all that wait; 0 if none does."""
        self._trace, self._limit_s = trace, setup.ttft_s
        self._most = setup.replica.max_num_seqs
        self._in_time: list[tuple[float, Request]] = []
        """(last moment at which its prompt may begin, request), sorted."""
        self._late: list[Request] = []
        """Heap: those that came first."""
        self._since_late = 0
        self._timeout_s = setup.queue_timeout_s
        self._until: dict[Request, float] = {}
        """Of all that wait: when they stop waiting."""
        self._patience: list[tuple[float, Request]] = []
        """Heap of the same; who no longer waits, or waits until another time, may be in it, too."""
        self._paces: dict[int, Pace] = {}
        """By revision, once there is more than one; `_pace` is that of all pods."""
        self._pace, self._margin, self._places = Pace(), Margin(), Places(setup.tpot_s)
        self.bounds = self._places.bounds
        """Decode pods that may not have as many sequences as their batch; empty: none."""
        self._sent: dict[Request, tuple[float, int, int]] = {}
        """Of those without a first token: when it was sent, the prompt tokens outstanding on its
        pod then, its own included, and the pod's revision."""

    def edit(self, before: int) -> None:
        """Pods of another revision come beside those of `before`: their pace may be another."""
        self._paces.setdefault(before, deepcopy(self._pace))

    def seconds(self, pod: Prefiller) -> float:
        """Predicted time until the prompts of a pod are computed; 0 while no pace is known."""
        return self._pace_of(pod.revision).seconds(pod.tokens)

    def backlog(self, pod: Prefiller) -> tuple[float, int]:
        """Key by which pods are ordered: where a prompt would begin first."""
        return self.seconds(pod), pod.tokens

    def _pace_of(self, revision: int) -> Pace:
        """The pace of a revision's pods, or of all while that is unknown."""
        own = self._paces.get(revision) if self._paces else None
        return self._pace if own is None or not own.tokens_per_s else own

    def head(self, pods: list[DecodePod]) -> DecodePod | None:
        """The decode pod with the fewest requests of those that have a place."""
        found = least_open(pods)
        if found is None or (found.open < self._most and not self.bounds):
            return found
        if self.has_place(found):
            return found
        found = None
        for pod in pods:
            if (found is None or pod.open < found.open) and self.has_place(pod):
                found = pod
        return found

    def has_place(self, pod: DecodePod) -> bool:
        """Whether a pod takes one more sequence."""
        return pod.open < self._most and self._places.has_room(pod.name, pod.open)

    def refuses(
        self, request: Request, now: float, pods: Sequence[Prefiller], pod: Prefiller | None
    ) -> bool:
        """Whether a request that has just come is sent away: what is ahead of it takes longer than
        it may wait, and it would miss its limit on the pod where its prompt would begin first."""
        if not self.tokens or not pods or not self._pace.tokens_per_s:
            return False
        prompt = self._trace.prompt[request]
        ahead = self.tokens + sum(one.tokens for one in pods) + prompt
        per_s = sum(self._pace_of(one.revision).tokens_per_s for one in pods)
        if ahead / per_s <= self._timeout_s:
            return False
        if pod is None:
            return True
        took_s = self.seconds(pod) + self._pace_of(pod.revision).seconds(prompt)
        return took_s > self._margin.share(now) * self._limit_s

    def impatient_at(self) -> float:
        """When the first that waits stops waiting; inf if none does."""
        heap, until = self._patience, self._until
        while heap and until.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else inf

    def wait_until(self, request: Request, until: float) -> None:
        """A request that waits stops waiting then; inf: it waits for as long as it must."""
        self._until[request] = until
        if until < inf:
            heappush(self._patience, (until, request))

    def give_up(self, now: float) -> list[Request]:
        """Those that have waited for too long; they wait no longer."""
        gone: list[Request] = []
        while self.impatient_at() <= now:
            gone.append(heappop(self._patience)[1])
            del self._until[gone[-1]]
        if gone:
            left = set(gone)
            self._in_time = [row for row in self._in_time if row[1] not in left]
            self._late = [request for request in self._late if request not in left]
            heapify(self._late)
            self.tokens -= sum(self._trace.prompt[request] for request in gone)
        return gone

    def passes(self, request: Request, now: float, pod: Prefiller | None) -> bool:
        """Whether a request that has just come goes at once; if not, it waits here from now on.

        `pod` is where its prompt would begin first; None: no pod takes it.
        """
        prompt, per_s = self._trace.prompt[request], self._pace.tokens_per_s
        limit_s = self._margin.share(now) * self._limit_s
        start_by = self._trace.arrival[request] + limit_s - (prompt / per_s if per_s else 0.0)
        if (
            pod is not None
            and not self.tokens
            and (len(pod.queue) < FEW_PROMPTS or self._has_room(pod))
            and now + self.seconds(pod) <= start_by
        ):
            return True
        insort(self._in_time, (start_by, request))
        self.tokens += prompt
        self.wait_until(request, now + self._timeout_s)
        return False

    def next(self, now: float, pod: Prefiller) -> Request | None:
        """The request that goes to this pod now and no longer waits; None if all must wait."""
        self._age(now)
        index = bisect_left(self._in_time, (now + self.seconds(pod), -1))
        timely = index < len(self._in_time)
        late = bool(self._late) and (self._since_late >= LATE_EVERY - 1 or not timely)
        if not self._nearly_idle(pod) and not (timely and self._has_room(pod)):
            return None
        if late:
            request = heappop(self._late)
            self._since_late = 0
        elif self._in_time:
            _, request = self._in_time.pop(index if timely else 0)
            self._since_late = self._since_late + 1 if self._late else 0
        else:
            return None
        self.tokens -= self._trace.prompt[request]
        del self._until[request]
        return request

    def sent(self, request: Request, now: float, pod: Prefiller, tokens: int) -> None:
        """A request with so many tokens to compute goes to a pod now."""
        self._sent[request] = (now, pod.tokens + tokens, pod.revision)

    def computed(self, request: Request, now: float) -> None:
        """Its prompt is computed."""
        sent = self._sent.pop(request, None)
        if sent is None:  # it came again from a pod that has gone
            return
        sent_at, ahead, revision = sent
        trace = self._trace
        arrival = trace.arrival[request]
        if now - arrival > self._limit_s:
            self._margin.missed(
                predicted_s=sent_at - arrival + self._pace_of(revision).seconds(ahead),
                ttft_s=now - arrival,
                limit_s=self._limit_s,
                sent_at=sent_at,
                now=now,
            )
        self._pace.observe(ahead, trace.prompt[request], now - sent_at)
        if self._paces:
            own = self._paces.setdefault(revision, Pace())
            own.observe(ahead, trace.prompt[request], now - sent_at)

    def lost(self, request: Request) -> None:
        """Its pod has gone before its prompt was computed."""
        self._sent.pop(request, None)

    def stepped(self, pod: DecodePod, now: float) -> None:
        """Steps of a decode pod have ended. It may be left out while they keep the limit and
        `bounds` is empty."""
        if self._places.due(pod.name, pod.first_s, now):
            self._places.observe(pod.name, sequences=pod.open, tpot_s=pod.first_s, now=now)

    def _age(self, now: float) -> None:
        """Move what can no longer meet its limit to the late ones."""
        line = self._in_time
        if line and line[0][0] < now:
            count = bisect_left(line, (now, -1))
            for _, request in line[:count]:
                heappush(self._late, request)
            del line[:count]

    def _has_room(self, pod: Prefiller) -> bool:
        """Whether a request goes to a pod on which it meets its limit. Otherwise the pod has a full
        step of prompts, and another prompt to follow them."""
        if len(pod.queue) < FEW_PROMPTS or pod.tokens < STEP_TOKENS:
            return True
        return self.seconds(pod) <= HOLD * self._limit_s

    def _nearly_idle(self, pod: Prefiller) -> bool:
        if not pod.queue or not self._pace.tokens_per_s:
            return True
        short = self.seconds(pod) < SHORT * self._limit_s
        return short and pod.tokens < STEP_TOKENS
