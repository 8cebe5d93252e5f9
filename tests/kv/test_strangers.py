"""The KV port against peers that say anything: each is refused by name and harms no other."""

import asyncio
import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy_engine.core.sampling import SamplingParams
from argosy_engine.transfer import prefill_server, wire
from argosy_engine.transfer.messages import decode_message
from argosy_engine.transfer.wire import Kind, encode_control, encode_tokens
from tests.kv.nodes import BLOCK, node, until
from tests.kv.peers import (
    ADMITTED,
    OPEN,
    TICKET,
    frame,
    hello,
    liar,
    puller,
    read_control,
    ready_for,
)

PROMPT = list(range(100, 100 + 40 * BLOCK + 5))
IDS = itertools.count()


@pytest.fixture(scope="module")
def prefill():
    with node("prefill") as started:
        yield started


@pytest.fixture
def decode():
    with node("decode") as started:
        yield started


def new_id() -> str:
    """Leases end a moment after their connection, and ids of live ones are taken."""
    return f"r{next(IDS)}"


def fingerprint(engine) -> str:
    return engine.runner.kv_layout().fingerprint


def sampling(**more) -> dict:
    return {**hello(len(PROMPT), "")["sampling"], **more}


async def assert_others_are_served(engine) -> None:
    async with puller(engine.address) as peer:
        kind, _ = await peer.prefill(PROMPT, fingerprint(engine), request_id=new_id())
        assert kind is Kind.READY
        assert (await peer.pull())[0] is Kind.DONE


async def refusal(engine, sent: bytes, opening: bytes = OPEN) -> dict:
    async with puller(engine.address) as peer:
        peer.writer.write(opening + sent)
        kind, payload = await asyncio.wait_for(peer.answer(), 10)
        assert kind is Kind.REFUSED
        return payload


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("sampling", sampling(temperature="x")),
        ("sampling", sampling(top_p=float("nan"))),
        ("sampling", sampling(seed=1 << 64)),
        ("sampling", sampling(colour="red")),
        ("sampling", {"max_tokens": 5}),
        pytest.param("lease_s", 10**400, id="lease_s-huge"),
        ("lease_s", float("inf")),
        ("request_id", "a\r\nb"),
        ("n_tokens", 1 << 32),
        ("token_ids", [1, 2]),
        ("fingerprint", None),
        ("surprise", 1),
    ],
)
async def test_a_prefill_with_a_wrong_field_is_refused_by_its_name(prefill, field, value):
    said = {**hello(len(PROMPT), fingerprint(prefill)), field: value}
    answer = await refusal(prefill, frame(Kind.PREFILL, json.dumps(said).encode()))
    assert answer["reason"] == "protocol"
    assert field in answer["message"]
    await assert_others_are_served(prefill)


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (frame(Kind.PREFILL, b"[1]"), "object"),
        (frame(Kind.PREFILL, b'{"a":' * 100_000), "not JSON"),
        (frame(Kind.PREFILL, b"", length=(1 << 20) + 1), "limit"),
        (frame(Kind.KV, b"", length=1 << 26), "where PREFILL, PULL or PUSH was due"),
        (frame(77, b""), "unknown frame kind"),
        (frame(Kind.PREFILL, b"", magic=b"GET "), "does not speak"),
    ],
)
async def test_a_frame_that_opens_no_handover_is_refused_before_its_payload_is_awaited(
    prefill, sent, why
):
    answer = await refusal(prefill, sent)
    assert answer["reason"] == "protocol"
    assert why in answer["message"]
    await assert_others_are_served(prefill)


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (frame(Kind.PREFILL, b"", length=1 << 20), "begins with OPEN"),
        (frame(Kind.OPEN, b"", length=1 << 20), "at most 16384"),
        (frame(Kind.OPEN, b"{}"), "credential is missing"),
        (frame(Kind.OPEN, b'{"credential":"","pod_uid":"a b"}'), "pod_uid must be of letters"),
    ],
)
async def test_a_connection_that_does_not_say_who_calls_whom_is_refused(prefill, sent, why):
    answer = await refusal(prefill, sent, opening=b"")
    assert answer["reason"] == "protocol"
    assert why in answer["message"]
    await assert_others_are_served(prefill)


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (frame(Kind.TOKENS, b"", length=1 << 26), "came where TOKENS"),
        (frame(Kind.TOKENS, b"", length=4 * len(PROMPT) + 1), "came where TOKENS"),
        (frame(Kind.RELEASE, b"{}"), "came where TOKENS"),
    ],
)
async def test_tokens_of_another_length_than_announced_are_refused_before_they_are_awaited(
    prefill, sent, why
):
    said = json.dumps(hello(len(PROMPT), fingerprint(prefill))).encode()
    answer = await refusal(prefill, frame(Kind.PREFILL, said) + sent)
    assert answer["reason"] == "protocol"
    assert why in answer["message"]
    await assert_others_are_served(prefill)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Kind.PULL, {"ticket": TICKET, "engine_epoch": "e", "first_block": 0, "n_blocks": 1}),
        (Kind.RELEASE, {"lease": 5}),
        (Kind.PREFILL, {}),
    ],
)
async def test_a_wrong_word_about_a_lease_is_refused_and_ends_only_that_lease(prefill, kind, said):
    async with puller(prefill.address) as peer:
        await peer.prefill(PROMPT, fingerprint(prefill), request_id=new_id())
        await peer.tell(kind, **said)
        got, payload = await read_control(peer.reader)
        assert (got, payload["reason"]) == (Kind.REFUSED, "protocol")
        assert kind.name in payload["message"]
    await until(lambda: not prefill.loop.leases.active)
    await assert_others_are_served(prefill)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({"first_block": -1}, "protocol"),
        ({"n_blocks": 10**30}, "protocol"),
        ({"n_blocks": 42}, "not_ready"),
        ({"first_block": (1 << 32) - 1, "n_blocks": (1 << 32) - 1}, "not_ready"),
        ({"ticket": TICKET}, "lease_gone"),
        ({"engine_epoch": "older"}, "lease_gone"),
    ],
)
async def test_a_wrong_word_about_blocks_is_refused_and_the_lease_goes_on(prefill, said, reason):
    await until(lambda: not prefill.loop.leases.active)
    async with puller(prefill.address) as peer:
        await peer.prefill(PROMPT, fingerprint(prefill), request_id=new_id())
        kind, payload = await peer.pull(**{"first_block": 0, "n_blocks": 41, **said})
        assert (kind, payload["reason"]) == (Kind.REFUSED, reason)
        assert prefill.loop.leases.active == 1
        assert (await peer.pull())[0] is Kind.DONE
        await peer.tell(Kind.RELEASE)
        await until(lambda: not prefill.loop.leases.active)


async def test_unfinished_frames_together_are_bounded_and_one_too_many_is_told_to_go_elsewhere(
    prefill,
):
    head = frame(Kind.PREFILL, b"", length=1 << 20)
    writers = []
    try:
        for _ in range(32):
            _, writer = await asyncio.open_connection(*prefill.address.split(":"))
            writer.write(OPEN + head)
            writers.append(writer)
        await until(lambda: prefill.kv._server._unfinished_bytes == 32 << 20)
        answer = await refusal(prefill, head)
        assert answer["reason"] == "busy"
    finally:
        for writer in writers:
            writer.transport.abort()
    await until(lambda: not prefill.kv._server._unfinished_bytes)
    await assert_others_are_served(prefill)


async def test_one_connection_too_many_is_told_to_go_elsewhere(monkeypatch):
    monkeypatch.setattr(prefill_server, "_CONNECTIONS", 3)
    with node("prefill") as prefill:
        writers = [
            (await asyncio.open_connection(*prefill.address.split(":")))[1] for _ in range(3)
        ]
        await until(lambda: prefill.kv._server._connections == 3)
        assert (await refusal(prefill, b"", opening=b""))["reason"] == "busy"
        for writer in writers:
            writer.transport.abort()
        await until(lambda: not prefill.kv._server._connections)
        await assert_others_are_served(prefill)


def ready(**more):
    return lambda said: ready_for(said, 41, **more)


@pytest.mark.parametrize(
    "frames",
    [
        (ADMITTED, ready(first_token=32_000)),
        (ADMITTED, ready(pod="p\r\nset-cookie: a")),
        (ADMITTED, (Kind.DONE, {"n_blocks": 41})),
        (ADMITTED, (Kind.WAIT, {"step": 1, "n_ready": 42})),
        (ready(),),
        ((Kind.ADMITTED, {"ticket": "short", "engine_epoch": "e"}),),
        ((Kind.REFUSED, {"reason": "a,b=c\r\n", "message": ""}),),
        (frame(Kind.REFUSED, b"", length=1 << 20),),
    ],
)
async def test_a_lie_of_a_prefill_engine_costs_its_request_no_token_and_others_nothing(
    decode, frames
):
    await assert_deceived_in_vain(decode, liar(*frames))


@pytest.mark.parametrize(
    "kv",
    [
        (frame(Kind.KV, b"", length=1 << 26),),
        (frame(Kind.REFUSED, b"", length=1 << 20),),
        ((Kind.DONE, {"n_blocks": "41"}),),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n",),
    ],
)
async def test_a_lie_about_the_kv_costs_its_request_no_token_and_others_nothing(decode, kv):
    await assert_deceived_in_vain(decode, liar(ADMITTED, ready(), kv=kv))


async def assert_deceived_in_vain(decode, peer) -> None:
    async with peer as it:
        deceived, other = decode.ask(PROMPT, it.address), decode.ask(PROMPT[::-1], name="other")
        await until(lambda: deceived.end is not None and other.end is not None)
    assert (len(deceived.ids), deceived.end) == (3, "length")
    assert (len(other.ids), other.end) == (3, "length")
    assert decode.metric("argosy_kv_transfer_failures_total", cause="corrupt") == 1
    assert decode.metric("argosy_loop_errors_total") == 0
    await until(lambda: not decode.scheduler.pool.used)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([1 << 31, 1 << 32, 1 << 64, 10**400])
    | st.floats()
    | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=10,
)
VALID = [
    (Kind.OPEN, {"credential": "a.b.c", "pod_uid": "0-1"}),
    (Kind.PREFILL, hello(len(PROMPT), "here")),
    ready_for(hello(len(PROMPT), "here"), 41),
    ADMITTED,
    (Kind.REFUSED, {"reason": "busy", "message": ""}),
    (Kind.PULL, {"ticket": TICKET, "engine_epoch": "e", "first_block": 0, "n_blocks": 1}),
    (Kind.PUSH, {"ticket": TICKET, "engine_epoch": "e", "first_block": 0, "n_blocks": 1,
                 "metadata": "bWV0YQ==", "address": 4096}),
    (Kind.DONE, {"n_blocks": 1}),
    (Kind.RELEASE, {}),
    (Kind.RENEW, {}),
    (Kind.WAIT, {"step": 0, "n_ready": 0}),
]  # fmt: skip


def decoded(kind, payload):
    """None: refused. Any other exception fails the test that calls this."""
    try:
        return decode_message(kind, json.dumps(payload).encode())
    except wire.WireError:
        return None


@pytest.mark.parametrize("message", VALID, ids=lambda message: message[0].name)
def test_what_engines_say_is_understood(message):
    assert decoded(*message) is not None


NAME = "must be of letters, digits, '.', '_' and '-'"
INT31, INT32, INT63 = (1 << 31) - 1, (1 << 32) - 1, (1 << 63) - 1
LIMITS = {  # (kind, field): what is taken, what is not, and what is said then
    (Kind.OPEN, "credential"): (
        ["", "a b\n", "a" * 8192], ["a" * 8193, 5, None], "must be a text of 0 to 8192 characters",
    ),
    (Kind.OPEN, "pod_uid"): (["", "a" * 64], ["a" * 65], "must be a text of 0 to 64 characters"),
    (Kind.PREFILL, "request_id"): (
        ["a", "A.b_c-9", "a" * 128], ["", "a" * 129, 7], "must be a text of 1 to 128 characters",
    ),
    (Kind.PREFILL, "attempt"): (
        [0, INT31], [-1, INT31 + 1, True, 1.0, "1"], f"must be a whole number from 0 to {INT31}",
    ),
    (Kind.PREFILL, "tp"): ([1, 1024], [0, 1025], "must be a whole number from 1 to 1024"),
    (Kind.PREFILL, "n_tokens"): ([1, INT32], [0], f"must be a whole number from 1 to {INT32}"),
    (Kind.PREFILL, "priority"): (
        [-999, 999], [-1000, 1000, 1.0, "1", None], "must be a whole number from -999 to 999",
    ),
    (Kind.PREFILL, "lease_s"): (
        [0.001, 5, 86400.0], [0.0009, 86400.5, True, "5", float("nan")],
        "must be a number from 0.001 to 86400",
    ),
    (Kind.ADMITTED, "ticket"): (
        ["a" * 32], ["a" * 31, "a" * 33], "must be a text of 32 to 32 characters",
    ),
    (Kind.REFUSED, "reason"): (["", "a" * 64], ["a b", "ä", "a\n"], NAME),
    (Kind.WAIT, "step"): ([0, INT63], [-1, INT63 + 1], f"must be a whole number from 0 to {INT63}"),
    (Kind.PULL, "n_blocks"): ([1, INT32], [0], f"must be a whole number from 1 to {INT32}"),
    (Kind.READY, "pod"): (["", "a" * 253], ["a" * 254], "must be a text of 0 to 253 characters"),
}  # fmt: skip


@pytest.mark.parametrize("at", LIMITS, ids=lambda at: f"{at[0].name}-{at[1]}")
def test_a_field_is_taken_up_to_its_limit_and_refused_beyond_it_with_the_limit(at):
    kind, field = at
    said = next(payload for its, payload in VALID if its is kind)
    taken, refused, limit = LIMITS[at]
    for value in taken:
        understood = getattr(decoded(kind, {**said, field: value}), field)
        assert understood == value
        assert isinstance(understood, float) == (field == "lease_s")
    for value in refused:
        with pytest.raises(wire.WireError) as error:
            decode_message(kind, json.dumps({**said, field: value}).encode())
        assert str(error.value) == f"{kind.name}: {field} {limit}, got {value!r:.40}"


@pytest.mark.parametrize(
    ("name", "taken", "refused", "limit"),
    [
        ("max_tokens", [1, INT31], [0, INT31 + 1], f"must be a whole number from 1 to {INT31}"),
        ("temperature", [0, 2.0], [-0.1, 2.1], "must be a number from 0 to 2"),
        ("ignore_eos", [True, False], [1, 0, "true", None], "must be true or false"),
        ("stop_token_ids", [[], [0, INT32]], [[-1], [INT32 + 1], [1.0], [True]],
         f"must hold whole numbers from 0 to {INT32}"),
    ],
)  # fmt: skip
def test_a_sampling_parameter_is_taken_up_to_its_limit(name, taken, refused, limit):
    said = hello(len(PROMPT), "here")
    for value in taken:
        prefill = decoded(Kind.PREFILL, {**said, "sampling": {**said["sampling"], name: value}})
        assert getattr(prefill.sampling, name) == (tuple(value) if name[:4] == "stop" else value)
    for value in refused:
        payload = {**said, "sampling": {**said["sampling"], name: value}}
        with pytest.raises(wire.WireError) as error:
            decode_message(Kind.PREFILL, json.dumps(payload).encode())
        assert f"sampling {name} {limit}, got " in str(error.value)


TOKENS = st.integers(0, 1 << 20)


@given(
    st.builds(
        SamplingParams,
        max_tokens=st.integers(1, 1 << 20),
        presence_penalty=st.floats(-2, 2),
        frequency_penalty=st.floats(-2, 2),
        min_p=st.floats(0, 1),
        logit_bias=st.lists(st.tuples(TOKENS, st.floats(-100, 100)), max_size=3).map(tuple),
        allowed_token_ids=st.lists(TOKENS, max_size=3).map(tuple),
        bad_words=st.lists(st.lists(TOKENS, max_size=3).map(tuple), max_size=3).map(tuple),
        sent=st.integers(0, 3),
        stop_token_ids=st.lists(TOKENS, max_size=3).map(tuple),
    )
)
def test_every_sampling_parameter_arrives_as_it_was(params):
    assert (
        decoded(Kind.PREFILL, {**hello(5, "here"), "sampling": params.to_json()}).sampling == params
    )


@given(st.sampled_from(VALID), st.data())
def test_any_json_in_any_field_is_a_message_or_a_refusal(message, data):
    kind, payload = message
    field = data.draw(st.sampled_from([*sorted(payload), "surprise"]))
    payload = {**payload, field: data.draw(JSON)}
    if isinstance(message[1].get(field), dict) and data.draw(st.booleans()):
        inner = dict(message[1][field])
        inner[data.draw(st.sampled_from(sorted(inner)))] = data.draw(JSON)
        payload[field] = inner
    decoded(kind, payload)


# ------------------------------------------------------------------ damage


async def test_a_prompt_that_was_damaged_on_its_way_is_refused_and_not_computed(prefill):
    """Its KV would be another prompt's, and decode would find it for the prompt that it sent."""
    said = hello(len(PROMPT), fingerprint(prefill), request_id=new_id())
    tokens = bytearray(encode_tokens(PROMPT))
    tokens[wire.HEADER_BYTES + 7] ^= 1  # of the second token
    answer = await refusal(prefill, encode_control(Kind.PREFILL, said) + bytes(tokens))
    assert answer["reason"] == "protocol"
    assert "TOKENS frame was damaged" in answer["message"]
    await assert_others_are_served(prefill)


async def test_a_first_token_that_was_damaged_on_its_way_is_not_sent_to_the_client(decode):
    def ready(said):
        whole = bytearray(encode_control(*ready_for(said, len(PROMPT) // BLOCK + 1)))
        at = whole.index(b'"first_token":5') + len(b'"first_token":')
        whole[at] ^= 1  # 5 becomes 4
        return bytes(whole)

    async with liar(ADMITTED, ready) as it:
        client = decode.ask(PROMPT, it.address)
        await until(lambda: client.end is not None)
    assert client.failed_prefills == ((it.address, "corrupt"),)
    assert client.ids[0] != 4
