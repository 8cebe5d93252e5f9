"""The fleet: requests arrive, are computed, move and are answered; pods start, serve and leave.

`replay` and `hindsight` call `scale` and `advance`. Arrivals never wait for answers. A request gets
its two pods when it comes, as the gateway gives them: the prefill pod with the fewest prompt tokens
to compute and the decode pod with the fewest requests, both of one revision; it waits in the
gateway while a role has no ready pod, and as long as `queue` says. Its first token leaves when its
prompt is computed, or is held until it joins a batch. Its KV moves once the decode pod has room for
prompt and answer, that of earlier chunks while the last is computed, over one link of each pod, and
it joins the batch at the next edge of a step.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from math import inf, nan

from argosy_law.sim.traces import Trace
from argosy_law.sim.world.machine import HELD_SHARE, Revision, Setup, steps_s, steps_until
from argosy_law.sim.world.pods import (
    DecodePod,
    Pod,
    PrefillPod,
    Request,
    least_open,
    least_tokens,
)
from argosy_law.sim.world.queue import Queue
from argosy_law.sim.world.supply import PATIENCE, PROMPTS, STEP, SWEEP_S, PoolName, Supply
from argosy_law.size.work import EDGES

__all__ = ["PoolName", "World"]


_MOVES_PER_POD = 4
"""Streams that leave a pod at a time, of each pod that computes prompts: the gateway's."""
Pair = tuple[list[PrefillPod], list[DecodePod]]
"""Ready pods that work together."""


class Ended:
    """Counts of answered requests by length and by verdict, as the gateway counts them.

    They are brought up to date when one is asked for, which a constant fleet never does.
    """

    def __init__(self, setup: Setup, trace: Trace) -> None:
        self._setup, self._trace = setup, trace
        self.prompts = [0] * (len(EDGES) + 1)
        self.outputs = [0] * (len(EDGES) + 1)
        """Answered requests by the bucket of their length."""
        self.prompt = self.prompt_squared = self.output = 0
        """Sums over answered requests, in tokens."""
        self.verdicts = {(ttft, tpot): 0 for ttft in (True, False) for tpot in (True, False)}
        """Ended requests by (TTFT met, TPOT met)."""

    def add(self, answered: list[Request], first: Sequence[float], last: Sequence[float]) -> None:
        """Count these, and empty the list. `first`, `last`: when each had those tokens."""
        trace, setup = self._trace, self._setup
        for request in answered:
            prompt, output = trace.prompt[request], trace.output[request]
            self.prompt += prompt
            self.prompt_squared += prompt * prompt
            self.output += output
            self.prompts[bisect_left(EDGES, prompt)] += 1
            self.outputs[bisect_left(EDGES, output)] += 1
            began = first[request]
            ttft = began - trace.arrival[request] <= setup.ttft_s
            tpot = last[request] - began <= setup.tpot_s * (output - 1) if output > 1 else True
            self.verdicts[ttft, tpot] += 1
        answered.clear()

    def without_answer(self, count: int) -> None:
        """So many have ended without an answer: they have met neither limit."""
        self.verdicts[False, False] += count


class World(Supply):
    """The simulated fleet and its requests. Equal arguments and calls give equal results."""

    __slots__ = (
        "_answered_last", "_decode_constants", "_head", "_hold_s", "_late_s", "_most", "_moved",
        "_outputs", "_pairs", "_prefill_constants", "_programs", "_prompts", "_queue", "_resumed",
        "_step_tokens", "_sums", "_token_transfer_s", "_tpot_s", "_watch_at", "_work", "active_at",
        "arrived", "crossed", "ended", "first", "held", "killed", "last", "refused", "trace",
    )  # fmt: skip

    def __init__(self, setup: Setup, trace: Trace) -> None:
        super().__init__(setup)
        self.trace = trace
        self.first = [nan] * len(trace)
        """When each request had its first token; NaN if it never had. While one is held, when its
        prompt was computed."""
        self.last = [nan] * len(trace)
        """When each request had its last token; NaN if it was killed or refused."""
        self.arrived = self.ended = self.killed = self.refused = 0
        self.crossed = 0
        """Moves of KV between pods of two revisions; their layouts may differ."""
        self._sums = Ended(setup, trace)
        self._answered_last: list[Request] = []
        """Answered requests that the sums leave out as yet."""
        self.held: deque[Request] = deque()
        """Requests that wait for a ready pod of each role and are not in the queue."""
        self._queue = Queue(setup, trace) if setup.order == "deadline" else None
        self._watch_at = inf
        """When an event is due for those that wait too long in the queue; inf: none is."""
        self.active_at = 0.0
        """When a request has ended last."""
        self._hold_s = HELD_SHARE * setup.ttft_s if setup.hold_first_token else 0.0
        """After its arrival, until when a first token may be held; 0: none is."""
        self._prompts, self._outputs = list(trace.prompt), list(trace.output)
        """Tokens to be read and generated. Of a request that goes on elsewhere, what was generated
        is part of the prompt."""
        self._resumed: set[Request] = set()
        """Those that had a first token before they went on elsewhere."""
        self._tpot_s, self._token_transfer_s = setup.tpot_s, setup.replica.transfer_s(1)
        profile = setup.replica.profile
        self._step_tokens = setup.replica.max_num_batched_tokens
        self._most = setup.replica.max_num_seqs
        self._prefill_constants = (
            profile.prefill_base_s, profile.per_prompt_token_s, profile.per_prompt_token_squared_s,
        )  # fmt: skip
        self._decode_constants = (
            profile.decode_base_s, profile.per_context_token_s, profile.per_sequence_s,
        )  # fmt: skip
        self._work = list(trace.computed_tokens())
        self._moved: dict[Request, int] = {}
        """Prompts in chunks → tokens whose KV is on its way while the others are computed."""
        self._head: list[DecodePod | None] = [None] * len(trace)
        self._programs = setup.programs
        self._late_s = [0.0] * len(trace)
        """How long each request was on its way before its prompt could be computed. It is added to
        the times of its tokens, while pods work as if it had not been."""
        self._pairs: dict[int, Pair] | None = None
        """Ready pods that work together, by revision; None while all ready pods do."""

    def hold_first_tokens(self, holds: bool) -> None:
        """Hold first tokens from now on, or let them leave at once, those on their way included."""
        self._hold_s = HELD_SHARE * self.setup.ttft_s if holds else 0.0

    def edit(self, revision: Revision) -> None:
        """Ask for a new revision: new pods are of it from now on."""
        if self._queue is not None:
            self._queue.edit(self.newest)
        super().edit(revision)

    @property
    def finished(self) -> bool:
        """Whether every request has ended."""
        return self.ended == len(self.trace)

    @property
    def sums(self) -> Ended:
        """Sums over all requests that have ended by now."""
        self._sums.add(self._answered_last, self.first, self.last)
        return self._sums

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
        most = self.setup.max_in_flight
        stepped, prefilled = self._end_jump, self._end_prefill
        while True:
            if events and events[0][0] <= arrival:
                if events[0][0] > until:
                    break
                self.now, _, kind, pod, stamp = heappop(events)
                if kind == STEP:
                    if stamp == pod.version:
                        stepped(pod)
                elif kind == PROMPTS:
                    if pod.gone_at == inf:
                        prefilled(pod)
                elif kind == PATIENCE:
                    self._refuse_impatient(stamp)
                else:
                    self._change(kind, pod, stamp)
            else:
                if arrival > until or arrived >= requests:
                    break
                self.now = arrival
                if arrived - self.ended < most:
                    route(arrived)
                else:
                    self._refuse(1)
                arrived += 1
                self.arrived = arrived
                arrival = arrivals[arrived] if arrived < requests else inf
        if until < inf:
            self.now = until

    def _ask(self, request: Request) -> None:
        """Send a request that has just come, unless it must wait."""
        queue, now = self._queue, self.now
        assert queue is not None
        prefills, heads = self._ready_prefill, self._ready_decode
        if self._pairs is not None:
            prefills, heads = self._least_loaded(self._pairs)
        head = queue.head(heads)
        pod = least_tokens(prefills)
        opening = pod if head is not None else None
        if queue.tokens and queue.refuses(request, now, self._ready_prefill, opening):
            self._refuse(1)
        elif queue.passes(request, now, opening):
            assert pod is not None
            assert head is not None
            queue.sent(request, now, pod, self._work[request])
            self._send(request, pod, head)
        else:
            self._wait(request, serving=bool(prefills and heads))

    def _wait(self, request: Request, *, serving: bool) -> None:
        """A request has come to the queue. `serving`: pods serve; if not, it may have to wait for
        their start."""
        wake_s = self.setup.wake_timeout_s
        if wake_s is not None and not serving and self._queue is not None:
            self._queue.wait_until(request, self.now + max(wake_s, self.setup.queue_timeout_s))
        self._watch()
        self._look()

    def _watch(self) -> None:
        """Look after the first that waits when it has waited for too long."""
        at = self._queue.impatient_at() if self._queue is not None else inf
        if at < self._watch_at:
            self._watch_at = at
            self._order += 1
            heappush(self._events, (at, self._order, PATIENCE, None, at))

    def _refuse_impatient(self, watched: float) -> None:
        assert self._queue is not None
        if watched == self._watch_at:
            self._refuse(len(self._queue.give_up(self.now)))
            self._watch_at = inf
            self._watch()

    def _refuse(self, count: int) -> None:
        """So many requests end without a token."""
        self.refused += count
        self.ended += count
        self.active_at = self.now
        self._sums.without_answer(count)

    def _send_now(self, request: Request) -> None:
        """Send a request to the pods with the least work, or hold it while a role has none."""
        prefills, heads = self._ready_prefill, self._ready_decode
        if self._pairs is not None:
            prefills, heads = self._least_loaded(self._pairs)
        pod, head = least_tokens(prefills), least_open(heads)
        if pod is not None and head is not None:
            self._send(request, pod, head)
        else:
            self.held.append(request)

    def _pair(self) -> None:
        ready = [*self._ready_prefill, *self._ready_decode]
        if len({pod.revision for pod in ready}) <= 1:
            self._pairs = None
            return
        self._pairs = {}
        for revision in range(len(self.revisions)):
            prefills = [pod for pod in self._ready_prefill if pod.revision == revision]
            heads = [pod for pod in self._ready_decode if pod.revision == revision]
            if prefills and heads:
                self._pairs[revision] = prefills, heads

    def _least_loaded(self, pairs: Mapping[int, Pair]) -> Pair:
        """The pods of the revision with the fewest requests for each of them, as the gateway takes
        for one that need not wait."""

        def load(pair: Pair) -> float:
            prefills, heads = pair
            return sum(pod.open for pod in heads) / (len(prefills) + len(heads))

        return min(pairs.values(), key=load, default=([], []))

    def _opening(self, queue: Queue) -> tuple[DecodePod | None, PrefillPod | None]:
        """Where a prompt that waits would begin first."""
        if self._pairs is None:
            return queue.head(self._ready_decode), least_tokens(self._ready_prefill)
        found: tuple[DecodePod | None, PrefillPod | None] = None, None
        least = inf
        for prefills, heads in self._pairs.values():
            head, pod = queue.head(heads), least_tokens(prefills)
            if head is not None and pod is not None and queue.seconds(pod) < least:
                found, least = (head, pod), queue.seconds(pod)
        return found

    def _look(self) -> None:
        """Send what waits and may go."""
        queue = self._queue
        while queue is not None and queue.tokens:
            head, pod = self._opening(queue)
            if head is None or pod is None:
                return
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
        self._call(request, head)
        pod.open += 1
        pod.tokens += self._work[request]
        pod.queue.append(request)
        if not pod.batch:
            self._prefill(pod)

    def _call(self, request: Request, head: DecodePod) -> None:
        """A decode pod is asked for an answer, or for the rest of one."""
        head.open += 1
        self._head[request] = head
        programs = self._programs
        if programs is not None:
            known_at = head.edge_after(self.now, programs.launched)
            self._late_s[request] += known_at - self.now + programs.way_s

    def _prefill(self, pod: PrefillPod) -> None:
        """Begin a step: the prompts in their order, until the step's tokens are used up."""
        free, work, prompts, batch = self._step_tokens, self._work, self._prompts, pod.batch
        linear = squared = whole = 0
        done = pod.computed
        for request in pod.queue:
            left = work[request] - done
            part = left if left <= free else free
            begin = prompts[request] - left
            if begin:
                self._move_early(request, pod, begin)
            linear += part
            squared += part * (2 * begin + part)
            batch.append((request, part))
            free -= part
            if part == left:
                whole += 1
            if free == 0:
                break
            done = 0
        pod.whole = whole
        base_s, token_s, token_squared_s = self._prefill_constants
        seconds = (base_s + token_s * linear + token_squared_s * squared) * pod.slowness
        pod.seconds += seconds
        self._order += 1
        heappush(self._events, (self.now + seconds, self._order, PROMPTS, pod, 0.0))

    def _end_prefill(self, pod: PrefillPod) -> None:
        """A step has ended: prompts that are computed get their first token and move on."""
        # a prompt that goes on elsewhere may come back here, and must not begin a step yet
        batch = pod.batch
        queue, resumed, whole, now = self._queue, self._resumed, pod.whole, self.now
        prompts, work, first, hand_over = self._prompts, self._work, self.first, self._hand_over
        late_s = None if self._programs is None else self._late_s
        pod.steps += 1
        pod.prefill_requests += len(batch)
        for request, part in batch if whole == len(batch) else batch[:whole]:
            pod.prefill_tokens += part
            pod.queue.popleft()
            prompt, computed = prompts[request], work[request]
            pod.tokens -= computed
            pod.prompt_tokens += prompt
            pod.cached_tokens += prompt - computed
            pod.computed = 0
            at = now
            if late_s is not None:
                head = self._head[request]
                at = late_s[request] + (now if head is None else head.edge_after(now))
            if request not in resumed:
                first[request] = at
            if queue is not None:
                queue.computed(request, at)
            hand_over(request, pod)
        if whole < len(batch):
            for _, part in batch[whole:]:
                pod.prefill_tokens += part
                pod.computed += part
        pod.batch = []
        if pod.queue:
            self._prefill(pod)
        if queue is not None and queue.tokens:
            self._look()

    def _hand_over(self, request: Request, pod: Pod) -> None:
        head = self._head[request]
        if head is None or head.gone_at < inf:
            self._moved.pop(request, None)
            self._leave(pod)
            self._lose(request, 1, pod)
        elif self._outputs[request] <= 1:
            self._leave(pod)
            self._answered(request, head)
        else:
            if not (self._moved and request in self._moved):  # else it has its room
                need = self._prompts[request] + self._outputs[request]
                if head.waiting or need > head.kv_free:
                    head.waiting.append((request, pod))
                    return
                head.kv_free -= need
            expected = bool(head.landing)
            self._land(request, pod, head)
            if not expected:
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

    def _move(self, source: Pod, head: DecodePod, tokens: int) -> float:
        """When the KV of so many tokens is there: behind what is on either link."""
        start = self.now
        if head.link_free_at > start:
            start = head.link_free_at
        if source.link_free_at > start:
            start = source.link_free_at
        end = start + tokens * self._token_transfer_s
        if source.revision != head.revision:
            self.crossed += 1
        head.link_free_at = source.link_free_at = end
        return end

    def _land(self, request: Request, source: Pod, head: DecodePod) -> None:
        """Move the KV that is still at its source to the room that it has."""
        tokens = self._prompts[request]
        if self._moved:
            tokens -= self._moved.pop(request, 0)
        end = self._move(source, head, tokens)
        if self._programs is not None:
            end += self._programs.transfer_s
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
                self._lose(request, 1, pod)
            else:
                pod.kv_free -= need
                self._land(request, source, pod)

    def _expect(self, pod: DecodePod, at: float) -> None:
        """A sequence lands at this time: stop the jump at the next edge from then on."""
        if not pod.jump:
            pod.version += 1
            self._at(at, STEP, pod, pod.version)
        elif pod.jump > 1 and len(pod.ends) < self._most:
            steps = steps_until(pod.first_s, pod.growth_s, at - pod.jump_at)
            if steps < pod.jump:
                self._jump(pod, steps)

    def _jump(self, pod: DecodePod, steps: int) -> None:
        pod.jump = steps
        pod.version += 1
        end = pod.jump_at + steps_s(pod.first_s, pod.growth_s, steps)
        self._order += 1
        heappush(self._events, (end, self._order, STEP, pod, pod.version))

    def _end_jump(self, pod: DecodePod) -> None:
        """An edge of a step: answers end, sequences join, and the next jump is planned."""
        if pod.jump:
            ends, queue = pod.ends, self._queue
            pod.end_steps(pod.jump)
            pod.jump = 0
            done = pod.steps
            while ends and ends[0][0] <= done:
                _, request = heappop(ends)
                tokens = self.trace.prompt[request] + self.trace.output[request]
                pod.context -= tokens
                pod.kv_free += tokens
                self._answered(request, pod)
            if pod.waiting:
                self._pull(pod)
            if queue is not None:
                if pod.first_s > self._tpot_s or queue.bounds:
                    queue.stepped(pod, self.now)
                if queue.tokens:
                    self._look()
        if pod.gone_at == inf:
            self._plan(pod)

    def _plan(self, pod: DecodePod) -> None:
        now, landing, ends = self.now, pod.landing, pod.ends
        most = self._most
        while landing and landing[0][0] <= now and len(ends) < most:
            _, request, took = landing.popleft()
            pod.transfers += 1
            pod.transfer_s += took
            if self._hold_s:
                self._release(request)
            pod.context += self._prompts[request] + 1
            heappush(ends, (pod.steps + self._outputs[request] - 1, request))
        batch = len(ends)
        if not batch:
            if landing:
                pod.version += 1
                self._at(landing[0][0], STEP, pod, pod.version)
            return
        base_s, context_s, sequence_s = self._decode_constants
        pod.jump_at = now
        first_s = (base_s + context_s * pod.context + sequence_s * batch) * pod.slowness
        pod.first_s, pod.growth_s = first_s, context_s * batch * pod.slowness
        growth_s = pod.growth_s
        steps = ends[0][0] - pod.steps
        if landing and steps > 1 and batch < most:
            until = steps_until(first_s, growth_s, landing[0][0] - now)
            if until < steps:
                steps = until
        pod.jump = steps
        pod.version += 1
        self._order += 1
        end = now + (steps * first_s + growth_s * (steps * (steps - 1) / 2))
        heappush(self._events, (end, self._order, STEP, pod, pod.version))

    def _release(self, request: Request) -> None:
        """Its sequence joins a batch now: the first token leaves, if it has not left before."""
        if request not in self._resumed:
            until = self.trace.arrival[request] + self._hold_s
            at = self.now + self._late_s[request]
            self.first[request] = max(self.first[request], min(at, until))

    def _answered(self, request: Request, pod: DecodePod) -> None:
        self.active_at = self.now
        at, first = self.now + self._late_s[request], self.first[request]
        self.last[request] = first if first > at else at
        self._answered_last.append(request)
        self.ended += 1
        self._leave(pod)

    def _lose(self, request: Request, generated: int, pod: Pod) -> None:
        """Its pod has gone, after so many tokens: it goes on elsewhere, or it is killed. An answer
        that has begun goes on at pods of its revision alone."""
        if not self.setup.resumes:
            self._kill(request)
            return
        if generated > 0 and self.newest and not self._serves(pod.revision):
            self._kill(request)
            return
        generated = min(generated, self._outputs[request] - 1)
        if generated > 0:
            self._resumed.add(request)
            self._prompts[request] += generated
            self._outputs[request] -= generated
            self._work[request] = self._prompts[request]
            if self.newest:
                self._send_within(request, pod.revision)
                return
        self._send_now(request)

    def _serves(self, revision: int) -> bool:
        """Whether ready pods of a revision serve requests."""
        if self._pairs is not None:
            return revision in self._pairs
        ready = self._ready_prefill, self._ready_decode
        return all(pods and pods[0].revision == revision for pods in ready)

    def _send_within(self, request: Request, revision: int) -> None:
        """Send a request to pods of a revision that serves."""
        pair = self._ready_prefill, self._ready_decode
        if self._pairs is not None:
            pair = self._pairs[revision]
        pod, head = least_tokens(pair[0]), least_open(pair[1])
        assert pod is not None
        assert head is not None
        self._send(request, pod, head)

    def _kill(self, request: Request) -> None:
        self.last[request], self.active_at = nan, self.now
        self.killed += 1
        self._sums.without_answer(1)
        self.ended += 1

    def _leave(self, pod: Pod) -> None:
        """One request has left the pod."""
        pod.open -= 1
        if not pod.open and pod.drain_at < inf and pod.gone_at == inf:
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
            self._lose(request, generated, pod)
        self._look()

    def _hand_streams_over(self, pod: Pod) -> float:
        """Have others of its revision go on with some of the batch of a pod that drains, as many as
        the gateway moves at a time. Their KV moves over the links, and the pod draws the next token
        of each. What a step had begun is computed again."""
        later = self.now + SWEEP_S
        heads = [head for head in self._ready_decode if head.revision == pod.revision]
        if not isinstance(pod, DecodePod) or not heads:
            return later
        trace, ends = self.trace, pod.ends
        if pod.jump:
            pod.end_steps(pod.counted(self.now)[1] - pod.steps)
        pod.version += 1
        pod.jump = 0
        leaving = ends[-_MOVES_PER_POD * max(len(self._ready_prefill), 1) :]
        del ends[-len(leaving) :]  # what is left of a heap's list is one
        for end, request in leaving:
            generated = self._outputs[request] - (end - pod.steps)
            tokens = trace.prompt[request] + trace.output[request]
            pod.kv_free += tokens
            pod.context -= tokens - (end - pod.steps)
            head = least_open(heads)
            assert head is not None
            self._call(request, head)
            self._resumed.add(request)
            self._prompts[request] += generated
            self._outputs[request] -= generated
            self._work[request] = self._prompts[request]
            self._hand_over(request, pod)
        if not pod.gone:
            self._pull(pod)
            self._plan(pod)
        return max(pod.link_free_at, self.now) if ends else later

    def _generated(self, pod: DecodePod) -> list[tuple[Request, int]]:
        """The batch, and how many tokens of each answer there are."""
        _, steps, _, _ = pod.counted(self.now)
        return [(request, self._outputs[request] - (end - steps)) for end, request in pod.ends]
