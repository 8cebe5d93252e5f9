"""The priority of a request reaches the queue of the prefill engine that computes its prompt."""

import pytest

from argosy_engine.transfer.messages import decode_message
from argosy_engine.transfer.wire import (
    HEADER_BYTES,
    Kind,
    WireError,
    decode_control,
    encode_control,
)
from tests.kv.nodes import BLOCK, node, until
from tests.kv.peers import hello, liar

pytestmark = pytest.mark.slow

REFUSED = (Kind.REFUSED, {"reason": "queue_full", "message": "retry later"})
STEP = 8 * BLOCK


def prompt(number):
    return [1000 * number + i for i in range(STEP)]


async def test_a_prefill_engine_computes_the_prompt_with_the_lower_number_first():
    room = {"max_num_batched_tokens": STEP}
    with node("prefill", **room) as prefill, node("decode", **room) as decode:
        computed = []
        execute = prefill.runner.execute

        def watched(plan):
            computed.extend(chunk.tokens[0] // 1000 for chunk in plan.chunks)
            return execute(plan)

        prefill.runner.execute = watched
        computing, go_on = prefill.hold_steps()
        clients = [decode.ask(prompt(1), prefill.address, name="first")]
        await until(computing.is_set)
        for number, priority in ((2, 0), (3, 7), (4, -7)):
            clients.append(
                decode.ask(prompt(number), prefill.address, name=f"{number}", priority=priority)
            )
        await until(lambda: prefill.loop.unfinished == 4)
        go_on.set()
        await until(lambda: all(client.end == "length" for client in clients))
    assert computed == [1, 4, 2, 3]


@pytest.mark.parametrize("priority", [0, 5])
async def test_the_field_is_left_out_where_it_says_nothing_so_that_earlier_releases_take_it(
    priority,
):
    with node("decode") as decode:
        async with liar(REFUSED) as peer:
            client = decode.ask(prompt(1), peer.address, priority=priority)
            await until(lambda: client.end is not None)
    assert [said.get("priority") for said in peer.said] == [priority or None]


def decoded(**more):
    payload = encode_control(Kind.PREFILL, hello(5, "f", **more))[HEADER_BYTES:]
    assert decode_control(payload)
    return decode_message(Kind.PREFILL, payload)


def test_prefill_without_a_priority_has_the_priority_0():
    assert decoded().priority == 0
    assert decoded(priority=-999).priority == -999


@pytest.mark.parametrize("priority", [-1000, 1000, 1.0, "1", True, None])
def test_another_priority_is_refused(priority):
    with pytest.raises(WireError, match="priority must be a whole number from -999 to 999"):
        decoded(priority=priority)
