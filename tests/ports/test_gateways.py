"""What the operator takes from a gateway's /pairs, and from anything else that answers there."""

import asyncio
import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy_operator.core.fleet.pods import FailingPair
from argosy_operator.ports import gateways
from argosy_operator.ports.gateways import HttpGateways, pairs_of


def row(**other):
    return {"prefill": "p", "decode": "d", "failures": 3, "reason": "silent", **other}


def test_the_pairs_of_an_answer():
    data = json.dumps({"failing": [row(), row(decode="d2", reason="crc_error")]}).encode()
    assert pairs_of(data) == {
        FailingPair("p", "d", "silent", 3),
        FailingPair("p", "d2", "crc_error", 3),
    }


@pytest.mark.parametrize("reason", ["", "two words", "x" * 65, "<b>"])
def test_a_reason_that_is_no_word_is_unknown(reason):
    data = json.dumps({"failing": [row(reason=reason)]}).encode()
    assert pairs_of(data) == {FailingPair("p", "d", "unknown", 3)}


def test_only_sixteen_pairs_are_taken():
    rows = [row(decode=f"d{n}") for n in range(40)]
    found = pairs_of(json.dumps({"failing": rows}).encode())
    assert {pair.decode for pair in found} == {f"d{n}" for n in range(16)}


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(st.sampled_from(["failing", "prefill", "decode"]), inner)
        ),
    )
)
def test_any_other_answer_names_nobody(value):
    assert pairs_of(json.dumps(value).encode()) == frozenset()
    assert pairs_of(json.dumps({"failing": [row(failures=value)]}).encode()) <= {
        FailingPair("p", "d", "silent", value if isinstance(value, int) else 0)
    }


@contextlib.asynccontextmanager
async def answering(monkeypatch, reply):
    async def serve(reader, writer):
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            lines.append((await reader.readuntil(b"\r\n\r\n")).splitlines()[0])
            writer.write(reply)
            await writer.drain()
        writer.close()

    lines = []
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # pods are reached without it
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    monkeypatch.setattr(gateways, "GATEWAY_ADMIN_PORT", server.sockets[0].getsockname()[1])
    asked = HttpGateways()
    yield asked
    await asked.close()
    server.close()
    assert set(lines) <= {b"GET /pairs HTTP/1.1"}


def reply(status, body):
    return b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body)


GOOD = json.dumps({"failing": [row()]}).encode()


@pytest.mark.parametrize(
    ("answer", "pairs"),
    [
        (reply(200, GOOD), {FailingPair("p", "d", "silent", 3)}),
        (reply(404, GOOD), set()),
        (reply(200, GOOD.rjust(64 << 10)), {FailingPair("p", "d", "silent", 3)}),
        (reply(200, GOOD.rjust((64 << 10) + 1)), set()),
        (b"what?", set()),
    ],
    ids=["a gateway", "an older gateway", "64 KiB", "too much", "no HTTP"],
)
async def test_a_gateway_is_asked_over_http(monkeypatch, answer, pairs):
    async with answering(monkeypatch, answer) as asked:
        assert await asked.failing_pairs("127.0.0.1") == pairs


async def test_a_gateway_that_takes_no_connection_names_nobody(monkeypatch):
    async with answering(monkeypatch, b"") as asked:
        assert await asked.failing_pairs("not an address") == frozenset()
