"""The gateway's queue: which request waits, and which goes next.

`fleet.World` asks it when a request comes and whenever work has left a pod. The rules are those of
`argosy_gateway.queue` (designs/0009-queue.md) for one gateway, one flow and one class; a test plays
both on the same load and compares their dispatches. No request is refused: what waits longer than
`--queue-timeout-s` goes on waiting.
"""

from bisect import bisect_left, insort
from heapq import heappop, heappush
from operator import attrgetter

from argosy_operator.sim.traces import Trace
from argosy_operator.sim.world.learnt import Margin, Pace, Places
from argosy_operator.sim.world.machine import Setup
from argosy_operator.sim.world.pods import ColocatedPod, DecodePod, PrefillPod, Request

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


_least_open = attrgetter("open")
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
        self._pace, self._margin, self._places = Pace(), Margin(), Places(setup.tpot_s)
        self._sent: dict[Request, tuple[float, int]] = {}
        """Of those without a first token: when it was sent, and the prompt tokens outstanding on
        its pod then, its own included."""

    def head(self, pods: list[DecodePod]) -> DecodePod | None:
        """The decode pod with the fewest requests of those that have a place."""
        found = min(pods, key=_least_open, default=None)
        if found is None or self.has_place(found):
            return found
        found = None
        for pod in pods:
            if (found is None or pod.open < found.open) and self.has_place(pod):
                found = pod
        return found

    def has_place(self, pod: DecodePod) -> bool:
        """Whether a pod takes one more sequence."""
        return pod.open < self._most and self._places.has_room(pod.name, pod.open)

    def passes(self, request: Request, now: float, pod: Prefiller | None) -> bool:
        """Whether a request that has just come goes at once; if not, it waits here from now on.

        `pod` is where its prompt would begin first; None: no pod takes it.
        """
        prompt = self._trace.prompt[request]
        limit_s = self._margin.share(now) * self._limit_s
        start_by = self._trace.arrival[request] + limit_s - self._pace.seconds(prompt)
        if not self.tokens and pod is not None and self._has_room(pod):
            goes = now + self._pace.seconds(pod.tokens) <= start_by
            if goes:
                return True
        insort(self._in_time, (start_by, request))
        self.tokens += prompt
        return False

    def next(self, now: float, pod: Prefiller) -> Request | None:
        """The request that goes to this pod now and no longer waits; None if all must wait."""
        self._age(now)
        index = bisect_left(self._in_time, (now + self._pace.seconds(pod.tokens), -1))
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
        return request

    def sent(self, request: Request, now: float, pod: Prefiller, tokens: int) -> None:
        """A request with so many tokens to compute goes to a pod now."""
        self._sent[request] = (now, pod.tokens + tokens)

    def computed(self, request: Request, now: float) -> None:
        """Its prompt is computed."""
        if request not in self._sent:  # it came again from a pod that has gone
            return
        sent_at, ahead = self._sent.pop(request)
        arrival = self._trace.arrival[request]
        if now - arrival > self._limit_s:
            self._margin.missed(
                predicted_s=sent_at - arrival + self._pace.seconds(ahead),
                ttft_s=now - arrival,
                limit_s=self._limit_s,
                sent_at=sent_at,
                now=now,
            )
        self._pace.observe(ahead, self._trace.prompt[request], now - sent_at)

    def lost(self, request: Request) -> None:
        """Its pod has gone before its prompt was computed."""
        self._sent.pop(request, None)

    def stepped(self, pod: DecodePod, now: float) -> None:
        """Steps of a decode pod have ended."""
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
        return self._pace.seconds(pod.tokens) <= HOLD * self._limit_s

    def _nearly_idle(self, pod: Prefiller) -> bool:
        if not pod.queue or not self._pace.tokens_per_s:
            return True
        short = self._pace.seconds(pod.tokens) < SHORT * self._limit_s
        return short and pod.tokens < STEP_TOKENS
