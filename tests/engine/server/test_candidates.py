"""The engines that a gateway names to a decode engine: of prompts, and of streams that moved."""

import pytest

from argosy_engine.server.gateway_headers import candidates, kept_at
from argosy_engine.server.openai.errors import ApiError


@pytest.mark.parametrize(
    ("addresses", "uids", "named"),
    [
        ("10.0.0.1:8002", None, ("10.0.0.1:8002",)),
        ("10.0.0.1:8002", "", ("10.0.0.1:8002",)),
        ("10.0.0.1:8002", "u-1", ("10.0.0.1:8002/u-1",)),
        (" p0.ns:1 , [fd00::1]:8002", None, ("p0.ns:1", "[fd00::1]:8002")),
        ("10.0.0.1:8002,10.0.0.2:8002", "u-1,", ("10.0.0.1:8002/u-1", "10.0.0.2:8002")),
        ("10.0.0.1:8002,10.0.0.2:8002", ",u-2", ("10.0.0.1:8002", "10.0.0.2:8002/u-2")),
        (",".join(["p:1"] * 8), None, ("p:1",) * 8),
        (",".join(["p:1"] * 8), ",".join(["u" * 64] * 8), (f"p:1/{'u' * 64}",) * 8),
    ],
)
def test_each_address_is_asked_in_its_order_as_the_pod_that_is_meant(addresses, uids, named):
    assert candidates(addresses, uids) == named


@pytest.mark.parametrize(
    ("addresses", "uids"),
    [
        (",".join(["p:1"] * 9), None),
        ("", None),
        ("p", None),
        ("p:1,", None),
        ("p:1 q:2", None),
        ("p:123456", None),
        ("p:1/u", None),
        ("fd00::1:8002", None),
        ("p:1,q:2", "u-1"),
        ("p:1", "u-1,u-2"),
        ("p:1", "u 1"),
        ("p:1", "u" * 65),
        ("p 1", "u"),
    ],
)
def test_anything_else_is_refused_with_what_to_write(addresses, uids):
    with pytest.raises(ApiError) as refused:
        candidates(addresses, uids)
    error = refused.value
    assert (error.status, error.param) == (400, "x-argosy-prefill")
    assert error.message == (
        "x-argosy-prefill: write at most 8 of ip:port, comma between, and in "
        "x-argosy-prefill-uids as many uids of their pods, or no such header"
    )


@pytest.mark.parametrize("value", ["10.0.0.1:8002/u-1", "10.0.0.1:8002/", "[fd00::1]:8002/u"])
def test_the_engine_that_keeps_a_streams_kv_is_asked_as_the_pod_that_is_meant(value):
    assert kept_at(value) == value


@pytest.mark.parametrize("value", ["p", "p:1,q:2", "p:1/u/v", "p:1/u 1", "fd00::1:8002/u", "/u"])
def test_what_names_no_such_engine_is_refused_with_what_to_write(value):
    with pytest.raises(ApiError) as refused:
        kept_at(value)
    assert (refused.value.status, refused.value.param) == (400, "x-argosy-kept-at")
    assert "ip:port/uid" in refused.value.message
