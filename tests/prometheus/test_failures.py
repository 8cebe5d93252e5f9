"""Every failure of Prometheus becomes Unknown with a reason, in time."""

import asyncio
import socket

import pytest

from argosy_law.goals import Windows
from argosy_law.observe import FleetMetrics, Unknown, Value
from argosy_law.signals.samples import RECEIVED
from argosy_operator.adapters.prometheus.allowlist import Allowlist
from argosy_operator.adapters.prometheus.collect import Question
from argosy_operator.adapters.prometheus.metrics import PrometheusMetrics
from argosy_operator.adapters.prometheus.queries import escape, selector

WINDOWS = Windows(scrape_s=1, rate_s=5, interval_s=2, down_hold_s=15, cold_start_s=6)
ASKED = Question(("default", "a"), WINDOWS)
OURS = '"namespace": "default", "fleet": "a", '


async def test_a_black_hole_costs_the_time_out_and_no_minutes() -> None:
    """Without one the call would hang until the kernel gives the connection up."""
    with socket.socket() as hole:
        hole.bind(("127.0.0.1", 0))
        hole.listen()
        url = f"http://127.0.0.1:{hole.getsockname()[1]}"
        port = PrometheusMetrics(url, timeout_s=0.3)
        async with asyncio.timeout(20):  # generous: machines are shared
            seen = (await port.ask(url, ASKED)).metrics
        port.close()
    assert isinstance(seen.arrivals, Unknown)
    assert seen.arrivals.reason.startswith("PrometheusTimeout")


@pytest.mark.parametrize("answers", [False, True])
async def test_a_password_in_the_address_is_in_no_condition_and_no_log(
    answers: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as hole:
        hole.bind(("127.0.0.1", 0))
        if answers:
            hole.listen()  # and never says a word
        host = f"127.0.0.1:{hole.getsockname()[1]}"
        url = f"http://user:pa%2Fss@{host}"
        own = PrometheusMetrics(url, timeout_s=0.3)
        other = PrometheusMetrics(
            None, timeout_s=0.3, allowed=Allowlist.of([host.replace("127.0.0.1", "127.0.0.0/8")])
        )
        async with asyncio.timeout(20):
            shown = [(await port.ask(url, ASKED)).metrics.arrivals for port in (own, other)]
        own.close()
        other.close()
    assert host in str(shown[0])
    assert host in caplog.text
    assert "user" not in f"{shown[0]}{caplog.text}"
    assert "pa%2Fss" not in f"{shown}{caplog.text}"


def test_names_cannot_break_out_of_a_matcher() -> None:
    assert escape('a"b\\c\n') == 'a\\"b\\\\c\\n'
    assert (
        selector(("up",), [("default", '"}|.*')])
        == r"""{__name__=~"up",namespace=~"default",fleet=~"\"\\}\\|\\.\\*"}"""
    )


async def answered(body: str, status: str = "200 OK") -> FleetMetrics:
    """What the port makes of a server that gives this answer to every question."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (await reader.readline()).strip():
            pass
        head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        writer.write((head + body).encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    port = PrometheusMetrics(url, timeout_s=5.0, clock=lambda: 1000.0)
    try:
        return (await port.ask(url, ASKED)).metrics
    finally:
        port.close()
        server.close()


@pytest.mark.parametrize(
    "result",
    [
        '[1000, "1"]',
        '[{"metric": {}}]',
        '[{"metric": {' + OURS + '"role": "gateway"}, "value": [1000, "1"]}]',
        '[{"metric": {' + OURS + '"a": "b"}, "value": [1000, "1"], "values": [[1000, "one"]]}]',
        '[{"metric": {' + OURS + '"__name__": "x"}, "value": [1000, "1"], "histograms": []}]',
    ],
)
async def test_an_answer_of_another_shape_is_blindness_and_no_failed_round(result: str) -> None:
    seen = await answered('{"status": "success", "data": {"result": ' + result + "}}")
    assert isinstance(seen.arrivals, Unknown)
    assert seen.arrivals.reason.startswith("PrometheusAnswer")


SERIES = (
    '{"metric": {' + OURS + '"__name__": "%s", "role": "gateway"}, "value": [9, "1"], "values": %s}'
)


@pytest.mark.parametrize(
    "body",
    [
        "[" * 100_000,
        '{"status": "success", "data": {"result": []}, "warnings": 5}',
        '{"status": "success", "data": {"result": [' + SERIES % ("x", "[[%s, 1]]") + "]}}",
        '{"status": "success", "data": {"result": [' + SERIES % (RECEIVED, "[[NaN, 1]]") + "]}}",
        '{"status": "success", "data": {"result": ['
        + SERIES % (RECEIVED, "[[9, 1], [9, 2], [8, 3]]")
        + "]}}",
    ],
    ids=["deep", "warnings", "large", "no time", "times out of order"],
)
async def test_no_answer_at_all_fails_a_round(body: str) -> None:
    seen = await answered(body.replace("%s", "9" * 400))
    assert isinstance(seen, FleetMetrics)


async def test_what_some_other_server_says_does_not_end_up_in_status() -> None:
    """The address may come from a user's object, and its answer is not the user's to read."""
    for status in ("200 OK", "403 Forbidden"):
        seen = await answered("token: geheim", status)
        assert isinstance(seen.arrivals, Unknown)
        assert "geheim" not in seen.arrivals.reason


async def test_quantiles_for_people_are_read_beside_the_counters() -> None:
    row = OURS + '"__name__": "up", "role": "gateway", "of": "ttft"'
    body = '{"metric": {' + row + '}, "value": [1000, "0.9"], "values": [[1000, "1"]]}'
    seen = await answered('{"status": "success", "data": {"result": [' + body + "]}}")
    assert seen.ttft_p90_s == Value(0.9, 1000.0)
    assert isinstance(seen.tpot_p90_s, Unknown)


async def test_ages_of_samples_are_measured_on_prometheus_clock() -> None:
    """The server evaluates at its own 5000; the operator's clock says 1000."""
    row = (
        '{"metric": {' + OURS + '"__name__": "argosy_requests_received_total", '
        '"outcome": "accepted", '
        '"role": "gateway", "pod": "g"}, "value": [5000, "1"], '
        '"values": [[4996, "1"], [4998, "3"], [5000, "5"]]}'
    )
    seen = await answered('{"status": "success", "data": {"result": [' + row + "]}}")
    assert seen.at == 5000.0
    assert seen.clock_skew_s == -4000.0
    assert isinstance(seen.arrivals, Value)
    assert seen.arrivals.at == 5000.0
