"""A stream leaves its decode engine, and another one goes on with the KV that it left.

The tokens of these engines depend on all KV before them, so a wrong block gives another text. Each
engine ends without a request, a block or a lease.
"""

import asyncio
import contextlib
import itertools
import random

import pytest

from tests.kv.nodes import BLOCK, Client, Node, node, until
from tests.support.fault_proxy import Fault, fault_proxy

PROMPT = list(range(100, 100 + 40 * BLOCK + 5))
TOKENS = 300
LEASE_S = 1.0
COUNT = itertools.count()
TALK, KV = 0, 1


@pytest.fixture
def leaving():
    with node("decode", lease_s=LEASE_S) as started:
        yield started


@pytest.fixture
def staying():
    with node("decode") as started:
        yield started


@pytest.fixture
def prefill():
    with node("prefill") as started:
        yield started


@pytest.fixture(scope="module")
def true_text():
    """The text as one engine alone computes it."""
    texts: dict[tuple[int, ...], list[int]] = {}
    with node("colocated") as alone:

        async def of(prompt, tokens=TOKENS):
            key = (*prompt, tokens)
            if key not in texts:
                client = alone.ask(prompt, max_tokens=tokens, name=f"t{next(COUNT)}")
                await until(lambda: client.end is not None)
                texts[key] = client.ids
            return texts[key]

        yield of


class Stream:
    """What a gateway does for one client: it moves the stream, and knows which tokens are out."""

    def __init__(self, prompt: list[int] = PROMPT, tokens: int = TOKENS) -> None:
        self.prompt, self.tokens = prompt, tokens
        self.id = f"s{next(COUNT)}"
        self.ids: list[int] = []
        self.client = Client()
        self.at: Node | None = None

    def begin(self, at: Node, *candidates: str, kept: bool = False) -> None:
        self.at, self.name = at, f"{self.id}.{next(COUNT):08x}"
        self.client = at.ask(
            self.prompt + self.ids,
            *candidates,
            max_tokens=self.tokens - len(self.ids),
            name=self.name,
            kept=kept,
            sent=len(self.ids),
        )

    async def until_has(self, more: int) -> None:
        await until(lambda: len(self.client.ids) >= more or self.client.end is not None)

    def leave(self) -> None:
        """Tokens that come after this are lost, as those of a connection that was closed."""
        assert self.at is not None
        self.at.loop.keep(self.id)
        self.ids += self.client.ids
        self.client.ids = []
        self.at.loop.abort(self.name)

    async def text(self) -> list[int]:
        await until(lambda: self.client.end is not None)
        assert self.client.end == "length", (self.client.end, self.client.message)
        return self.ids + self.client.ids


def prompt_tokens(engine: Node) -> list[int]:
    """Those of each step that computes a prompt from now on."""
    computed: list[int] = []
    execute = engine.runner.execute

    def count(plan):
        if plan.prefill_tokens:
            computed.append(plan.prefill_tokens)
        return execute(plan)

    engine.runner.execute = count
    return computed


@pytest.mark.parametrize("sent", [1, 11, BLOCK + 11, 150])
async def test_a_stream_goes_on_behind_its_last_token_and_nobody_computes_its_text_again(
    leaving, staying, true_text, sent
):
    stream = Stream()
    stream.begin(leaving)
    await stream.until_has(sent)
    computed = [prompt_tokens(engine) for engine in (leaving, staying)]
    stream.leave()
    stream.begin(staying, leaving.address, kept=True)
    assert await stream.text() == await true_text(PROMPT)
    assert sum(computed[0]) <= BLOCK
    assert computed[1] == []
    assert stream.client.prefill_pod == "decode-pod"
    assert stream.client.failed_prefills == ()


@pytest.mark.parametrize("ahead", [False, True], ids=["one by one", "launched ahead"])
@pytest.mark.parametrize("tokens", [1, BLOCK - 1, BLOCK, BLOCK + 1])
async def test_a_text_of_any_length_goes_on(staying, prefill, true_text, tokens, ahead):
    """One of less than a block is computed by a prefill engine: that costs less than to ask."""
    prompt = PROMPT[:tokens]
    with node("decode", ahead=ahead) as leaving:
        stream = Stream(prompt)
        stream.begin(leaving)
        await stream.until_has(5)
        stream.leave()
        stream.begin(staying, leaving.address, prefill.address, kept=True)
        assert await stream.text() == await true_text(prompt)


async def test_a_stream_that_moves_again_and_again_has_one_text(leaving, staying, true_text):
    stream, here, there = Stream(), leaving, staying
    stream.begin(here)
    for _ in range(4):
        await stream.until_has(30)
        stream.leave()
        stream.begin(there, here.address, kept=True)
        here, there = there, here
    assert await stream.text() == await true_text(PROMPT)


async def test_a_stream_that_ends_before_its_connection_closes_leaves_nothing(leaving):
    stream = Stream(tokens=20)
    stream.begin(leaving)
    leaving.loop.keep(stream.id)
    assert len(await stream.text()) == 20
    leaving.loop.abort(stream.name)
    await until(lambda: not leaving.scheduler.sequences)
    assert leaving.loop.leases.active == 0


async def test_a_client_that_leaves_for_good_has_nothing_kept(leaving):
    stream = Stream()
    stream.begin(leaving)
    await stream.until_has(5)
    leaving.loop.abort(stream.name)
    await until(lambda: not leaving.scheduler.sequences)
    assert leaving.loop.leases.active == 0


async def test_what_nobody_comes_for_is_kept_as_long_as_a_lease_lasts(leaving):
    """Its client hung up while it moved."""
    stream = Stream()
    stream.begin(leaving)
    await stream.until_has(5)
    stream.leave()
    await until(lambda: leaving.loop.leases.active)
    assert leaving.scheduler.unfinished == 0
    assert leaving.scheduler.pool.used >= 40
    leaving.assert_empty()
    assert leaving.loop.leases.expired == 1


@pytest.mark.parametrize("first", ["closed", "let go"])
async def test_what_nobody_needs_any_more_is_freed_at_once(leaving, first):
    """Two connections say so, in any order."""
    stream = Stream()
    stream.begin(leaving)
    await stream.until_has(5)
    leaving.loop.keep(stream.id)
    if first == "closed":
        leaving.loop.abort(stream.name)
        await until(lambda: leaving.loop.leases.active)
    leaving.loop.let_go(stream.id)
    leaving.loop.abort(stream.name)
    await until(lambda: not (leaving.scheduler.sequences or leaving.loop.leases.active))
    assert leaving.loop.leases.expired == 0


async def test_a_peer_that_asked_before_the_kv_was_freed_still_gets_it(leaving, staying, true_text):
    async with fault_proxy(leaving.address, back=Fault(bytes_per_s=20_000)) as network:
        stream = Stream()
        stream.begin(leaving)
        await stream.until_has(20)
        stream.leave()
        computed = prompt_tokens(staying)
        stream.begin(staying, network.address, kept=True)
        await stream.until_has(1)
        leaving.loop.let_go(stream.id)
        assert await stream.text() == await true_text(PROMPT)
        assert computed == []


async def test_a_client_that_leaves_while_its_kv_is_on_the_way_leaves_nothing(leaving, staying):
    async with fault_proxy(leaving.address, back=Fault(swallow_after=1000), only=KV) as network:
        stream = Stream()
        stream.begin(leaving)
        await stream.until_has(20)
        stream.leave()
        stream.begin(staying, network.address, kept=True)
        await stream.until_has(1)
        staying.loop.abort(stream.name)
        await until(lambda: not (staying.scheduler.sequences or leaving.loop.leases.active))
    assert leaving.loop.leases.expired == 0


async def test_a_decode_engine_computes_no_prompt_of_others(leaving, staying, prefill, true_text):
    """Also what an engine of an earlier release does, which keeps nothing."""
    asked = prompt_tokens(leaving)
    stream = Stream()
    stream.ids = (await true_text(PROMPT))[:50]
    stream.begin(staying, leaving.address, prefill.address, kept=True)
    assert await stream.text() == await true_text(PROMPT)
    assert asked == []
    assert stream.client.prefill_pod == "prefill-pod"
    assert stream.client.failed_prefills == (), "it is no prefill engine that fails"


async def test_streams_of_others_are_still_taken_from_an_engine_that_refused_one(
    leaving, staying, true_text
):
    lost, stream = Stream(PROMPT[5:]), Stream()
    lost.ids = (await true_text(lost.prompt))[:3]
    lost.begin(staying, leaving.address, kept=True)
    await lost.text()
    stream.begin(leaving)
    await stream.until_has(20)
    stream.leave()
    computed = prompt_tokens(staying)
    stream.begin(staying, leaving.address, kept=True)
    assert await stream.text() == await true_text(PROMPT)
    assert computed == []


@pytest.mark.parametrize("on_failure", ["recompute", "fail", "colocated"])
async def test_no_rule_for_failed_handovers_ends_a_stream_that_has_begun(
    leaving, true_text, on_failure
):
    with node("decode", kv_on_failure=on_failure) as staying:
        stream = Stream()
        stream.ids = (await true_text(PROMPT))[:50]
        stream.begin(staying, leaving.address, kept=True)
        assert await stream.text() == await true_text(PROMPT)


@pytest.mark.parametrize(
    ("connection", "after"),
    [(TALK, 0), (TALK, 30), (TALK, 120), (TALK, 200), (KV, 0), (KV, 10), (KV, 700), (KV, 2600)],
)
async def test_the_leaving_engine_dies_at_any_step_and_the_text_stays(
    leaving, staying, prefill, true_text, connection, after
):
    async with fault_proxy(
        leaving.address, back=Fault(cut_after=after), only=connection
    ) as network:
        stream = Stream()
        stream.begin(leaving)
        await stream.until_has(20)
        stream.leave()
        stream.begin(staying, network.address, prefill.address, kept=True)
        assert await stream.text() == await true_text(PROMPT)


async def test_damaged_kv_is_not_used(leaving, staying, prefill, true_text):
    async with fault_proxy(leaving.address, back=Fault(flip_at=900), only=KV) as network:
        stream = Stream()
        stream.begin(leaving)
        await stream.until_has(20)
        stream.leave()
        stream.begin(staying, network.address, prefill.address, kept=True)
        assert await stream.text() == await true_text(PROMPT)


async def test_an_engine_that_drains_hands_over_what_it_kept_and_nothing_else(
    leaving, staying, prefill, true_text
):
    stream, other = Stream(), Stream(PROMPT[5:])
    stream.begin(leaving)
    await stream.until_has(20)
    leaving.loop.draining = True
    stream.leave()
    other.ids = (await true_text(other.prompt))[:10]
    computed = prompt_tokens(staying)
    stream.begin(staying, leaving.address, kept=True)
    other.begin(staying, leaving.address, prefill.address, kept=True)
    assert await stream.text() == await true_text(PROMPT)
    assert await other.text() == await true_text(other.prompt)
    assert other.client.prefill_pod == "prefill-pod"
    assert computed == []


async def test_without_room_at_the_new_engine_a_stream_waits_and_goes_on(leaving, true_text):
    """The lease is over by then: the text is computed."""
    with node("decode", kv_cache_tokens=64 * BLOCK) as full:
        filler = full.ask([7] * (40 * BLOCK), max_tokens=20 * BLOCK, name="filler")
        computing, go_on = full.hold_steps()
        await until(computing.is_set)
        stream = Stream()
        stream.begin(leaving)
        await stream.until_has(20)
        stream.leave()
        stream.begin(full, leaving.address, kept=True)
        await until(lambda: leaving.loop.leases.expired)
        go_on.set()
        assert await stream.text() == await true_text(PROMPT)
        assert filler.end == "length"


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [False, True], ids=["one by one", "launched ahead"])
async def test_crowds_of_streams_that_move_at_random_keep_their_texts(true_text, ahead):
    """Between three engines whose KV is scarce, so that streams are preempted, and some of which
    are asked for what they no longer have."""
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")  # to draw the same ones again
    draw = random.Random(seed)
    options = {"kv_cache_tokens": 70 * BLOCK, "evicts": True, "host_slots": 10, "ahead": ahead}
    with contextlib.ExitStack() as stack:
        engines = [
            stack.enter_context(node("decode", lease_s=LEASE_S, **options)) for _ in range(3)
        ]
        handed_over = 0

        async def begin(stream: Stream, at: Node, *candidates: str) -> None:
            """Ask again while the engine's queue is full, as a gateway does."""
            stream.begin(at, *candidates, kept=bool(candidates))
            await stream.until_has(1)
            while stream.client.end == "queue_full":
                stream.begin(at, *candidates, kept=bool(candidates))
                await stream.until_has(1)

        async def live(stream: Stream) -> None:
            nonlocal handed_over
            here = draw.choice(engines)
            await begin(stream, here)
            for _ in range(draw.randrange(1, 6)):
                await stream.until_has(draw.randrange(1, 40))
                if stream.client.end is not None:
                    break
                stream.leave()
                if len(stream.ids) == stream.tokens:
                    break  # it ended just before
                if draw.random() < 0.1:
                    return  # its client hung up
                there = draw.choice([engine for engine in engines if engine is not here])
                await begin(stream, there, here.address)
                here = there
            text = stream.ids if len(stream.ids) == stream.tokens else await stream.text()
            handed_over += bool(stream.client.prefill_pod)
            assert text == await true_text(stream.prompt, stream.tokens)

        for _ in range(6):
            lengths = [BLOCK * draw.choice([1, 4, 9]) + draw.randrange(BLOCK) for _ in range(6)]
            streams = [Stream([5 + draw.randrange(3)] * n, draw.choice([60, 200])) for n in lengths]
            await asyncio.gather(*map(live, streams))
        assert handed_over
        for engine in engines:
            assert engine.metric("argosy_loop_errors_total") == 0
