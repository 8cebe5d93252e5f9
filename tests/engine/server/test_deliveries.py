"""What several steps bring while the event loop is behind comes as one delivery."""

import asyncio
import itertools
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy_engine.core.limits import Refusal
from argosy_engine.core.request import Emission, NewRequest, Sequence
from argosy_engine.core.sampling import SamplingParams
from argosy_engine.server.deliveries import MOST_REST_S, Deliveries
from tests.engine.server.spelling import Engine, events_of
from tests.engine.server.test_streams import Client

REFUSAL = Refusal("draining", "ask another one")
REQUEST = NewRequest(
    request_id="r",
    token_ids=[1],
    arrival_s=0.0,
    sampling=SamplingParams(max_tokens=9, temperature=0.0),
)


class Sink:
    """Keeps what it gets, and what came together."""

    prefill_pod = ""
    failed_prefills = ()
    pull_whole = None

    def __init__(self) -> None:
        self.got: list[int | Refusal] = []
        self.together: list[int] = []

    def emit(self, *emissions: Emission) -> None:
        self.got += [emission.token_id for emission in emissions]
        self.together.append(len(emissions))

    def refuse(self, refusal: Refusal) -> None:
        self.got.append(refusal)


def token(number: int) -> Emission:
    return Emission(Sequence(REQUEST, [1], 0), number)


class Turns:
    """An event loop in virtual time: its calls run when `run` is called."""

    def __init__(self) -> None:
        self.now = 0.0
        self.due: list = []
        """When, and what."""

    def time(self) -> float:
        return self.now

    def call_soon_threadsafe(self, call) -> None:
        self.call_later(0.0, call)

    def call_later(self, delay_s, call) -> None:
        self.due.append((self.now + delay_s, call))

    def run(self) -> None:
        while self.due:
            at_s, call = self.due.pop(0)
            self.now = max(self.now, at_s)
            call()


SINKS = 3
STEPS = st.lists(
    st.one_of(
        st.none(),  # the event loop has its turn
        st.lists(st.integers(0, SINKS - 1), max_size=6),  # a step: who gets a token
    )
)


@given(steps=STEPS, refused=st.sets(st.integers(0, SINKS - 1)))
def test_each_sink_gets_all_in_order_and_a_refusal_last(steps, refused):
    aio = Turns()
    deliveries = Deliveries(aio)
    sinks, sent = [Sink() for _ in range(SINKS)], [[] for _ in range(SINKS)]
    for number, step in enumerate(steps):
        if step is None:
            aio.run()
            assert [sink.got for sink in sinks] == sent
            continue
        for to in step:
            sent[to].append(number)
        deliveries.post([(sinks[to], token(number)) for to in step])
        assert len(aio.due) == 1
    deliveries.post([(sinks[to], REFUSAL) for to in refused])
    aio.run()
    for number, sink in enumerate(sinks):
        assert sink.got == sent[number] + [REFUSAL] * (number in refused)


def test_steps_that_the_event_loop_has_not_seen_come_together():
    aio, sink = Turns(), Sink()
    deliveries = Deliveries(aio)
    for number in range(3):
        deliveries.post([(sink, token(number))])
    aio.run()
    deliveries.post([(sink, token(3))])
    aio.run()
    assert sink.got == [0, 1, 2, 3]
    assert sink.together == [3, 1]


class Slow(Sink):
    """Takes time for what it gets; meanwhile the engine may finish steps."""

    def __init__(self, aio: Turns, takes_s: float) -> None:
        super().__init__()
        self._aio, self._takes_s = aio, takes_s
        self.meanwhile: list = []
        """What the engine does in the next call, and the one after it."""
        self.came: list[float] = []

    def emit(self, *emissions: Emission) -> None:
        self.came.append(self._aio.now)
        super().emit(*emissions)
        self._aio.now += self._takes_s
        if self.meanwhile:
            self.meanwhile.pop(0)()


@pytest.mark.parametrize(("takes_s", "rests_s"), [(0.004, 0.004), (0.5, MOST_REST_S)])
def test_an_event_loop_that_is_behind_rests_as_long_as_it_delivered(takes_s, rests_s):
    aio = Turns()
    deliveries, sink = Deliveries(aio), Slow(aio, takes_s)
    sink.meanwhile = [lambda: deliveries.post([(sink, token(1))])]
    deliveries.post([(sink, token(0))])
    aio.run()
    assert sink.got == [0, 1]
    assert sink.came == [0.0, pytest.approx(takes_s + rests_s)]


def test_a_step_that_ends_after_the_delivery_is_handed_over_at_once():
    aio = Turns()
    deliveries, sink = Deliveries(aio), Slow(aio, 0.004)
    for number in range(3):
        deliveries.post([(sink, token(number))])
        aio.run()
    assert sink.came == [0.0, pytest.approx(0.004), pytest.approx(0.008)]


def test_what_comes_during_a_rest_is_delivered_with_what_waits():
    aio = Turns()
    deliveries, sink = Deliveries(aio), Slow(aio, 0.004)
    sink.meanwhile = [lambda: deliveries.post([(sink, token(1))])]
    deliveries.post([(sink, token(0))])
    aio.due.pop(0)[1]()
    aio.due.pop(0)[1]()  # it rests
    deliveries.post([(sink, token(2))])
    aio.run()
    assert sink.got == [0, 1, 2]
    assert sink.together == [1, 2]


async def test_nothing_is_lost_between_the_threads():
    over = asyncio.Event()

    class Last(Sink):
        def refuse(self, refusal: Refusal) -> None:
            over.set()

    sinks, steps = [Sink(), Sink(), Last()], range(2000)
    deliveries = Deliveries(asyncio.get_running_loop())

    def run() -> None:
        for number in steps:
            deliveries.post([(sink, token(number)) for sink in sinks])
        deliveries.post([(sinks[-1], REFUSAL)])

    engine = threading.Thread(target=run)
    engine.start()
    async with asyncio.timeout(30):
        await over.wait()
    engine.join()
    assert all(sink.got == list(steps) for sink in sinks)


class Behind(Engine):
    """Its event loop sees what it is sent only before each nth turn of the engine."""

    def __init__(self, turns: int) -> None:
        super().__init__()
        aio = Turns()
        self.loop._deliver = Deliveries(aio).post
        turn, number = self.loop._turn, itertools.count(1)

        def turn_late() -> bool:
            if next(number) % turns == 0:
                aio.run()
            return turn()

        self.loop._turn = turn_late


async def stream(turns: int, **more) -> list[bytes]:
    """The writes of an answer."""
    client = Client(Behind(turns), max_tokens=90, seed=1, **more)
    await client.until(client.serving.done)
    await client.serving
    return client.sent


def events(writes: list[bytes]) -> list[tuple]:
    return [(each.text, each.reason) for each in events_of(b"".join(writes).decode())]


@pytest.mark.parametrize("asked", [{}, {"stop": ["never"]}, {"n": 2}, {"logprobs": 1}])
async def test_an_answer_has_the_same_events_however_far_behind_the_event_loop_is(asked):
    seen = [await stream(turns, **asked) for turns in (1, 7, 500)]
    texts = ["".join(text for text, _ in events(writes)) for writes in seen]
    ends = [[reason for _, reason in events(writes) if reason] for writes in seen]
    assert len(texts[0]) > 30
    if "n" not in asked:  # two texts beside each other take turns
        assert texts[0] == texts[1] == texts[2]
    assert [len(text) for text in texts] == [len(texts[0])] * 3
    assert ends[0] == ends[1] == ends[2]


async def test_tokens_that_come_together_leave_as_an_event_each_in_one_write():
    alone, joined = await stream(1), await stream(7)
    assert events(joined) == events(alone)
    assert len(joined) < len(alone) / 2
