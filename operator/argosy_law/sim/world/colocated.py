"""A fleet of colocated pods: each computes prompts and generates answers.

`replay` makes it where a fleet has one role. A request goes to the pod with the fewest requests, or
as `queue` says. It enters the batch when its prompt is computed, on the same pod, so no KV moves.

A step is one of two, by `Setup.batching`. chunked, the product's: decodes first, then as many
prompt tokens as the step has left; it takes the longer of the two bases. prefill-first: while a
prompt may begin, steps compute prompts alone, and decodes stand still. Steps without prompts are
jumped over as in `fleet`.
"""

from heapq import heappop, heappush

from argosy_law.sim.traces import Trace
from argosy_law.sim.world.fleet import World
from argosy_law.sim.world.machine import Setup
from argosy_law.sim.world.pods import ColocatedPod, DecodePod, Pod, Request
from argosy_law.sim.world.supply import STEP, PoolName


def _least_open(pod: ColocatedPod) -> tuple[int, int]:
    return pod.open, pod.tokens


class ColocatedWorld(World):
    """See the module; what a `World` is otherwise."""

    roles: tuple[PoolName, ...] = ("colocated",)

    def __init__(self, setup: Setup, trace: Trace) -> None:
        super().__init__(setup, trace)
        self._ready: list[ColocatedPod] = []

    def _made(self, role: PoolName, name: str, ready_at: float) -> Pod:  # noqa: ARG002
        free = int(self.setup.replica.profile.kv_tokens)
        return ColocatedPod(name=name, created_at=self.now, ready_at=ready_at, kv_free=free)

    def _ready_pods(self, pod: Pod) -> list[Pod]:  # noqa: ARG002
        return self._ready  # type: ignore[return-value]

    def _pair(self) -> None:
        """Each pod serves alone."""

    def _serves(self, revision: int) -> bool:
        return any(pod.revision == revision for pod in self._ready)

    def _send_within(self, request: Request, revision: int) -> None:
        ready = (pod for pod in self._ready if pod.revision == revision)
        self._take(request, min(ready, key=_least_open))

    def _send_now(self, request: Request) -> None:
        if self._ready:
            self._take(request, min(self._ready, key=_least_open))
        else:
            self.held.append(request)

    def _ask(self, request: Request) -> None:
        """Send a request that has just come, unless it must wait."""
        queue = self._queue
        assert queue is not None
        pod = min(self._ready, key=_least_open, default=None)
        if pod is not None and not queue.has_place(pod):
            pod = None
        if queue.tokens and queue.refuses(request, self.now, self._ready, pod):
            self._refuse(1)
        elif queue.passes(request, self.now, pod):
            assert pod is not None
            queue.sent(request, self.now, pod, self._work[request])
            self._take(request, pod)
        else:
            self._wait(request, serving=bool(self._ready))

    def _look(self) -> None:
        queue = self._queue
        while queue is not None and queue.tokens:
            open_pods = [pod for pod in self._ready if queue.has_place(pod)]
            pod = min(open_pods, key=queue.backlog, default=None)
            request = queue.next(self.now, pod) if pod is not None else None
            if pod is None or request is None:
                return
            queue.sent(request, self.now, pod, self._work[request])
            self._take(request, pod)

    def _take(self, request: Request, pod: ColocatedPod) -> None:
        """A request comes to a pod: its prompt is computed from the next edge of a step on."""
        pod.open += 1
        if self._programs is not None:
            self._late_s[request] += self._programs.way_s
            if not pod.stalled and not pod.batch:  # steps with prompts are not launched ahead
                later = pod.edge_after(self.now, self._programs.launched)
                self._late_s[request] += later - pod.edge_after(self.now)
        pod.tokens += self._work[request]
        pod.queue.append(request)
        if not pod.jump and not pod.stalled:
            self._plan(pod)
        elif pod.jump > 1 and self._fits(pod, request, len(pod.ends)):
            self._expect(pod, self.now)

    def _end_jump(self, pod: DecodePod) -> None:
        assert isinstance(pod, ColocatedPod)
        if pod.jump:
            pod.end_steps(pod.jump)
            pod.jump = 0
            ends = pod.ends
            while ends and ends[0][0] <= pod.steps:
                _, request = heappop(ends)
                self._finish(request, pod)
        elif pod.stalled:
            pod.stalled = False
            pod.prompt_steps += 1
            pod.seconds += pod.first_s
        self._prompts_done(pod)
        if not pod.gone:
            self._plan(pod)
        self._look()

    def _prompts_done(self, pod: ColocatedPod) -> None:
        """What a step computed of prompts: who is whole has its first token and joins the batch."""
        batch, pod.batch = pod.batch, []
        pod.prefill_requests += len(batch)
        for request, part in batch:
            pod.prefill_tokens += part
            pod.computed += part
            if pod.computed < self._work[request]:
                continue
            pod.prompt_tokens += self._prompts[request]
            pod.cached_tokens += self._prompts[request] - self._work[request]
            pod.computed = 0
            pod.queue.popleft()
            pod.tokens -= self._work[request]
            if request not in self._resumed:
                self.first[request] = self.now + self._late_s[request]
            if self._queue is not None:
                self._queue.computed(request, self.now + self._late_s[request])
            pod.context += self._prompts[request] + 1
            if self._outputs[request] > 1:
                heappush(pod.ends, (pod.steps + self._outputs[request] - 1, request))
            else:
                self._finish(request, pod)

    def _finish(self, request: Request, pod: ColocatedPod) -> None:
        tokens = self.trace.prompt[request] + self.trace.output[request]
        pod.context -= tokens
        pod.kv_free += tokens
        self._answered(request, pod)

    def _plan(self, pod: DecodePod) -> None:
        assert isinstance(pod, ColocatedPod)
        chunked, decodes = self.setup.batching == "chunked", len(pod.ends)
        prompts_s = self._batch(pod, decodes if chunked else 0)
        profile = self.setup.replica.profile
        pod.jump_at, pod.growth_s = self.now, 0.0
        slowness = pod.slowness
        if pod.batch and not (chunked and decodes):
            pod.first_s = (profile.prefill_base_s + prompts_s) * slowness
            pod.stalled = True
            pod.version += 1
            self._at(self.now + pod.first_s, STEP, pod, pod.version)
        elif pod.batch:
            base_s = max(profile.prefill_base_s, profile.decode_base_s)
            decodes_s = profile.step_s(decodes, pod.context) - profile.decode_base_s
            pod.first_s = (base_s + decodes_s + prompts_s) * slowness
            self._jump(pod, 1)
        elif decodes:
            pod.first_s = profile.step_s(decodes, pod.context) * slowness
            pod.growth_s = profile.per_context_token_s * decodes * slowness
            self._jump(pod, pod.ends[0][0] - pod.steps)

    def _batch(self, pod: ColocatedPod, beside: int) -> float:
        """Choose the prompts of the next step, and how many tokens of each; the seconds that these
        add. `beside`: tokens of decodes in the same step."""
        profile, free = self.setup.replica.profile, self.setup.replica.max_num_batched_tokens
        free -= beside
        linear = squared = 0
        done = pod.computed
        for request in pod.queue:
            if free <= 0:
                break
            if not done:
                if not self._fits(pod, request, len(pod.ends) + len(pod.batch)):
                    break
                pod.kv_free -= self.trace.prompt[request] + self.trace.output[request]
            left = self._work[request] - done
            part, done = min(left, free), 0
            begin = self._prompts[request] - left
            linear += part
            squared += part * (2 * begin + part)
            pod.batch.append((request, part))
            free -= part
        return profile.per_prompt_token_s * linear + profile.per_prompt_token_squared_s * squared

    def _fits(self, pod: ColocatedPod, request: Request, sequences: int) -> bool:
        need = self.trace.prompt[request] + self.trace.output[request]
        return need <= pod.kv_free and sequences < self.setup.replica.max_num_seqs

    def _end(self, pod: Pod) -> None:
        assert isinstance(pod, ColocatedPod)
        pod.gone_at = self.now
        pod.version += 1
        lost = [*((request, 0) for request in pod.queue), *self._generated(pod)]
        if self._queue is not None:
            for request in pod.queue:
                self._queue.lost(request)
        pod.queue.clear()
        pod.batch.clear()
        pod.ends.clear()
        pod.jump = 0
        for request, generated in lost:
            self._lose(request, generated, pod)
        self._look()
