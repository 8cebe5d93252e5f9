"""Bodies of requests: what is too large, too slow or too much, and that memory is given back."""

import asyncio
from collections.abc import Iterable
from dataclasses import replace

import pytest

from argosy_gateway.config import Limits
from argosy_gateway.errors import RequestError
from argosy_gateway.relay.bodies import Bodies, Body

LIMITS = Limits(body_bytes=10, body_s=5.0, arriving_bytes=25, held_bytes=25)


class Client:
    """Sends parts of a body when a test says so."""

    def __init__(self, bodies: Bodies, announced: int = 0) -> None:
        self.body = bodies.open()
        self._parts: asyncio.Queue[dict[str, object]] = asyncio.Queue()
        self.read = asyncio.create_task(self.body.read(self._parts.get, announced))

    async def sends(self, part: bytes, *, more: bool = True) -> None:
        self._parts.put_nowait({"type": "http.request", "body": part, "more_body": more})
        await taken()

    async def leaves(self) -> None:
        self._parts.put_nowait({"type": "http.disconnect"})
        await taken()


async def taken() -> None:
    """Let the readings go on that can."""
    for _ in range(5):
        await asyncio.sleep(0)


async def ended(client: Client) -> bytes:
    return await asyncio.wait_for(client.read, 2)


def receiver(parts: Iterable[bytes]):
    messages = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    messages[-1].pop("more_body")

    async def receive():
        return messages.pop(0)

    return receive


async def read(bodies: Bodies, *parts: bytes, announced: int = 0) -> tuple[Body, bytes]:
    body = bodies.open()
    return body, await body.read(receiver(parts), announced)


def said(error: RequestError) -> tuple[int, str, str, str | None, dict[str, str]]:
    return error.status, error.message, error.type, error.code, error.headers


async def test_a_body_is_its_parts_and_is_held_until_its_request_has_ended():
    bodies = Bodies(LIMITS)
    with bodies.open() as body:
        assert await body.read(receiver([b"one", b"", b"two"]), 6) == b"onetwo"
        assert (bodies.arriving, bodies.held) == (0, 6)
        _, other = await read(bodies, b"abc")
        assert (other, bodies.held) == (b"abc", 9)
    assert bodies.held == 3
    bodies.close(body)
    assert bodies.held == 3


@pytest.mark.parametrize(("sizes", "fits"), [([10], True), ([4, 6], True), ([11], False)])
async def test_a_body_has_at_most_the_bytes_of_the_limit(sizes, fits):
    bodies = Bodies(LIMITS)
    body = bodies.open()
    reading = body.read(receiver([b"x" * size for size in sizes]), 0)
    if fits:
        assert len(await reading) == 10
        return
    with pytest.raises(RequestError) as refused:
        await reading
    text = "The request body is larger than 10 bytes."
    close = {"connection": "close"}
    assert said(refused.value) == (413, text, "invalid_request_error", None, close)
    bodies.close(body)
    assert (bodies.arriving, bodies.held) == (0, 0)


async def test_a_body_beyond_the_limit_is_read_to_its_end_but_only_up_to_eight_times_the_limit():
    bodies = Bodies(LIMITS)
    client = Client(bodies)
    await client.sends(b"x" * 11)
    await client.sends(b"x" * 69)
    assert not client.read.done(), "closing now would reset the connection before the 413"
    assert bodies.arriving == 0, "what is beyond the limit is dropped"
    await client.sends(b"x")
    with pytest.raises(RequestError) as refused:
        await ended(client)
    assert refused.value.status == 413


async def test_a_body_that_comes_too_slowly_is_answered_408_and_leaves_no_memory():
    bodies = Bodies(replace(LIMITS, body_s=0.01))
    client = Client(bodies)
    await client.sends(b"1234")
    with pytest.raises(RequestError) as refused:
        await ended(client)
    text = "The request body did not arrive within 0.01 s."
    close = {"connection": "close"}
    assert said(refused.value) == (408, text, "invalid_request_error", None, close)
    bodies.close(client.body)
    assert bodies.arriving == 0


async def test_of_too_many_bodies_that_arrive_the_oldest_is_given_up():
    bodies = Bodies(LIMITS)
    oldest, second, third = (Client(bodies) for _ in range(3))
    await oldest.sends(b"x" * 9)
    await second.sends(b"x" * 9)
    await third.sends(b"x" * 7)
    assert bodies.arriving == 25
    assert not oldest.read.done()
    await third.sends(b"x")
    assert bodies.arriving == 17
    with pytest.raises(RequestError) as refused:
        await ended(oldest)
    text = "Too many request bodies arrive at once, and this one began first; send it again."
    headers = {"retry-after": "1", "connection": "close"}
    assert said(refused.value) == (503, text, "overloaded", "overloaded", headers)
    for client in (second, third):
        await client.sends(b"", more=False)
    assert [len(await ended(second)), len(await ended(third))] == [9, 8]


async def test_requests_in_flight_hold_no_more_bytes_than_the_limit():
    bodies = Bodies(LIMITS)
    for size in (10, 10, 5):
        await read(bodies, b"x" * size)
    assert bodies.held == 25
    with pytest.raises(RequestError) as refused:
        await read(bodies, b"x")
    text = "The requests in flight hold too many bytes; try again later."
    headers = {"retry-after": "1", "retry-after-ms": "1000"}
    assert said(refused.value) == (429, text, "overloaded", "overloaded", headers)
    assert (bodies.arriving, bodies.held) == (0, 25)
