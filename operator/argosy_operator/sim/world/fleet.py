"""The fleet: requests arrive, are computed, move and are answered; pods start, serve and leave.

`replay` and `hindsight` call `scale` and `advance`. Arrivals never wait for answers. A request gets
its two pods when it comes, as the gateway gives them: the prefill pod with the fewest prompt tokens
to compute and the decode pod with the fewest requests; it waits in the gateway while a role has no
ready pod. Its first token leaves when its prompt is computed. Its KV moves once the decode pod has
room for prompt and answer, one prompt at a time over each pod's link, and it joins the batch at the
next edge of a step.
"""

from collections import deque
from heapq import heappop, heappush
from math import inf, log, nan
from operator import attrgetter
from random import Random
from typing import Literal

from argosy_operator.sim.traces import Trace
from argosy_operator.sim.world.machine import Setup, steps_s, steps_until
from argosy_operator.sim.world.pods import DecodePod, Order, Pod, PrefillPod

PoolName = Literal["prefill", "decode"]
_STEP, _READY, _DEADLINE = range(3)

_least_tokens = attrgetter("tokens")
_least_open = attrgetter("open")


class World:
    """The simulated fleet and its requests. Equal arguments and calls give equal results."""

    def __init__(self, setup: Setup, trace: Trace) -> None:
        self.setup, self.trace, self.now = setup, trace, 0.0
        self.pods: dict[PoolName, list[Pod]] = {"prefill": [], "decode": []}
        """All that were ever created, oldest first."""
        self.first = [nan] * len(trace)
        """When each request had its first token; NaN if it never had."""
        self.last = [nan] * len(trace)
        """When each request had its last token; NaN if it was killed."""
        self.arrived = self.ended = self.killed = 0
        self.ended_prompt = self.ended_prompt_squared = self.ended_output = 0
        """Sums over answered requests, in tokens."""
        self.verdicts = {(ttft, tpot): 0 for ttft in (True, False) for tpot in (True, False)}
        """Ended requests by (TTFT met, TPOT met)."""
        self.held: deque[Order] = deque()
        """Requests that wait in the gateway for a ready pod of each role."""
        self._work = trace.computed_tokens()
        self._head: list[DecodePod | None] = [None] * len(trace)
        self._ready_prefill: list[PrefillPod] = []
        self._ready_decode: list[DecodePod] = []
        self._events: list[tuple[float, int, int, Pod, float]] = []
        self._order = 0
        self._random = Random(f"pods {setup.seed}")  # noqa: S311 (a simulation, not a secret)

    @property
    def finished(self) -> bool:
        """Whether every request has ended."""
        return self.ended == len(self.trace)

    def advance(self, until: float) -> None:
        """Let everything happen that is due by `until`."""
        events, arrivals = self._events, self.trace.arrival
        arrived, requests = self.arrived, len(arrivals)
        arrival = arrivals[arrived] if arrived < requests else inf
        while True:
            if events and events[0][0] <= arrival:
                if events[0][0] > until:
                    break
                now, _, kind, pod, stamp = heappop(events)
                self.now = now
                if kind != _STEP:
                    self._change(kind, pod, stamp)
                elif isinstance(pod, DecodePod):
                    if stamp == pod.version:
                        self._stepped(pod)
                elif isinstance(pod, PrefillPod) and not pod.gone:
                    self._prefilled(pod)
            else:
                if arrival > until or arrived >= requests:
                    break
                self.now = arrival
                self._route(arrived)
                arrived += 1
                self.arrived = arrived
                arrival = arrivals[arrived] if arrived < requests else inf
        if until < inf:
            self.now = until

    def wanted(self, role: PoolName) -> list[Pod]:
        """Pods that stay, ready or not."""
        return [pod for pod in self.pods[role] if not pod.draining and not pod.gone]

    def living(self, role: PoolName) -> list[Pod]:
        """Pods that exist, leaving ones included."""
        return [pod for pod in self.pods[role] if pod.gone_at > self.now]

    def scale(self, role: PoolName, replicas: int, *, warm: bool = False) -> None:
        """Want so many pods. Leaving ones are called back first; new ones take a cold start.

        Pods that are not ready leave first, then those with the least work, the newest first.
        """
        pods = self.wanted(role)
        missing = replicas - len(pods)
        leaving = [pod for pod in self.pods[role] if pod.draining and not pod.gone]
        recalled = leaving[::-1][: max(missing, 0)]
        for pod in recalled:
            pod.drain_at = inf
            self._serve(pod)
        for _ in range(missing - len(recalled)):
            self._create(role, warm=warm)
        pods.reverse()  # a sort keeps the order of equals: the newest first
        pods.sort(key=lambda pod: (pod.ready_at <= self.now, pod.open))
        for pod in pods[: max(-missing, 0)]:
            self._drain(pod)

    # --- pods ---------------------------------------------------------------------------------

    def _create(self, role: PoolName, *, warm: bool) -> None:
        cold, replica = self.setup.cold, self.setup.replica
        start_s = 0.0
        if not warm:
            start_s = cold.median_s
            if cold.sigma > 0:
                start_s = self._random.lognormvariate(log(cold.median_s), cold.sigma)
        name, ready_at = f"{role}-{len(self.pods[role])}", self.now + start_s
        pod: Pod
        if role == "prefill":
            pod = PrefillPod(name=name, created_at=self.now, ready_at=ready_at)
        else:
            free = int(replica.profile.kv_tokens)
            pod = DecodePod(name=name, created_at=self.now, ready_at=ready_at, kv_free=free)
        self.pods[role].append(pod)
        if warm:
            self._serve(pod)
        else:
            self._at(ready_at, _READY, pod)

    def _serve(self, pod: Pod) -> None:
        """Let it take requests, and give it those that waited for a pod."""
        if isinstance(pod, PrefillPod):
            self._ready_prefill.append(pod)
        elif isinstance(pod, DecodePod):
            self._ready_decode.append(pod)
        held, self.held = self.held, deque()
        for request in held:
            self._route(request)

    def _drain(self, pod: Pod) -> None:
        pod.drain_at = self.now
        ready: list[PrefillPod] | list[DecodePod] = (
            self._ready_prefill if isinstance(pod, PrefillPod) else self._ready_decode
        )
        if pod in ready:
            ready.remove(pod)  # type: ignore[arg-type]
        if pod.open:
            self._at(self.now + self.setup.drain_s, _DEADLINE, pod, pod.drain_at)
        else:
            self._delete(pod)

    def _delete(self, pod: Pod) -> None:
        """It goes, once its link has moved the KV that it is moving."""
        pod.gone_at = max(self.now, pod.link_free_at)

    def _change(self, kind: int, pod: Pod, stamp: float) -> None:
        if kind == _READY:
            if not pod.draining:
                self._serve(pod)
        elif pod.drain_at == stamp and not pod.gone:
            self._end(pod)

    def _end(self, pod: Pod) -> None:
        """Delete a pod whose time to leave is over. What it still has is lost."""
        pod.gone_at = self.now
        lost: list[Order] = []
        if isinstance(pod, PrefillPod):
            lost += pod.queue
            pod.queue.clear()
            for request in lost:
                head = self._head[request]
                if head is not None and not head.gone:
                    self._leave(head)
        elif isinstance(pod, DecodePod):
            pod.version += 1
            lost += [request for request, _ in pod.waiting]
            lost += [request for _, request, _ in pod.landing]
            lost += [request for _, request in pod.ends]
            for _, source in pod.waiting:
                self._leave(source)
            pod.waiting.clear()
            pod.landing.clear()
            pod.ends.clear()
        for request in lost:
            self._kill(request)

    def _at(self, time: float, kind: int, pod: Pod, stamp: float = 0.0) -> None:
        self._order += 1
        heappush(self._events, (time, self._order, kind, pod, stamp))

    # --- requests -----------------------------------------------------------------------------

    def _route(self, request: Order) -> None:
        if not self._ready_prefill or not self._ready_decode:
            self.held.append(request)
            return
        head = min(self._ready_decode, key=_least_open)
        head.open += 1
        self._head[request] = head
        pod = min(self._ready_prefill, key=_least_tokens)
        pod.open += 1
        pod.tokens += self._work[request]
        pod.queue.append(request)
        if not pod.batch:
            self._prefill(pod)

    def _prefill(self, pod: PrefillPod) -> None:
        """Begin a step: the prompts in their order, until the step's tokens are used up."""
        profile, free = self.setup.replica.profile, self.setup.replica.max_num_batched_tokens
        work, prompts = self._work, self.trace.prompt
        linear = squared = 0
        done = pod.computed
        pod.whole = 0
        for request in pod.queue:
            left = work[request] - done
            part = left if left <= free else free
            begin = prompts[request] - left
            linear += part
            squared += part * (2 * begin + part)
            pod.batch.append((request, part))
            free -= part
            if part == left:
                pod.whole += 1
            if free == 0:
                break
            done = 0
        seconds = (
            profile.prefill_base_s
            + profile.per_prompt_token_s * linear
            + profile.per_prompt_token_squared_s * squared
        )
        pod.seconds += seconds
        self._order += 1
        heappush(self._events, (self.now + seconds, self._order, _STEP, pod, 0.0))

    def _prefilled(self, pod: PrefillPod) -> None:
        """A step has ended: prompts that are computed get their first token and move on."""
        batch, pod.batch = pod.batch, []
        pod.steps += 1
        pod.prefill_requests += len(batch)
        for request, part in batch[: pod.whole]:
            pod.prefill_tokens += part
            pod.queue.popleft()
            pod.tokens -= self._work[request]
            pod.computed = 0
            self.first[request] = self.now
            self._hand_over(request, pod)
        for _, part in batch[pod.whole :]:
            pod.prefill_tokens += part
            pod.computed += part
        if pod.queue:
            self._prefill(pod)

    def _hand_over(self, request: Order, pod: PrefillPod) -> None:
        head = self._head[request]
        if head is None or head.gone:
            self._leave(pod)
            self._kill(request)
        elif self.trace.output[request] <= 1:
            self._leave(pod)
            self._answered(request, head)
        else:
            head.waiting.append((request, pod))
            expecting = bool(head.landing)
            self._pull(head)
            if head.landing and not expecting:
                self._expect(head, head.landing[0][0])

    def _pull(self, pod: DecodePod) -> None:
        """Move the KV of those for whom there is room, in their order."""
        prompts, outputs, replica = self.trace.prompt, self.trace.output, self.setup.replica
        while pod.waiting:
            request, source = pod.waiting[0]
            need = prompts[request] + outputs[request]
            if need > pod.kv_free:
                return
            pod.waiting.popleft()
            if source.gone:
                self._leave(pod)
                self._kill(request)
                continue
            pod.kv_free -= need
            start = max(self.now, pod.link_free_at, source.link_free_at)
            end = start + replica.transfer_s(prompts[request])
            pod.link_free_at = source.link_free_at = end
            self._leave(source)
            pod.landing.append((end, request, end - self.now))

    def _expect(self, pod: DecodePod, at: float) -> None:
        """A sequence lands at this time: stop the jump at the next edge from then on."""
        if not pod.jump:
            pod.version += 1
            self._at(at, _STEP, pod, pod.version)
        elif len(pod.ends) < self.setup.replica.max_num_seqs:
            steps = steps_until(pod.first_s, pod.growth_s, at - pod.jump_at)
            if steps < pod.jump:
                self._jump(pod, steps)

    def _jump(self, pod: DecodePod, steps: int) -> None:
        pod.jump = steps
        pod.version += 1
        end = pod.jump_at + steps_s(pod.first_s, pod.growth_s, steps)
        self._order += 1
        heappush(self._events, (end, self._order, _STEP, pod, pod.version))

    def _stepped(self, pod: DecodePod) -> None:
        """An edge of a step: answers end, sequences join, and the next jump is planned."""
        ends = pod.ends
        if pod.jump:
            pod.end_steps(pod.jump)
            pod.jump = 0
            while ends and ends[0][0] <= pod.steps:
                _, request = heappop(ends)
                tokens = self.trace.prompt[request] + self.trace.output[request]
                pod.context -= tokens
                pod.kv_free += tokens
                self._answered(request, pod)
            if pod.waiting:
                self._pull(pod)
        if not pod.gone:
            self._plan(pod)

    def _plan(self, pod: DecodePod) -> None:
        now, landing, ends = self.now, pod.landing, pod.ends
        most = self.setup.replica.max_num_seqs
        while landing and landing[0][0] <= now and len(ends) < most:
            _, request, took = landing.popleft()
            pod.transfers += 1
            pod.transfer_s += took
            pod.context += self.trace.prompt[request] + 1
            heappush(ends, (pod.steps + self.trace.output[request] - 1, request))
        if not ends:
            if landing:
                pod.version += 1
                self._at(landing[0][0], _STEP, pod, pod.version)
            return
        profile = self.setup.replica.profile
        pod.jump_at = now
        pod.first_s = profile.step_s(len(ends), pod.context)
        pod.growth_s = profile.per_context_token_s * len(ends)
        steps = ends[0][0] - pod.steps
        if landing and len(ends) < most:
            steps = min(steps, steps_until(pod.first_s, pod.growth_s, landing[0][0] - now))
        self._jump(pod, steps)

    def _answered(self, request: Order, pod: DecodePod) -> None:
        trace, setup = self.trace, self.setup
        self.last[request] = self.now
        prompt, output, first = trace.prompt[request], trace.output[request], self.first[request]
        self.ended_prompt += prompt
        self.ended_prompt_squared += prompt * prompt
        self.ended_output += output
        ttft = first - trace.arrival[request] <= setup.ttft_s
        tpot = self.now - first <= setup.tpot_s * (output - 1) if output > 1 else True
        self.verdicts[ttft, tpot] += 1
        self.ended += 1
        self._leave(pod)

    def _kill(self, request: Order) -> None:
        self.last[request] = nan
        self.killed += 1
        self.verdicts[False, False] += 1
        self.ended += 1

    def _leave(self, pod: Pod) -> None:
        """One request has left the pod."""
        pod.open -= 1
        if pod.open == 0 and pod.draining and not pod.gone:
            self._delete(pod)
