"""How long a request waits in the gateway, in virtual time, and how long a client may not read."""

import asyncio
import json
from types import SimpleNamespace

import pytest

from argosy_gateway.config import Config, Limits, Slo
from argosy_gateway.pods.endpoints import Endpoint, Role, State
from argosy_gateway.relay.gateway import Gateway
from argosy_gateway.relay.relay import Relay
from argosy_gateway.server.guard import Guard
from argosy_gateway.wire.openai import read_completion
from tests.support import virtual

ASK = read_completion("/v1/completions", b'{"model":"m","prompt":"hi"}', served_names=("m",))


def pod(state):
    return Endpoint("a", "a", "127.0.0.1", Role.COLOCATED, "r", state, port=1)


def never(gateway, loop):
    pass


def unready_pods_come_and_go(gateway, loop):
    """Changes wake the request; none of them is a pod that can serve it."""
    for second in range(1, 60):
        state = State.UNREADY if second % 2 else State.DRAINING
        loop.call_later(second, gateway.directory.put, pod(state))


@pytest.mark.parametrize(
    ("queue_timeout_s", "happens", "waited_s"),
    [(30.0, never, 30), (7.0, never, 7), (30.0, unready_pods_come_and_go, 30)],
)
def test_a_request_without_a_pod_is_answered_503_after_the_queue_timeout(
    queue_timeout_s, happens, waited_s
):
    async def wait():
        loop = asyncio.get_running_loop()
        config = Config("f", "ns", ("m",), slo=Slo(1, 1), queue_timeout_s=queue_timeout_s)
        gateway = Gateway(config, loop.time)
        gateway.directory.replace([])
        happens(gateway, loop)
        sent, began = [], loop.time()

        async def send(message):
            sent.append(message)

        await Relay(gateway, ASK, send).run()
        return sent, loop.time() - began

    sent, seconds = virtual.run(wait())
    assert seconds == pytest.approx(waited_s)
    assert sent[0]["status"] == 503
    assert json.loads(sent[1]["body"])["error"]["code"] == "no_engine_ready"


class Transport:
    """What waits for a client that may not read."""

    def __init__(self):
        self.unsent, self.closing, self.aborted = 0, False, False

    def get_write_buffer_size(self):
        return self.unsent

    def is_closing(self):
        return self.closing

    def abort(self):
        self.aborted = True


FULL, GROWING, WHOLE = "buffer full", "answer grows", "answer whole"


@pytest.mark.parametrize(
    ("state", "seen", "aborted"),
    [
        (FULL, [(0, 300_000), (29, 300_000)], False),
        (FULL, [(0, 300_000), (31, 300_000)], True),
        (FULL, [(0, 300_000), (31, 300_000 - 16_383)], True),
        (FULL, [(0, 300_000), (31, 300_000 - 16_384)], False),
        (FULL, [(0, 300_000), (29, 283_000), (58, 283_000)], False),
        (FULL, [(0, 300_000), (29, 283_000), (60, 283_000)], True),
        (FULL, [(0, 300_000), (29, 0), (31, 300_000)], False),
        (GROWING, [(0, 900), (31, 900), (300, 900)], False),
        (WHOLE, [(0, 900), (31, 900)], True),
        (WHOLE, [(0, 900), (29, 900)], False),
        (WHOLE, [(0, 0), (31, 0), (300, 0)], False),
    ],
)
def test_a_client_is_given_up_when_it_reads_less_than_16_kib_in_30_s(state, seen, aborted):
    guard = Guard.__new__(Guard)
    guard.limits = Limits()
    guard.transport = Transport()
    guard._unsent = (0, 0.0)
    guard.flow = SimpleNamespace(write_paused=state is FULL)
    guard.cycle = SimpleNamespace(response_complete=state is WHOLE)
    for second, unsent in seen:
        guard.transport.unsent = unsent
        guard.check_time(1000.0 + second)
    assert guard.transport.aborted == aborted
