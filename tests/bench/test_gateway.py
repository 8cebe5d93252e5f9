"""`make bench-gateway` with a small load: every figure of the table is measured."""

import asyncio

import pytest

from argosy_bench.figures import Figures
from argosy_bench.gateway import readers, requests, streams
from argosy_bench.gateway.load import Load, run
from argosy_bench.gateway.processes import engine, envoy_program
from argosy_bench.routing import affinity, picks, sick
from argosy_bench.suites.gateway import GROUPS

SMALL = Load(streams=4, tokens=10, period_s=0.02, ramp_s=0.2, window_s=1.0)


@pytest.mark.slow
async def test_every_figure_of_the_table_is_measured():
    figures = Figures((row for group in GROUPS.values() for row in group.rows), "make bench")
    await streams.measure(figures, SMALL, rounds=1)
    await requests.measure(figures, seconds=0.3, rounds=1)
    await readers.measure(figures, tokens=5, rounds=1)
    await picks.measure(figures, picks=50, runs=1)
    await affinity.measure(figures, requests=12, picks=50, engines=2)
    await sick.measure(figures, requests=24)
    absent = set() if envoy_program() else {row for row in figures.rows if "envoy" in row}
    assert set(figures.values) == set(figures.rows) - absent
    assert figures.values["cpu_us_per_chunk"] > 0
    assert figures.values["rps_per_core"] > 0
    assert figures.values["http1_cpu_us_per_chunk"] > 0
    assert bool(absent) == ("envoy" in figures.notes)


def test_streams_arrive_so_that_as_many_as_asked_are_in_flight():
    load = Load(streams=50, tokens=40, period_s=0.05, ramp_s=2.0, window_s=60.0)
    arrivals = list(load.arrivals(seed=1))
    assert arrivals == sorted(arrivals)
    for at_s in range(5, 60, 5):
        in_flight = sum(begun <= at_s < begun + n * load.period_s for begun, n in arrivals)
        assert 30 <= in_flight <= 70
    assert arrivals[-1][0] < 62.0
    assert arrivals == list(load.arrivals(seed=1))
    assert arrivals != list(load.arrivals(seed=2))


@pytest.mark.slow
async def test_a_run_counts_the_chunks_of_its_window():
    async with engine(period_s=SMALL.period_s) as server:
        sample = await run(server.port, SMALL, seed=1, cpu_s=lambda: 0.0)
    per_s = SMALL.streams / SMALL.period_s
    assert 0.2 * per_s * SMALL.window_s < sample.chunks < 1.6 * per_s * SMALL.window_s
    assert all(0 < seconds < 5 for seconds in sample.ttft_s)
    assert sample.ttft_s


@pytest.mark.slow
async def test_a_stream_that_ends_early_fails_the_run():
    async def end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\ndata: {}\n\n")
        writer.close()

    server = await asyncio.start_server(end, "127.0.0.1", 0)
    with pytest.raises(RuntimeError, match="ended early"):
        await run(server.sockets[0].getsockname()[1], SMALL, seed=1, cpu_s=lambda: 0.0)
    server.close()
