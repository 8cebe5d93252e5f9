"""The simulated gateway's queue: the product's decisions, its bounds, and what it is worth."""

from collections.abc import Sequence
from math import inf

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from argosy_gateway.pods.endpoints import Endpoint, Role, State
from argosy_gateway.routing.dispatch import Dispatch
from argosy_gateway.routing.line import Waiting
from argosy_gateway.routing.load import PodLoad
from argosy_gateway.routing.roster import Group, Route
from argosy_gateway.routing.strategies import RoutingRequest
from argosy_law.goals import Windows
from argosy_law.signals import samples
from argosy_law.sim import figures
from argosy_law.sim.traces import Trace
from argosy_law.sim.world.fleet import World
from argosy_law.sim.world.machine import Setup
from argosy_law.sim.world.pods import DecodePod, PrefillPod
from argosy_law.sim.world.queue import LATE_EVERY, Prefiller, Queue
from argosy_law.sim.world.scrape import Scraper
from tests.sim.fleets import played, poisson, setup, started, trace

ROWS = st.lists(
    st.tuples(st.floats(0, 20), st.integers(1, 3000), st.integers(1, 300)), min_size=1, max_size=80
)


def endpoint(pod: PrefillPod | DecodePod) -> Endpoint:
    role = Role.PREFILL if isinstance(pod, PrefillPod) else Role.DECODE
    return Endpoint(pod.name, pod.name, "", role, "r", State.SERVING)


class Twin(Queue):
    """Asks the gateway's own `Dispatch`, too, and fails where the two differ."""

    def __init__(self, of: Setup, requests: Trace) -> None:
        super().__init__(of, requests)
        self.of, self.requests = of, requests
        self.dispatch = Dispatch(of.replica.max_num_seqs, tpot_limit_s=of.tpot_s)
        self.heads: list[DecodePod] = []
        self.found: DecodePod | None = None
        self.compared = self.refused = 0
        self.waiting: dict[int, Waiting] = {}

    def head(self, pods: list[DecodePod]) -> DecodePod | None:
        self.heads, self.found = pods, super().head(pods)
        return self.found

    def loads(self, pod: PrefillPod | None) -> dict[str, PodLoad]:
        loads = {head.name: PodLoad(sequences=head.open) for head in self.heads}
        if pod is not None:
            loads[pod.name] = PodLoad(
                sequences=pod.open, prompt_tokens=pod.tokens, prompts=len(pod.queue)
            )
        return loads

    def route(self, pod: PrefillPod | None) -> Route | None:
        if pod is None or self.found is None:
            return None
        return Route(endpoint(self.found), (endpoint(pod),))

    def passes(self, request: int, now: float, pod: PrefillPod | None) -> bool:
        prompt, arrival = self.requests.prompt[request], self.requests.arrival[request]
        asked = RoutingRequest(str(request), "m", True, prompt, b"")
        one = Waiting(asked, arrival, self.of.ttft_s)
        route = self.dispatch.route_at_once(one, now, self.loads(pod), lambda _: self.route(pod))
        passes = super().passes(request, now, pod)
        assert (route is not None) == passes
        if not passes:
            self.dispatch.line.add(one)
            self.waiting[request] = one
        self.compared += 1
        return passes

    def refuses(
        self, request: int, now: float, pods: Sequence[Prefiller], pod: Prefiller | None
    ) -> bool:
        (prefill,) = pods
        assert isinstance(prefill, PrefillPod)
        groups = [Group(tuple(map(endpoint, self.heads)), (endpoint(prefill),))]
        loads, tokens = self.loads(prefill), self.requests.prompt[request]
        too_long = self.dispatch.wait_s(groups, loads, tokens) > self.of.queue_timeout_s
        refuses = super().refuses(request, now, pods, pod)
        assert refuses == (
            too_long and not self.dispatch.has_opening(now, groups, loads, tokens, self.of.ttft_s)
        )
        self.compared += 1
        self.refused += refuses
        return refuses

    def give_up(self, now: float) -> list[int]:
        gone = super().give_up(now)
        for request in gone:
            self.dispatch.line.remove(self.waiting[request])
        assert self.tokens == self.dispatch.line.tokens
        return gone

    def next(self, now: float, pod: PrefillPod) -> int | None:
        heads = tuple(endpoint(head) for head in self.heads)
        grant = self.dispatch.next(
            now, [Group(heads, (endpoint(pod),))], self.loads(pod), lambda _: self.route(pod)
        )
        request = super().next(now, pod)
        assert request == (None if grant is None else int(grant.waiting.request.request_id))
        assert self.tokens == self.dispatch.line.tokens
        self.compared += 1
        return request

    def computed(self, request: int, now: float) -> None:
        sent_at, ahead, _ = self._sent[request]
        super().computed(request, now)
        self.dispatch.observe(
            "prefill-0",
            ahead=ahead,
            own=self.requests.prompt[request],
            received_at=self.requests.arrival[request],
            sent_at=sent_at,
            first_at=now,
            limit_s=self.of.ttft_s,
        )

    def stepped(self, pod: DecodePod, now: float) -> None:
        if self._places.due(pod.name, pod.first_s, now):
            super().stepped(pod, now)
            loads = {pod.name: PodLoad(sequences=pod.open)}
            self.dispatch.observe_tpot(pod.name, pod.first_s, loads, now)


def world_with(queue: type[Queue], of: Setup, requests: Trace, decode: int = 1) -> World:
    world = World(of, requests)
    world._queue = queue(of, requests)
    world.scale("decode", decode, warm=True)
    world.scale("prefill", 1, warm=True)
    return world


REFUSED_AT_ONCE = [
    (0.0, 1, 1),
    (0.0, 1, 1),
    (0.0, 1, 1),
    (0.0, 1, 1),
    (0.0, 1, 282),
    (2.0, 1, 19),
    (2.0, 816, 170),
    (0.0, 2, 135),
    (3.0, 579, 199),
]
"""The last one never asks for a pod."""


@settings(max_examples=80, deadline=None)
@example(REFUSED_AT_ONCE, 1, 256, 0.012, 3.0)
@given(
    ROWS,
    st.integers(1, 3),
    st.sampled_from((4, 256)),
    st.sampled_from((0.012, 0.02, 0.05)),
    st.sampled_from((inf, 3.0, 8.0)),
)
def test_it_sends_what_the_products_queue_sends_and_when(
    rows: list[tuple[float, int, int]],
    decode: int,
    sequences: int,
    tpot_s: float,
    patience_s: float,
) -> None:
    of = setup(order="deadline", sequences=sequences, tpot_s=tpot_s, queue_timeout_s=patience_s)
    requests = trace(sorted(rows))
    world = world_with(Twin, of, requests, decode)
    world.advance(inf)
    assert isinstance(world._queue, Twin)
    assert world._queue.compared >= len(requests)
    assert world.finished


def test_it_sends_what_the_product_sends_through_a_long_overload() -> None:
    of = setup(order="deadline", ttft_s=2.0, tpot_s=0.03)
    requests = poisson(6.0, 3000, 400, 60)
    world = world_with(Twin, of, requests, 2)
    world.advance(inf)
    assert world.finished


def test_it_refuses_what_the_product_refuses_through_a_long_overload() -> None:
    of = setup(order="deadline", ttft_s=2.0, tpot_s=0.03, queue_timeout_s=6.0)
    world = world_with(Twin, of, poisson(6.0, 2000, 400, 60), 2)
    world.advance(inf)
    assert isinstance(world._queue, Twin)
    assert world.finished
    assert world.refused > world._queue.refused > 100  # the others after their wait


class Recorder(Queue):
    """Notes each dispatch from the line, with what else waited."""

    def __init__(self, of: Setup, requests: Trace) -> None:
        super().__init__(of, requests)
        self.rows: list[tuple[bool, bool, bool]] = []
        """(whether a late one went, whether one could meet its limit, whether late ones waited)"""

    def next(self, now: float, pod: PrefillPod) -> int | None:
        self._age(now)
        late = set(self._late)
        begins_at = now + self._pace.seconds(pod.tokens)
        savable = any(start_by >= begins_at for start_by, _ in self._in_time)
        request = super().next(now, pod)
        if request is not None:
            self.rows.append((request in late, savable, bool(late)))
            assert request not in late or request == min(late)  # who came first
        return request


def test_one_of_sixteen_is_a_late_one_under_overload() -> None:
    requests = poisson(6.0, 2000, 400, 2)
    world = world_with(Recorder, setup(order="deadline", ttft_s=2.0), requests)
    world.advance(requests.end)
    assert isinstance(world._queue, Recorder)
    turns = [late for late, savable, late_waited in world._queue.rows if savable and late_waited]
    assert sum(turns) / len(turns) == pytest.approx(1 / LATE_EVERY, abs=0.01)


def test_under_overload_about_as_many_meet_their_limit_as_the_pods_can_serve() -> None:
    of = [setup(order=order, ttft_s=2.0) for order in ("fifo", "deadline")]
    requests = poisson(4.0, 2000, 400, 2)  # twice what a pod computes, with steps of one prompt
    fifo, deadline = (
        figures.attainment(played(one, requests), 60.0)["attainment_ttft"] for one in of
    )
    assert fifo < 0.05
    assert deadline > 0.4


def test_without_a_ready_pod_requests_wait_in_the_queue() -> None:
    requests = trace([(1.0, 100, 2), (2.0, 300, 2)])
    world = started(setup(order="deadline", cold_s=5.0), requests, prefill=0)
    world.scale("prefill", 1)
    world.advance(4.9)
    assert world.waiting_tokens == 400
    world.advance(inf)
    assert world.first == [pytest.approx(5.2), pytest.approx(5.6)]
    assert world.waiting_tokens == 0


def test_the_law_sees_prompt_tokens_that_wait_in_the_queue() -> None:
    world = started(setup(order="deadline"), poisson(10.0, 400, 500, 2))
    scraper = Scraper(world, Windows(), 0.0)
    scraper.advance(30.0)
    (waiting,) = (s for s in scraper.round().series if s.name == samples.WAITING)
    at, tokens = waiting.samples[-1]
    assert at == pytest.approx(30.0, abs=15.0)
    assert tokens > 20_000
    assert tokens % 500 == 0
