"""Programs with few file descriptors, and strangers who take as many as they get."""

import contextlib
import json
import resource
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from argosy_bench.ports import free_ports
from tests.engine.processes import eventually

LIMITS = [
    pytest.param(1024, 4096, id="soft"),
    pytest.param(1024, 1024, id="hard", marks=pytest.mark.long),
]
HALF_HEAD = b"GET /health HTTP/1.1\r\nhost: x\r\na: "
WHOLE = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"


@contextlib.contextmanager
def started(words: str, log: Path, soft: int, hard: int, ready: str) -> Iterator[subprocess.Popen]:
    """`argosy <words>` with these limits of descriptors, once `ready` is answered with 200."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    with log.open("wb") as err:
        command = [sys.executable, "-m", "argosy", *words.split()]
        process = subprocess.Popen(command, stderr=err, preexec_fn=limit)
    try:

        def is_ready() -> bool:
            assert process.poll() is None, log.read_text()[-2000:]
            return httpx.get(ready).status_code == 200

        eventually(is_ready)
        yield process
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def engine(
    tmp_path: Path, soft: int, hard: int, role: str = "prefill"
) -> Iterator[tuple[subprocess.Popen, int, int, int]]:
    """A simulated engine, and its ports: API, admin and KV."""
    api, admin, kv = free_ports(3)
    words = f"""engine serve --model sim:opt-13b-a100 --served-name m --role {role}
        --host 127.0.0.1 --port {api} --admin-port {admin} --kv-port {kv}"""
    ready = f"http://127.0.0.1:{admin}/ready"
    with started(words, tmp_path / "engine", soft, hard, ready) as process:
        yield process, api, admin, kv


@contextlib.contextmanager
def gateway(tmp_path: Path, soft: int, hard: int) -> Iterator[tuple[int, int]]:
    """A gateway without engines: its ports for clients and for probes."""
    api, admin = free_ports(2)
    endpoints = tmp_path / "endpoints.json"
    endpoints.write_text(json.dumps({"endpoints": []}))
    words = f"""gateway run --fleet f --namespace n --served-name m --host 127.0.0.1
        --port {api} --admin-port {admin} --endpoints {endpoints}"""
    with started(words, tmp_path / "gateway", soft, hard, f"http://127.0.0.1:{admin}/health"):
        yield api, admin


@contextlib.contextmanager
def strangers(port: int, count: int, said: bytes) -> Iterator[list[socket.socket]]:
    """So many connections, each of which has said that."""
    with contextlib.ExitStack() as stack:
        found = []
        for _ in range(count):
            one = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
            with contextlib.suppress(ConnectionError):  # it made room for others
                one.sendall(said)
            found.append(one)
        yield found


def answers(port: int, path: str = "/health") -> int:
    """The status that a new client gets, before the time of a half head is over."""
    return httpx.get(f"http://127.0.0.1:{port}{path}", timeout=8).status_code


def resident_mib(process: subprocess.Popen) -> float:
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


@pytest.mark.parametrize(("soft", "hard"), LIMITS)
@pytest.mark.parametrize("attacked", ["api", "admin", "kv"])
def test_half_heads_on_one_port_of_an_engine_leave_all_its_ports_answering(
    tmp_path, soft, hard, attacked
):
    with engine(tmp_path, soft, hard) as (_, api, admin, kv):
        port = {"api": api, "admin": admin, "kv": kv}[attacked]
        said = b"OPEN" if attacked == "kv" else HALF_HEAD
        with strangers(port, 1100, said):
            for _ in range(3):
                assert (answers(api), answers(admin, "/ready")) == (200, 200)
            socket.create_connection(("127.0.0.1", kv), timeout=8).close()


@pytest.mark.parametrize(("soft", "hard"), LIMITS)
def test_idle_clients_of_a_gateway_leave_room_for_new_ones_and_for_its_probes(tmp_path, soft, hard):
    with gateway(tmp_path, soft, hard) as (api, admin), strangers(api, 1100, WHOLE):
        for _ in range(3):
            assert answers(api, "/v1/models") == 200
            assert answers(admin, "/health") == 200


@pytest.mark.parametrize(("soft", "hard"), LIMITS)
def test_a_crowd_that_connects_at_once_is_not_reset(tmp_path, soft, hard):
    """Its connections wait in the kernel while the process opens no more than it has room for."""
    with gateway(tmp_path, soft, hard) as (api, admin), contextlib.ExitStack() as stack:
        crowd, select = [], stack.enter_context(selectors.DefaultSelector())
        for _ in range(1100):
            one = stack.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", api))
            select.register(one, selectors.EVENT_WRITE)
            crowd.append(one)
        assert answers(api, "/v1/models") == 200
        assert answers(admin, "/health") == 200


def test_an_engine_serves_a_request_that_offers_http_2_with_its_body(tmp_path):
    """`curl --http2` offers it, and so does Java's own client."""
    offer = {"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c", "http2-settings": "AAMAAA"}
    with engine(tmp_path, 1024, 4096, "colocated") as (_, api, _, _):
        body = {"model": "m", "prompt": "hi", "max_tokens": 3}
        with httpx.Client(base_url=f"http://127.0.0.1:{api}", timeout=20) as client:
            for _ in range(2):  # the connection serves on
                answer = client.post("/v1/completions", json=body, headers=offer)
                assert answer.status_code == 200
                assert answer.json()["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("attacked", ["api", "admin"])
def test_six_thousand_long_half_heads_take_little_memory(tmp_path, attacked):
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard < 8000:
        pytest.skip("this process may not open 6,000 connections")
    with engine(tmp_path, hard, hard) as (process, api, admin, _):
        before = resident_mib(process)
        with strangers(api if attacked == "api" else admin, 6000, HALF_HEAD + 60_000 * b"a"):
            time.sleep(0.5)  # so that it has read what it reads
            assert resident_mib(process) - before < 150
            assert answers(api) == 200
