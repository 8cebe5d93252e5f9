"""A fleet whose decode pods take what comes between two of their steps, as engines do.

A request reaches the scheduler of its decode pod at the next edge of a step. Only then is its
prompt asked for, and its first token leaves at the edge that follows its computation
(`argosy_engine.runtime.loop`: the inbox is taken between steps). A pod that computes nothing takes
both at once. `replay` makes this world for `--inbox between-steps`.
"""

from math import inf

from argosy_law.sim.world.fleet import World
from argosy_law.sim.world.machine import steps_s, steps_until
from argosy_law.sim.world.pods import DecodePod, Pod, PrefillPod, Request

ASK = 5
"""Kind of event, beside those of `world.supply`: a decode pod asks for a prompt, whose number is
the stamp."""


def next_edge(pod: DecodePod, now: float) -> float:
    """When the step ends that runs now; `now` if none does."""
    if not pod.jump:
        return now
    steps = steps_until(pod.first_s, pod.growth_s, now - pod.jump_at)
    return max(pod.jump_at + steps_s(pod.first_s, pod.growth_s, steps), now)


class InboxWorld(World):
    """See the module; what a `World` is otherwise. The gateway's queue hears of a first token when
    it is computed, a part of a step earlier than the client."""

    __slots__ = ()

    def _send(self, request: Request, pod: PrefillPod, head: DecodePod) -> None:
        at = next_edge(head, self.now)
        if at <= self.now:
            super()._send(request, pod, head)
            return
        head.open += 1
        self._head[request] = head
        pod.open += 1
        pod.tokens += self._work[request]
        self._at(at, ASK, pod, float(request))

    def _change(self, kind: int, pod: Pod, stamp: float) -> None:
        if kind != ASK:
            super()._change(kind, pod, stamp)
            return
        request = int(stamp)
        head = self._head[request]
        assert isinstance(pod, PrefillPod)
        assert head is not None
        if pod.gone:  # as for a prompt in its queue
            if self._queue is not None:
                self._queue.lost(request)
            if not head.gone:
                self._leave(head)
            self._lose(request, 0)
            return
        pod.queue.append(request)
        if not pod.batch:
            self._prefill(pod)

    def _hand_over(self, request: Request, pod: PrefillPod) -> None:
        head, at = self._head[request], self.now
        if head is not None and head.gone_at == inf and request not in self._resumed:
            at = self.first[request] = next_edge(head, at)
        super()._hand_over(request, pod)
        if self._outputs[request] <= 1 and self.last[request] == self.now:
            self.last[request] = at
