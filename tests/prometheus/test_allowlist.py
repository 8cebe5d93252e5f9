"""A user's `prometheus.url` reaches what the administrator allowed, and no more is told."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy_law.goals import Windows
from argosy_law.observe import FleetMetrics, Unknown
from argosy_operator.adapters.prometheus import allowlist
from argosy_operator.adapters.prometheus.allowlist import Allowlist
from argosy_operator.adapters.prometheus.collect import Question
from argosy_operator.adapters.prometheus.metrics import PrometheusMetrics

pytestmark = pytest.mark.slow

ASKED = Question(("default", "a"), Windows(scrape_s=1, rate_s=5, interval_s=2))
OWN = "http://127.0.0.1:1"


@asynccontextmanager
async def server(answer: bytes) -> AsyncIterator[tuple[int, list[bytes]]]:
    """Its port, and the bytes that arrived. An empty `answer` says nothing at all."""
    heard: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(4096):
            heard.append(data)
            if answer:
                writer.write(answer)
                break
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield listening.sockets[0].getsockname()[1], heard
    finally:
        listening.close()


async def ask(url: str, *entries: str) -> FleetMetrics:
    port = PrometheusMetrics(OWN, allowed=Allowlist.of(entries), timeout_s=1.0)
    try:
        return (await port.ask(url, ASKED)).metrics
    finally:
        port.close()


def reason(seen: FleetMetrics) -> str:
    assert isinstance(seen.arrivals, Unknown)
    return seen.arrivals.reason


async def test_by_default_only_the_operators_own_prometheus_is_asked() -> None:
    async with server(b"HTTP/1.1 200 OK\r\n\r\n") as (port, heard):
        said = reason(await ask(f"http://127.0.0.1:{port}"))
    assert heard == []
    assert said.startswith("PrometheusNotAllowed")
    assert "prometheus.allowed" in said


async def test_a_name_that_resolves_to_loopback_is_cut_off_before_a_byte_is_sent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with server(b"HTTP/1.1 200 OK\r\n\r\n") as (port, heard):
        await ask(f"http://localhost:{port}", f"localhost:{port}")
    assert heard == []
    assert "outside the allow-list" in caplog.text


@pytest.mark.parametrize(
    "url", ["http://localhost:%d/a/..", "http://ⓛocalhost:%d", "HTTP://LOCALHOST:%d"]
)
async def test_no_spelling_of_an_address_gets_past_the_check_of_the_connection(url: str) -> None:
    """Requests are sent to another spelling of it than the user's: `http://localhost:9090/`."""
    async with server(b"HTTP/1.1 200 OK\r\n\r\n") as (port, heard):
        await ask(url % port, f"10.0.0.0/8:{port}")
    assert heard == []


async def test_refused_silent_and_erring_addresses_read_the_same_to_users(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The condition told them apart: users who may create a fleet could scan the cluster."""
    said, caplog_level = set(), logging.WARNING
    caplog.set_level(caplog_level, "argosy.prometheus")
    answers = (
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
        b'HTTP/1.1 400 Bad\r\nContent-Length: 36\r\n\r\n{"status": "error", "error": "hoho"}',
        b"",
    )
    causes = set()
    for answer in answers:
        async with server(answer) as (port, _):
            said.add(reason(await ask(f"http://127.0.0.1:{port}", f"127.0.0.0/8:{port}")))
            causes.add(caplog.records[-1].getMessage().partition(": ")[2])
    async with server(b"") as (port, _):
        pass  # the port is closed from here on
    said.add(reason(await ask(f"http://127.0.0.1:{port}", f"127.0.0.0/8:{port}")))
    async with server(b"") as (port, _):
        said.add(reason(await ask(f"http://localhost:{port}", f"localhost:{port}")))
    (sentence,) = said
    assert "operator's log" in sentence
    assert len(causes) == len(answers)


async def test_an_address_in_an_allowed_network_is_asked() -> None:
    async with server(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}") as (port, heard):
        await ask(f"http://127.0.0.1:{port}", f"127.0.0.0/8:{port}")
    assert heard[0].startswith(b"GET /api/v1/query")


@pytest.mark.parametrize(
    ("url", "entry", "permitted"),
    [
        ("http://prometheus.monitoring:9090", "prometheus.monitoring:9090", True),
        ("http://PROMETHEUS.monitoring.:9090/x", "prometheus.monitoring:9090", True),
        ("http://prometheus.monitoring:8080", "prometheus.monitoring:9090", False),
        ("http://prometheus.monitoring", "prometheus.monitoring:80", True),
        ("https://prometheus.monitoring", "prometheus.monitoring:443", True),
        ("http://a.team.svc:9090", "*.team.svc:9090", True),
        ("http://ateam.svc:9090", "*.team.svc:9090", False),
        ("http://prometheus.monitoring:9090@evil:9090", "prometheus.monitoring:9090", False),
        ("http://evil#prometheus.monitoring:9090", "prometheus.monitoring:9090", False),
        ("http://[::1", "prometheus.monitoring:9090", False),
        ("http://anything:9090", "10.1.0.0/16:9090", True),  # its address decides
        ("http://anything:9091", "10.1.0.0/16:9090", False),
        ("http://[fd00::1]:9090", "[fd00::1]:9090", True),
        ("http://[fd00::1]:9090", "fd00::/64:9090", True),
    ],
)
def test_an_entry_is_a_host_and_a_port(url: str, entry: str, permitted: bool) -> None:
    assert Allowlist.of([entry]).permits(url) is permitted


@pytest.mark.parametrize(
    ("address", "admitted"),
    [
        ("10.1.2.3", True),
        ("127.0.0.1", False),
        ("::1", False),
        ("::ffff:127.0.0.1", False),
        ("169.254.169.254", False),
        ("fe80::1%eth0", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
    ],
)
def test_a_name_never_leads_to_the_operators_own_machine_or_link(
    address: str, admitted: bool
) -> None:
    named = Allowlist.of(["prometheus.monitoring:9090"])
    assert named.admits("http://prometheus.monitoring:9090", address) is admitted


def test_an_entry_by_network_admits_its_addresses_and_no_other() -> None:
    net = Allowlist.of(["10.1.0.0/16:9090"])
    assert net.admits("http://anything:9090", "10.1.9.9")
    assert not net.admits("http://anything:9090", "10.2.0.1")
    assert not net.admits("http://anything:9091", "10.1.9.9")


@pytest.mark.parametrize("entry", ["prometheus", "a:0", "a:²", ":9090", "10.1.0.0/99:1", "a:70000"])
def test_an_entry_that_cannot_be_read_says_what_to_write(entry: str) -> None:
    with pytest.raises(ValueError, match="is no entry of the allow-list"):
        Allowlist.of([entry])


@given(url=st.text(max_size=40).map(lambda rest: f"http://{rest}"))
def test_no_address_gets_past_an_empty_list(url: str) -> None:
    assert not Allowlist().permits(url)
    assert allowlist._place(url)[1] >= 0
