"""What the operator takes from a gateway's /pairs and /load, and from anything else there."""

import asyncio
import contextlib
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy_law.signals.gateways import Load, Reading
from argosy_operator.adapters import gateways
from argosy_operator.adapters.gateways import (
    HttpGateways,
    parse_handovers,
    parse_load,
    parse_progress,
)
from argosy_operator.core.snapshot.pods import (
    FailingPair,
    GatewayLoad,
    Handovers,
    SettingsRead,
)


def row(**other):
    ages = {"since_s": 9.5, "last_s": 2}
    return {"prefill": "p", "decode": "d", "failures": 3, "reason": "silent", **ages, **other}


def seen(reason="silent", failures=3):
    return FailingPair("p", "d", reason, failures, since_s=9.5, last_s=2)


def test_the_pairs_of_an_answer():
    rows = [row(), row(decode="d2", reason="crc_error")]
    data = json.dumps({"failing": rows, "handed_over": {}}).encode()
    assert parse_handovers(data).failing == {
        FailingPair("p", "d", "silent", 3, since_s=9.5, last_s=2),
        FailingPair("p", "d2", "crc_error", 3, since_s=9.5, last_s=2),
    }


@pytest.mark.parametrize("age", [-0.5, math.inf, math.nan, "5", None])
def test_an_answer_with_an_age_that_is_none_says_nothing(age):
    good = {"failing": [row()], "handed_over": {"p": 1}}
    assert parse_handovers(json.dumps(good).encode()) != Handovers()
    for bad in (
        {**good, "handed_over": {"p": age}},
        {**good, "failing": [row(since_s=age)]},
        {**good, "failing": [row(last_s=age)]},
    ):
        assert parse_handovers(json.dumps(bad).encode()) == Handovers()


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(["failing", "handed_over", "prefill", "decode"]), inner
            )
        ),
    )
)
def test_any_other_answer_names_nobody(value):
    assert parse_handovers(json.dumps(value).encode()).failing == frozenset()
    data = json.dumps({"failing": [row(failures=value)], "handed_over": {}}).encode()
    assert parse_handovers(data).failing <= {seen(failures=value if isinstance(value, int) else 0)}


@contextlib.asynccontextmanager
async def answering(monkeypatch, reply, host="127.0.0.1", path=b"/pairs"):
    async def serve(reader, writer):
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            lines.append((await reader.readuntil(b"\r\n\r\n")).splitlines()[0])
            writer.write(reply)
            await writer.drain()
        writer.close()

    lines = []
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # pods are reached without it
    server = await asyncio.start_server(serve, host, 0)
    monkeypatch.setattr(gateways, "GATEWAY_ADMIN_PORT", server.sockets[0].getsockname()[1])
    asked = HttpGateways()
    yield asked
    await asked.close()
    server.close()
    assert set(lines) <= {b"GET %b HTTP/1.1" % path}


def reply(status, body):
    return b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body)


GOOD = json.dumps({"failing": [row()], "handed_over": {}}).encode()


@pytest.mark.parametrize(
    ("answer", "pairs"),
    [
        (reply(200, GOOD), {seen()}),
        (reply(404, GOOD), set()),
        (reply(200, GOOD.rjust(256 << 10)), {seen()}),
        (reply(200, GOOD.rjust((256 << 10) + 1)), set()),
        (b"what?", set()),
    ],
    ids=["a gateway", "another program", "256 KiB", "too much", "no HTTP"],
)
async def test_a_gateway_is_asked_over_http(monkeypatch, answer, pairs):
    async with answering(monkeypatch, answer) as asked:
        assert (await asked.handovers("127.0.0.1")).failing == pairs


@pytest.mark.parametrize("drips", [False, True])
async def test_a_gateway_that_says_nothing_or_never_ends_names_nobody(monkeypatch, drips):
    left = asyncio.Event()

    async def serve(reader, writer):
        with contextlib.suppress(ConnectionError):
            writer.write(b"HTTP/1.1 200 .\r\ncontent-length: 60000\r\n\r\n" if drips else b"")
            while drips:
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.01)
            await reader.read()
        left.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    monkeypatch.setattr(gateways, "GATEWAY_ADMIN_PORT", server.sockets[0].getsockname()[1])
    monkeypatch.setattr(gateways, "TIMEOUT_S", 0.2)
    asked = HttpGateways()
    async with asyncio.timeout(20):
        assert await asked.handovers("127.0.0.1") == Handovers()
        await asked.close()
        await left.wait()
    server.close()


COUNTS = {"received": {"accepted": 7, "shed": 2}, "waiting_prompt_tokens": 900}
WORK = {
    "outstanding_prompt_tokens": 1200,
    "decoding": 3,
    "answered": {
        "requests": 5, "prompt_tokens": 500, "prompt_tokens_squared": 6e4, "output_tokens": 50
    },
}  # fmt: skip
READING = Reading("g-1", 50.0, 7.0, 2.0, 900.0, Load(1200.0, 3.0, 5.0, 500.0, 6e4, 50.0))


def load_said(**other):
    said = {"pod": "g-1", "in_flight": 2, "idle_s": 0.5, "on_pods": {}, **COUNTS, **WORK, **other}
    return json.dumps(said).encode()


def test_the_load_of_an_answer():
    assert parse_load(load_said(), "g-1", 50.0) == GatewayLoad(2, 0.5, READING)
    assert parse_load(load_said(more="of a newer gateway"), "g-1", 50.0) == GatewayLoad(
        2, 0.5, READING
    )


@pytest.mark.parametrize(
    "other",
    [
        {"outstanding_prompt_tokens": -1},
        {"decoding": None},
        {"answered": {**WORK["answered"], "output_tokens": math.inf}},
        {"answered": {**WORK["answered"], "prompt_tokens_squared": "6"}},
        {"answered": {"requests": 5}},
        {"answered": 5},
    ],
    ids=str,
)
def test_work_that_cannot_be_makes_the_whole_answer_worthless(other):
    assert parse_load(load_said(**other), "g-1", 50.0) is None


@pytest.mark.parametrize(
    "other",
    [
        {"received": {"accepted": 7}},
        {"received": {"accepted": -7, "shed": 0}},
        {"received": {"accepted": math.nan, "shed": 0}},
        {"received": {"accepted": "7", "shed": 0}},
        {"received": [7, 2]},
        {"received": None},
        {"waiting_prompt_tokens": None},
        {"waiting_prompt_tokens": -1},
        {"waiting_prompt_tokens": 10**400},
    ],
    ids=str,
)
def test_counters_that_cannot_be_make_the_whole_answer_worthless(other):
    assert parse_load(load_said(**other), "g-1", 50.0) is None


@pytest.mark.parametrize("left", [None, 0, 1, "true", []], ids=repr)
def test_a_gateway_has_left_a_pod_only_if_it_says_true(left):
    said = {"e1": {"requests": 0, "left": left}}
    load = parse_load(load_said(on_pods=said), "g-1", 50.0)
    assert load == GatewayLoad(2, 0.5, READING, on_pods={"e1": 0})


DIGEST = "0123456789abcdef"


@pytest.mark.parametrize(
    "said",
    [
        {"digest": "", "refused": ""},
        {"digest": DIGEST, "refused": ""},
        {"digest": DIGEST, "refused": "--max-queue must be at least 1", "of_a_newer": 1},
    ],
    ids=["not read", "in use", "refused"],
)
def test_an_answer_says_which_settings_the_gateway_looked_at(said):
    load = parse_load(load_said(settings=said), "g-1", 50.0)
    assert load == GatewayLoad(
        2, 0.5, READING, settings=SettingsRead(said["digest"], said["refused"])
    )


@pytest.mark.parametrize(
    "said",
    [
        None,
        [],
        DIGEST,
        {},
        {"digest": DIGEST},
        {"refused": ""},
        {"digest": None, "refused": ""},
        {"digest": DIGEST.upper(), "refused": ""},
        {"digest": DIGEST + "0", "refused": ""},
        {"digest": DIGEST, "refused": None},
    ],
    ids=str,
)
def test_settings_that_cannot_be_make_the_whole_answer_worthless(said):
    assert parse_load(load_said(settings=said), "g-1", 50.0) is None


def test_the_answer_of_another_pod_with_the_address_says_nothing():
    assert parse_load(load_said(pod="g-2"), "g-1", 50.0) is None


@pytest.mark.parametrize(
    "other",
    [
        {"in_flight": -1},
        {"in_flight": 0.5},
        {"in_flight": True},
        {"in_flight": "0"},
        {"in_flight": None},
        {"in_flight": 10**9 + 1},
        {"idle_s": -0.1},
        {"idle_s": math.inf},
        {"idle_s": math.nan},
        {"idle_s": "900"},
        {"idle_s": None},
    ],
    ids=str,
)
def test_a_load_that_cannot_be_is_none(other):
    assert parse_load(load_said(**other), "g-1", 50.0) is None
    assert parse_load(load_said(in_flight=10**9), "g-1", 50.0) == GatewayLoad(10**9, 0.5, READING)


@given(
    st.recursive(
        st.none() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(st.sampled_from(["pod", "in_flight", "idle_s"]), inner)
        ),
    )
)
def test_any_other_answer_says_nothing_of_a_load(value):
    assert parse_load(json.dumps(value).encode(), "g-1", 50.0) is None


@given(st.binary(max_size=40))
def test_any_bytes_are_a_progress_or_none(data):
    parse_progress(data)
