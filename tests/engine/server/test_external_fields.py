"""What routers for vLLM write, read as candidates or refused with what to write instead."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy_engine.core.request import Claim
from argosy_engine.server.external.fields import (
    Transfer,
    one_token,
    prefillers,
    refuse_role,
    take_transfer,
)
from argosy_engine.server.openai.errors import ApiError
from argosy_engine.server.role import EngineRole

HOSTS = st.one_of(
    st.ip_addresses(v=4).map(str),
    st.ip_addresses(v=6).map(lambda address: f"[{address}]"),
    st.from_regex(r"[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?(\.[a-z]{2,5})?", fullmatch=True),
)
PORTS = st.integers(1, 65535)


@given(st.lists(st.tuples(HOSTS, PORTS), min_size=1, max_size=8), PORTS)
def test_each_host_is_asked_on_the_kv_port_in_the_order_of_the_header(named, kv_port):
    value = ", ".join(f"{host}:{port}" for host, port in named)
    assert prefillers(value, kv_port) == tuple(f"{host}:{kv_port}" for host, _ in named)


@pytest.mark.parametrize("value", ["", " ", "\t"])
def test_an_empty_header_names_nobody(value):
    assert prefillers(value, 8002) == ()


@pytest.mark.parametrize(
    "value",
    [
        *("10.0.0.1", "10.0.0.1:", ":8000", "10.0.0.1:0", "10.0.0.1:65536", "10.0.0.1:8000,"),
        *("http://10.0.0.1:8000", "a b:8000", "fd00::2:8000", "10.0.0.1:80x", ",", "h:٣"),
        ",".join(f"10.0.0.{index}:8000" for index in range(9)),
        "a" * 254 + ":8000",
    ],
)
def test_a_header_that_names_no_engines_is_refused_with_what_to_write(value):
    with pytest.raises(ApiError) as refused:
        prefillers(value, 8002)
    assert (refused.value.status, refused.value.param) == (400, "x-prefiller-host-port")
    assert refused.value.code == "invalid_value"
    assert "write at most 8 of host:port" in refused.value.message


@given(st.text() | st.lists(st.from_regex(r"[a-z:.\[\]0-9]{1,9}:[0-9]{1,6}")).map(",".join))
def test_any_text_gives_candidates_with_the_kv_port_or_is_refused(value):
    found: tuple[str, ...] = ()
    with contextlib.suppress(ApiError):
        found = prefillers(value, 8002)
    assert len(found) <= 8
    assert all(candidate.endswith(":8002") for candidate in found)


# ----------------------------------------------------------------- kv_transfer_params

TICKET = "0123456789abcdef" * 2
ANSWERED = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_engine_id": "e1",
    "remote_block_ids": [0, 1],
    "remote_host": "10.0.0.1",
    "remote_port": 8002,
    "argosy_ticket": TICKET,
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


def taken(**changes) -> Transfer:
    return take_transfer({"kv_transfer_params": {**ANSWERED, **changes}})


def test_what_prefill_answered_is_a_claim_at_its_kv_port():
    assert taken() == Transfer(False, "10.0.0.1:8002", Claim(TICKET, "e1"))
    assert taken(remote_host="fd00::2", remote_port=1).candidate == "[fd00::2]:1"
    assert taken(remote_host="::ffff:10.0.0.1").candidate == "[::ffff:10.0.0.1]:8002"
    assert taken(remote_host="p.ns.svc", remote_port=65535).candidate == "p.ns.svc:65535"


@pytest.mark.parametrize(
    "said", [None, {}, {"do_remote_decode": False, "do_remote_prefill": False}, {"other": 1}]
)
def test_params_that_ask_for_nothing_are_taken_out_of_the_body(said):
    body = {"model": "m", "kv_transfer_params": said}
    assert take_transfer(body) == Transfer()
    assert body == {"model": "m"}
    assert take_transfer(body) == Transfer()


def test_do_remote_decode_asks_for_the_prompt_alone():
    said = {"do_remote_decode": True, "do_remote_prefill": False, "remote_host": None}
    assert take_transfer({"kv_transfer_params": said}) == Transfer(offers=True)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"do_remote_decode": True}, "write true for one of them"),
        ({"do_remote_prefill": 1}, "do_remote_prefill must be true or false, got 1"),
        ({"do_remote_decode": "no"}, "do_remote_decode must be true or false"),
        ({"argosy_ticket": None}, "vLLM's own KV cannot be read"),
        ({"argosy_ticket": TICKET[1:]}, "argosy_ticket must be 32 hexadecimal digits"),
        ({"argosy_ticket": TICKET.upper()}, "argosy_ticket must be 32 hexadecimal digits"),
        ({"remote_engine_id": ""}, "remote_engine_id must be what the prefill engine answered"),
        ({"remote_engine_id": "e" * 65}, "remote_engine_id must be"),
        ({"remote_host": None}, "remote_host must be the name or address"),
        ({"remote_host": "a/b"}, "remote_host must be"),
        ({"remote_host": "10.0.0.1:80,10.0.0.2"}, "remote_host must be"),
        ({"remote_port": 0}, "remote_port must be a KV port, 1 to 65535, got 0"),
        ({"remote_port": 65536}, "got 65536"),
        ({"remote_port": True}, "got True"),
        ({"remote_port": "8002"}, "got '8002'"),
    ],
)
def test_params_that_are_wrong_are_refused_by_name(changes, why):
    with pytest.raises(ApiError) as refused:
        taken(**changes)
    assert (refused.value.status, refused.value.param) == (400, "kv_transfer_params")
    assert why in refused.value.message


@given(JSON | st.fixed_dictionaries({}, optional=dict.fromkeys(ANSWERED, JSON)))
def test_any_json_is_nothing_an_offer_a_whole_claim_or_refused(said):
    transfer = Transfer()
    with contextlib.suppress(ApiError):
        transfer = take_transfer({"kv_transfer_params": said})
    assert (transfer.claim is None) == (transfer.candidate == "")
    assert not (transfer.offers and transfer.claim)


@pytest.mark.parametrize(
    ("said", "left"), [(4, 1), (2, 1), (2.0, 1), (1, 1), (0, 0), (None, None), ("x", "x")]
)
def test_limits_of_the_whole_answer_do_not_count_for_its_first_token(said, left):
    body = {"max_tokens": 9, "max_completion_tokens": 5, "min_tokens": said, "prompt": "a"}
    expected = {"max_tokens": 1, "max_completion_tokens": None, "min_tokens": left, "prompt": "a"}
    assert one_token(body) == expected
    assert body["max_tokens"] == 9


def test_a_streamed_answer_could_not_carry_the_params():
    with pytest.raises(ApiError, match="stream: write false"):
        one_token({"stream": True})
    assert one_token({"stream": False})["stream"] is False


OFFERS, CLAIMS = Transfer(offers=True), Transfer(False, "h:1", Claim(TICKET, "e"))


@pytest.mark.parametrize(
    ("role", "transfer"),
    [
        *(("prefill", OFFERS), ("decode", CLAIMS), ("decode", Transfer())),
        ("colocated", Transfer()),
    ],
)
@pytest.mark.parametrize("mutable", [True, False])
def test_an_engine_does_what_its_role_does(role, transfer, mutable):
    refuse_role(EngineRole(role, mutable), transfer)


@pytest.mark.parametrize(
    ("role", "transfer", "why", "field"),
    [
        (
            "prefill",
            Transfer(),
            "this engine only prefills: send requests to a decode engine",
            None,
        ),
        ("prefill", CLAIMS, "this engine only prefills: send requests to a decode engine", None),
        (
            "decode",
            OFFERS,
            "do_remote_decode: this engine's role is decode: send it to a prefill engine",
            "kv_transfer_params",
        ),
        (
            "colocated",
            OFFERS,
            "do_remote_decode: this engine's role is colocated: send it to a prefill engine",
            "kv_transfer_params",
        ),
        (
            "colocated",
            CLAIMS,
            "do_remote_prefill: this engine's role is colocated: send it to a decode engine",
            "kv_transfer_params",
        ),
    ],
)
def test_an_engine_says_which_role_a_request_needs(role, transfer, why, field):
    with pytest.raises(ApiError, match=why) as refused:
        refuse_role(EngineRole(role), transfer)
    assert (refused.value.status, refused.value.param) == (400, field)
    with pytest.raises(ApiError, match="ask another one") as refused:
        refuse_role(EngineRole(role, mutable=True), transfer)
    assert (refused.value.status, refused.value.code) == (503, "draining")
