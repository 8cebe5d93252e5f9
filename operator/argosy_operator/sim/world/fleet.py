"""The fleet: requests arrive, are computed, move and are answered; pods start, serve and leave.

`replay` and `hindsight` call `scale` and `advance`. Arrivals never wait for answers. A request gets
its two pods when it comes, as the gateway gives them: the prefill pod with the fewest prompt tokens
to compute and the decode pod with the fewest requests; it waits in the gateway while a role has no
ready pod, and as long as `queue` says. Its first token leaves when its prompt is computed, or is
held until it joins a batch. Its KV moves once the decode pod has room for prompt and answer, that
of earlier chunks while the last is computed, over one link of each pod, and it joins the batch at
the next edge of a step.
"""

from bisect import bisect_left
from collections import deque
from heapq import heappop, heappush
from math import inf, nan
from operator import attrgetter

from argosy_operator.core.scaling.size.spread import EDGES
from argosy_operator.sim.traces import Trace
from argosy_operator.sim.world.machine import HELD_SHARE, Setup, steps_s, steps_until
from argosy_operator.sim.world.pods import DecodePod, Pod, PrefillPod, Request
from argosy_operator.sim.world.queue import Queue
from argosy_operator.sim.world.supply import STEP, PoolName, Supply

__all__ = ["PoolName", "World"]

_least_tokens = attrgetter("tokens")
_least_open = attrgetter("open")


class World(Supply):
    """The simulated fleet and its requests. Equal arguments and calls give equal results."""

    def __init__(self, setup: Setup, trace: Trace) -> None:
        super().__init__(setup)
        self.trace = trace
        self.first = [nan] * len(trace)
        """When each request had its first token; NaN if it never had. While one is held, when its
        prompt was computed."""
        self.last = [nan] * len(trace)
        """When each request had its last token; NaN if it was killed."""
        self.arrived = self.ended = self.killed = 0
        self.ended_prompts = [0] * (len(EDGES) + 1)
        self.ended_outputs = [0] * (len(EDGES) + 1)
        """Answered requests by the bucket of their length."""
        self.ended_prompt = self.ended_prompt_squared = self.ended_output = 0
        """Sums over answered requests, in tokens."""
        self.verdicts = {(ttft, tpot): 0 for ttft in (True, False) for tpot in (True, False)}
        """Ended requests by (TTFT met, TPOT met)."""
        self.held: deque[Request] = deque()
        """Requests that wait for a ready pod of each role and are not in the queue."""
        self._queue = Queue(setup, trace) if setup.order == "deadline" else None
        self._hold_s = HELD_SHARE * setup.ttft_s if setup.hold_first_token else 0.0
        """After its arrival, until when a first token may be held; 0: none is."""
        self._prompts, self._outputs = list(trace.prompt), list(trace.output)
        """Tokens to be read and generated. Of a request that goes on elsewhere, what was generated
        is part of the prompt."""
        self._resumed: set[Request] = set()
        """Those that had a first token before they went on elsewhere."""
        self._token_transfer_s = setup.replica.transfer_s(1)
        self._work = list(trace.computed_tokens())
        self._moved: dict[Request, int] = {}
        """Prompts in chunks → tokens whose KV is on its way while the others are computed."""
        self._head: list[DecodePod | None] = [None] * len(trace)

    @property
    def finished(self) -> bool:
        """Whether every request has ended."""
        return self.ended == len(self.trace)

    @property
    def waiting_tokens(self) -> int:
        """Prompt tokens of the requests that wait in the gateway."""
        queued = self._queue.tokens if self._queue is not None else 0
        return queued + sum(self._prompts[request] for request in self.held)

    def advance(self, until: float) -> None:
        """Let everything happen that is due by `until`."""
        events, arrivals = self._events, self.trace.arrival
        arrived, requests = self.arrived, len(arrivals)
        arrival = arrivals[arrived] if arrived < requests else inf
        route = self._ask if self._queue is not None else self._send_now
        while True:
            if events and events[0][0] <= arrival:
                if events[0][0] > until:
                    break
                now, _, kind, pod, stamp = heappop(events)
                self.now = now
                if kind != STEP:
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
                route(arrived)
                arrived += 1
                self.arrived = arrived
                arrival = arrivals[arrived] if arrived < requests else inf
        if until < inf:
            self.now = until

    def _ask(self, request: Request) -> None:
        """Send a request that has just come, unless it must wait."""
        queue = self._queue
        assert queue is not None
        head = queue.head(self._ready_decode)
        pod = min(self._ready_prefill, key=_least_tokens, default=None)
        if queue.passes(request, self.now, pod if head is not None else None):
            assert pod is not None
            assert head is not None
            queue.sent(request, self.now, pod, self._work[request])
            self._send(request, pod, head)
        else:
            self._look()

    def _send_now(self, request: Request) -> None:
        """Send a request to the pods with the least work, or hold it while a role has none."""
        if self._ready_prefill and self._ready_decode:
            pod = min(self._ready_prefill, key=_least_tokens)
            self._send(request, pod, min(self._ready_decode, key=_least_open))
        else:
            self.held.append(request)

    def _look(self) -> None:
        """Send what waits and may go."""
        queue = self._queue
        while queue is not None and queue.tokens and self._ready_prefill:
            head = queue.head(self._ready_decode)
            if head is None:
                return
            pod = min(self._ready_prefill, key=_least_tokens)
            request = queue.next(self.now, pod)
            if request is None:
                return
            queue.sent(request, self.now, pod, self._work[request])
            self._send(request, pod, head)

    def _resume(self) -> None:
        held, self.held = self.held, deque()
        for request in held:
            self._send_now(request)
        self._look()

    def _send(self, request: Request, pod: PrefillPod, head: DecodePod) -> None:
        head.open += 1
        self._head[request] = head
        pod.open += 1
        pod.tokens += self._work[request]
        pod.queue.append(request)
        if not pod.batch:
            self._prefill(pod)

    def _prefill(self, pod: PrefillPod) -> None:
        """Begin a step: the prompts in their order, until the step's tokens are used up."""
        profile, free = self.setup.replica.profile, self.setup.replica.max_num_batched_tokens
        work, prompts = self._work, self._prompts
        linear = squared = 0
        done = pod.computed
        pod.whole = 0
        for request in pod.queue:
            left = work[request] - done
            part = left if left <= free else free
            begin = prompts[request] - left
            if begin:
                self._move_early(request, pod, begin)
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
        heappush(self._events, (self.now + seconds, self._order, STEP, pod, 0.0))

    def _prefilled(self, pod: PrefillPod) -> None:
        """A step has ended: prompts that are computed get their first token and move on."""
        batch, pod.batch = pod.batch, []
        queue, resumed = self._queue, self._resumed
        pod.steps += 1
        pod.prefill_requests += len(batch)
        for request, part in batch[: pod.whole]:
            pod.prefill_tokens += part
            pod.queue.popleft()
            pod.tokens -= self._work[request]
            pod.computed = 0
            if request not in resumed:
                self.first[request] = self.now
            if queue is not None:
                queue.computed(request, self.now)
            self._hand_over(request, pod)
        for _, part in batch[pod.whole :]:
            pod.prefill_tokens += part
            pod.computed += part
        if pod.queue:
            self._prefill(pod)
        if queue is not None and queue.tokens:
            self._look()

    def _hand_over(self, request: Request, pod: PrefillPod) -> None:
        head = self._head[request]
        if head is None or head.gone:
            self._moved.pop(request, None)
            self._leave(pod)
            self._lose(request, 1)
        elif self._outputs[request] <= 1:
            self._leave(pod)
            self._answered(request, head)
        else:
            expecting = bool(head.landing)
            if self._moved and request in self._moved:  # it has its room
                self._land(request, pod, head)
            elif head.waiting or self._prompts[request] + self._outputs[request] > head.kv_free:
                head.waiting.append((request, pod))
                return
            else:
                head.kv_free -= self._prompts[request] + self._outputs[request]
                self._land(request, pod, head)
            if not expecting:
                self._expect(head, head.landing[0][0])

    def _move_early(self, request: Request, pod: PrefillPod, ready: int) -> None:
        """Move the KV of a prompt's first tokens while the others are computed, if there is room.

        Decode reserves room for all of it then.
        """
        head, moved = self._head[request], self._moved.get(request, 0)
        if head is None or head.gone or self._outputs[request] <= 1 or ready <= moved:
            return
        if not moved:
            need = self.trace.prompt[request] + self.trace.output[request]
            if head.waiting or need > head.kv_free:
                return
            head.kv_free -= need
        self._moved[request] = ready
        self._move(pod, head, ready - moved)

    def _move(self, source: PrefillPod, head: DecodePod, tokens: int) -> float:
        """When the KV of so many tokens is there: behind what is on either link."""
        start = max(self.now, head.link_free_at, source.link_free_at)
        end = start + tokens * self._token_transfer_s
        head.link_free_at = source.link_free_at = end
        return end

    def _land(self, request: Request, source: PrefillPod, head: DecodePod) -> None:
        """Move the KV that is still at prefill to the room that it has."""
        tokens = self._prompts[request]
        if self._moved:
            tokens -= self._moved.pop(request, 0)
        end = self._move(source, head, tokens)
        self._leave(source)
        head.landing.append((end, request, end - self.now))

    def _pull(self, pod: DecodePod) -> None:
        """Take those that wait and for whom there is room, in their order."""
        while pod.waiting:
            request, source = pod.waiting[0]
            need = self._prompts[request] + self._outputs[request]
            if need > pod.kv_free:
                return
            pod.waiting.popleft()
            if source.gone:
                self._leave(pod)
                self._lose(request, 1)
            else:
                pod.kv_free -= need
                self._land(request, source, pod)

    def _expect(self, pod: DecodePod, at: float) -> None:
        """A sequence lands at this time: stop the jump at the next edge from then on."""
        if not pod.jump:
            pod.version += 1
            self._at(at, STEP, pod, pod.version)
        elif len(pod.ends) < self.setup.replica.max_num_seqs:
            steps = steps_until(pod.first_s, pod.growth_s, at - pod.jump_at)
            if steps < pod.jump:
                self._jump(pod, steps)

    def _jump(self, pod: DecodePod, steps: int) -> None:
        pod.jump = steps
        pod.version += 1
        end = pod.jump_at + steps_s(pod.first_s, pod.growth_s, steps)
        self._order += 1
        heappush(self._events, (end, self._order, STEP, pod, pod.version))

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
            if self._queue is not None:
                self._queue.stepped(pod, self.now)
                if self._queue.tokens:
                    self._look()
        if not pod.gone:
            self._plan(pod)

    def _plan(self, pod: DecodePod) -> None:
        now, landing, ends = self.now, pod.landing, pod.ends
        most = self.setup.replica.max_num_seqs
        while landing and landing[0][0] <= now and len(ends) < most:
            _, request, took = landing.popleft()
            pod.transfers += 1
            pod.transfer_s += took
            if self._hold_s:
                self._release(request)
            pod.context += self._prompts[request] + 1
            heappush(ends, (pod.steps + self._outputs[request] - 1, request))
        if not ends:
            if landing:
                pod.version += 1
                self._at(landing[0][0], STEP, pod, pod.version)
            return
        profile = self.setup.replica.profile
        pod.jump_at = now
        pod.first_s = profile.step_s(len(ends), pod.context)
        pod.growth_s = profile.per_context_token_s * len(ends)
        steps = ends[0][0] - pod.steps
        if landing and len(ends) < most:
            steps = min(steps, steps_until(pod.first_s, pod.growth_s, landing[0][0] - now))
        self._jump(pod, steps)

    def _release(self, request: Request) -> None:
        """Its sequence joins a batch now: the first token leaves, if it has not left before."""
        if request not in self._resumed:
            until = self.trace.arrival[request] + self._hold_s
            self.first[request] = max(self.first[request], min(self.now, until))

    def _answered(self, request: Request, pod: DecodePod) -> None:
        trace, setup = self.trace, self.setup
        self.last[request] = self.now
        prompt, output, first = trace.prompt[request], trace.output[request], self.first[request]
        self.ended_prompt += prompt
        self.ended_prompt_squared += prompt * prompt
        self.ended_output += output
        self.ended_prompts[bisect_left(EDGES, prompt)] += 1
        self.ended_outputs[bisect_left(EDGES, output)] += 1
        ttft = first - trace.arrival[request] <= setup.ttft_s
        tpot = self.now - first <= setup.tpot_s * (output - 1) if output > 1 else True
        self.verdicts[ttft, tpot] += 1
        self.ended += 1
        self._leave(pod)

    def _lose(self, request: Request, generated: int) -> None:
        """Its pod has gone, after so many tokens: it goes on elsewhere, or it is killed."""
        if not self.setup.resumes:
            self._kill(request)
            return
        generated = min(generated, self._outputs[request] - 1)
        if generated > 0:
            self._resumed.add(request)
            self._prompts[request] += generated
            self._outputs[request] -= generated
            self._work[request] = self._prompts[request]
        self._send_now(request)

    def _kill(self, request: Request) -> None:
        self.last[request] = nan
        self.killed += 1
        self.verdicts[False, False] += 1
        self.ended += 1

    def _leave(self, pod: Pod) -> None:
        """One request has left the pod."""
        pod.open -= 1
        if pod.open == 0 and pod.draining and not pod.gone:
            self._delete(pod)

    def _end(self, pod: Pod) -> None:
        """Delete a pod whose time to leave is over. What it still has is lost to it."""
        pod.gone_at = self.now
        lost: list[tuple[Request, int]] = []
        if isinstance(pod, PrefillPod):
            lost += [(request, 0) for request in pod.queue]
            pod.queue.clear()
            for request, _ in lost:
                if self._queue is not None:
                    self._queue.lost(request)
                head = self._head[request]
                if head is not None and not head.gone:
                    if self._moved.pop(request, 0):
                        head.kv_free += self.trace.prompt[request] + self.trace.output[request]
                    self._leave(head)
                    expecting = bool(head.landing)
                    self._pull(head)
                    if head.landing and not expecting:
                        self._expect(head, head.landing[0][0])
        elif isinstance(pod, DecodePod):
            lost += self._generated(pod)
            lost += [(request, 1) for request, _ in pod.waiting]
            lost += [(request, 1) for _, request, _ in pod.landing]
            pod.version += 1
            for _, source in pod.waiting:
                self._leave(source)
            pod.waiting.clear()
            pod.landing.clear()
            pod.ends.clear()
        for request, generated in lost:
            self._lose(request, generated)
        self._look()

    def _generated(self, pod: DecodePod) -> list[tuple[Request, int]]:
        """The batch, and how many tokens of each answer there are."""
        _, steps, _, _ = pod.counted(self.now)
        return [(request, self._outputs[request] - (end - steps)) for end, request in pod.ends]
