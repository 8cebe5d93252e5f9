"""What routers for vLLM write, read as candidates or refused with what to write instead."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy_engine.server.external.fields import prefillers
from argosy_engine.server.openai.errors import ApiError

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
    assert "write at most 8 of host:port" in refused.value.message


@given(st.text() | st.lists(st.from_regex(r"[a-z:.\[\]0-9]{1,9}:[0-9]{1,6}")).map(",".join))
def test_any_text_gives_candidates_with_the_kv_port_or_is_refused(value):
    found: tuple[str, ...] = ()
    with contextlib.suppress(ApiError):
        found = prefillers(value, 8002)
    assert len(found) <= 8
    assert all(candidate.endswith(":8002") for candidate in found)
