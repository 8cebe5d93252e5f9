"""When a pod is asked whether it is there, and after how many turns it is silent: in virtual time.

`relay/test_silent_pods.py` has what requests make of it.
"""

import asyncio
import ssl

import pytest

from argosy_gateway.errors import UnreachableError
from argosy_gateway.pods.endpoints import Directory, Endpoint, Role, State
from argosy_gateway.pods.health import HEALTHY
from argosy_gateway.pods.probes import Probes
from tests.gateway.transports import Network
from tests.support.virtual import timed

POD = Endpoint("uid", "a", "10.0.0.1", Role.COLOCATED, "r", State.SERVING, port=8000)
NAMED = b"HTTP/1.1 200 OK\r\nx-argosy-pod: a\r\ncontent-length: 0\r\n\r\n"


class Certificates:
    """One context, or none at all."""

    def __init__(self, context=None):
        self._context = context

    def context(self):
        if self._context is None:
            raise UnreachableError("no certificate")
        return self._context


class World:
    def __init__(self, pod=POD, certificates=None):
        loop = asyncio.get_running_loop()
        self.network, self.pod = Network(), pod
        self.directory = Directory(loop.time, speaks_tls=True)
        self.directory.replace([pod])
        self.probes = Probes(
            self.directory,
            certificates or Certificates(),
            silent_s=6.0,
            connect_s=2.0,
            clock=loop.time,
        )

    def ask(self, again_s=1.0):
        self.probes.ask(self.pod, again_s=again_s)

    async def answer(self, data=NAMED):
        self.network.connections[-1].protocol.data_received(data)
        await asyncio.sleep(0.001)

    @property
    def is_silent(self):
        return self.probes.is_silent("uid")

    @property
    def rank(self):
        return self.directory.health.rank("uid")


@timed
async def test_a_pod_is_asked_for_its_health_over_a_connection_of_its_own():
    w = World()
    w.ask()
    await asyncio.sleep(0.5)
    assert w.network.dialled == [("10.0.0.1", 8000, None)]
    (connection,) = w.network.connections
    assert connection.written == (
        b"GET /health HTTP/1.1\r\nhost: 10.0.0.1:8000\r\nconnection: close\r\n\r\n"
    )
    await w.answer()
    assert connection.aborted
    assert not w.is_silent


@timed
async def test_a_pod_without_a_sign_for_six_turns_is_silent_until_it_answers():
    w = World()
    w.ask()
    await asyncio.sleep(5.9)
    assert not w.is_silent
    assert w.rank == HEALTHY
    await asyncio.sleep(0.2)
    assert w.is_silent
    assert w.rank is None, "no request is sent there"
    await w.answer()
    assert not w.is_silent
    assert w.rank == HEALTHY


@pytest.mark.parametrize(
    ("answer", "silent"),
    [
        (NAMED, False),
        (NAMED.replace(b"x-argosy-pod", b"x-argosy-decode-pod"), False),
        (NAMED.replace(b"200 OK", b"503 X"), False),
        (NAMED.replace(b": a", b": another"), True),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", True),
        (b"SSH-2.0-x\r\n", True),
    ],
)
@timed
async def test_only_an_answer_under_its_name_is_a_sign_of_a_pod(answer, silent):
    w = World()
    w.ask()
    for _ in range(20):
        await asyncio.sleep(0.5)
        if w.network.connections and not w.network.connections[-1].closing:
            await w.answer(answer)
    assert w.is_silent is silent
    w.probes.close()


@pytest.mark.parametrize(
    ("error", "silent"),
    [
        (ConnectionRefusedError("refused"), False),
        (ssl.SSLError("bad certificate"), False),
        (OSError("no route"), True),
    ],
)
@timed
async def test_a_refused_connection_is_a_sign_that_a_program_is_there(error, silent):
    w = World()
    w.network.fails = error
    w.ask()
    await asyncio.sleep(20)
    assert w.is_silent is silent
    w.probes.close()
