"""Lines of the engine thread, which works for all requests, name the request each."""

import pytest

from argosy_engine.core.request import client_id
from tests.kv.nodes import BLOCK, node, until


@pytest.mark.parametrize("name", ["chat-1", "a.b.deadbeef", "x" * 119, "7"])
def test_a_line_has_the_clients_id_and_not_what_made_it_unique(name):
    for own in (name + ".0123abcd", name + ".0123abcd#2"):
        assert client_id(own) == name


async def test_each_request_of_a_failed_step_has_a_line_with_its_id_and_the_cause(caplog):
    with node("colocated") as engine:

        def broken(_plan):
            raise RuntimeError("the accelerator is gone")

        engine.runner.execute = broken
        clients = [engine.ask([5] * BLOCK, name=name) for name in ("one", "two")]
        await until(lambda: all(client.end for client in clients))
    own = {r.request_id: r.getMessage() for r in caplog.records if hasattr(r, "request_id")}
    assert set(own) == {"one", "two"}
    assert all("the accelerator is gone" in message for message in own.values())


async def test_a_hand_over_that_fails_names_its_request_and_attempt(caplog):
    with node("prefill") as prefill, node("decode") as decode:
        prefill.loop.draining = True
        client = decode.ask([5] * BLOCK, prefill.address, name="chat-1.0123abcd")
        await until(lambda: client.end is not None)
    (record,) = [r for r in caplog.records if "pull failed" in r.getMessage()]
    assert (record.request_id, record.attempt) == ("chat-1", 1)
