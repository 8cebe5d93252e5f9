"""Where a request begins and ends: heads that break HTTP/1.1, offers of another protocol, requests
that do not wait for their turn. `test_malformed.py` has the table, and sends it over sockets."""

import asyncio
import json

import pytest

from argosy_gateway.server.app import CLIENT
from tests.gateway.server.clients import (
    GET,
    HI,
    HI_ANSWER,
    INVALID,
    LAST_ANSWER,
    OFFER,
    POST,
    START,
    TOO_LARGE,
    Echo,
    Server,
    refused,
    turns,
)
from tests.gateway.server.test_malformed import CLEAR, HEADS, LENGTHS
from tests.support.virtual import timed


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (b"GET /a HTTP/1.1\r\n\r\n", "A request has one host header, this one has 0."),
        (GET + b"Host: y\r\n\r\n", "A request has one host header, this one has 2."),
        (
            b"GET /a HTTP/1.0\r\nhost: x\r\nhost: x\r\n\r\n",
            "A request has one host header, this one has 2.",
        ),
        (
            b"GET /a\r\n\r\n",
            "The request line has no HTTP version that is served here: write HTTP/1.1.",
        ),
    ],
)
@timed
async def test_a_head_that_proxies_may_read_in_another_way_is_refused(head, message):
    app = Echo()
    client = Server(app).client()
    assert await client.sends(head + HI) == refused(b"400 Bad Request", message)
    assert not client.open
    assert app.scopes == []


@timed
async def test_http_1_0_needs_no_host_and_has_no_chunks():
    for headers in (b"", b"host: x\r\n"):
        client = Server(Echo(length=False)).client()
        head = b"POST /a HTTP/1.0\r\ncontent-length: 2\r\n" + headers
        assert await client.sends(head + b"\r\nhi") == (
            b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nhi"
        )
        assert not client.open


@timed
async def test_a_stream_to_a_client_of_http_1_0_is_written_as_it_comes():
    go_on = asyncio.Event()

    async def app(scope, receive, send):
        assert scope["http_version"] == "1.0"
        assert (await receive())["type"] == "http.request"
        await send(START)
        await send({"type": "http.response.body", "body": b"one", "more_body": True})
        assert not scope["state"][CLIENT].has_room
        await go_on.wait()
        await send({"type": "http.response.body", "body": b"", "more_body": True})
        await send({"type": "http.response.body", "body": b"two"})

    client = Server(app).client()
    assert await client.sends(b"GET /a HTTP/1.0\r\n\r\n") == (
        b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\none"
    )
    assert client.open
    go_on.set()
    await turns()
    assert client.transport.written.endswith(b"onetwo")
    assert not client.open


@timed
async def test_what_is_no_request_is_answered_400_and_the_connection_ends():
    client = Server(Echo()).client()
    assert await client.sends(b"\x16\x03\x01") == INVALID
    assert not client.open


@timed
async def test_nonsense_behind_an_answer_is_answered_400():
    client = Server(Echo()).client()
    assert await client.sends(HI) == HI_ANSWER
    assert await client.sends(b"\x16\x03\x01") == INVALID


@pytest.mark.parametrize("size", [1, 13, 100_000])
@pytest.mark.parametrize("name", [*HEADS, *LENGTHS])
@timed
async def test_a_malformed_head_brings_no_app_a_body_however_it_is_cut(name, size):
    app, data = Echo(), {**HEADS, **LENGTHS}[name]
    size = max(size, len(data) // 500)
    answer = (
        await Server(app)
        .client()
        .sends(*(data[at : at + size] for at in range(0, len(data), size)))
    )
    assert answer in (b"", INVALID, TOO_LARGE) or b"400 Bad Request" in answer
    assert [body for *_, body in app.asked if body] == []


# Offers of another protocol.


@pytest.mark.parametrize("name", CLEAR)
@timed
async def test_an_odd_request_whose_meaning_is_clear_reaches_the_app(name):
    for pieces in (1, 7, 10_000):
        app, data = Echo(), CLEAR[name]
        size = -(-len(data) // pieces)
        await (
            Server(app).client().sends(*(data[at : at + size] for at in range(0, len(data), size)))
        )
        ((method, path, body),) = app.asked
        assert (method, path) == ("POST", "/v1/chat/completions")
        assert json.loads(body)["messages"] == [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    "framed",
    [
        b"content-length: 2\r\n\r\nhi",
        b"Content-Length: 2\r\nx: y\r\n\r\nhi",
        b"transfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
        b"transfer-encoding: chunked\r\n\r\n1\r\nh\r\n1\r\ni\r\n0\r\nt: u\r\n\r\n",
    ],
)
@timed
async def test_an_offer_is_ignored_wherever_it_is_cut(framed):
    data = OFFER + framed
    for at in range(1, len(data)):
        app = Echo()
        client = Server(app).client()
        assert await client.sends(data[:at], data[at:]) == HI_ANSWER
        assert app.asked == [("POST", "/a", b"hi")]
        names = [name for name, _ in app.scopes[0]["headers"]]
        assert names[:3] == [b"host", b"connection", b"upgrade"]
        assert await client.sends(data) == HI_ANSWER
        assert await client.sends(HI) == HI_ANSWER
        assert len(app.asked) == 3


@timed
async def test_a_request_behind_an_offer_is_dropped_with_its_connection():
    app = Echo()
    client = Server(app).client()
    offer = OFFER + b"content-length: 2\r\n\r\nhi"
    assert await client.sends(offer + HI) == LAST_ANSWER
    assert app.asked == [("POST", "/a", b"hi")]
    assert not client.open


@timed
async def test_an_offer_behind_a_request_is_dropped_with_its_connection():
    app = Echo()
    client = Server(app).client()
    offer = OFFER + b"content-length: 2\r\n\r\nno"
    assert await client.sends(HI + offer) == LAST_ANSWER
    assert app.asked == [("POST", "/a", b"hi")]


# Requests that do not wait for their turn.


@pytest.mark.parametrize("apart", [False, True])
@timed
async def test_a_pipelined_request_is_dropped_and_the_connection_ends_after_the_answer(apart):
    app = Echo()
    app.go_on.clear()
    client = Server(app).client()
    second = POST + b"x: second\r\ncontent-length: 5\r\n\r\nother"
    await client.sends(*([HI, second] if apart else [HI + second]))
    await client.sends(b"and more")
    assert client.guard.surplus
    assert client.open
    app.go_on.set()
    await turns()
    assert client.transport.written == LAST_ANSWER
    assert not client.open
    assert app.asked == [("POST", "/a", b"hi")]
    assert app.scopes[0]["headers"] == [(b"host", b"x"), (b"content-length", b"2")]
