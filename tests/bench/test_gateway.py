"""`make bench-gateway` with small loads: its loads, its scores, and every figure is measured."""

import asyncio

import pytest

from argosy_bench.client import Answer, Ask, ask
from argosy_bench.gateway import handovers, isolation, kv, overload, resume, routing, streams, trust
from argosy_bench.gateway.envoy import envoy_program
from argosy_bench.gateway.load import Load
from argosy_bench.gateway.overload import TPOT_S, TTFT_S, recovery_s
from argosy_bench.gateway.resume import VICTIM, Run
from local.figures import Figures

SMALL = Load(streams=4, tokens=10, period_s=0.02, ramp_s=0.2, window_s=1.0)


def answer(
    at: list[float], *, due_s: float = 0.0, tokens: int = 64, pod: str = "", text: str = "a",
    whole: bool = True, status: int = 200,
) -> Answer:  # fmt: skip
    return Answer(Ask(0, tokens, 32, due_s), 0.0, 0.0, status, pod, at, text, whole)


def table() -> Figures:
    return Figures((), "make bench-gateway")


@pytest.mark.long
@pytest.mark.slow
async def test_every_figure_of_streams_and_routing_is_measured():
    figures = table()
    await streams.measure_streams(figures, SMALL, rounds=1)
    await streams.measure_requests(figures, seconds=0.3, rounds=1)
    await streams.measure_readers(figures, tokens=5, rounds=1)
    await handovers.measure(figures, rounds=1, requests=20)
    await routing.measure_picks(figures, picks=50, runs=1)
    await routing.measure_affinity(figures, requests=12, picks=50, engines=2)
    absent = set() if envoy_program() else {"envoy_rps_per_core"}
    assert set(figures.values) == set(figures.rows) - absent
    assert figures.values["cpu_us_per_chunk"] > 0
    assert figures.values["rps_per_core"] > 0
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


async def test_a_client_notes_each_token_and_whether_the_answer_is_whole():
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        body = (await reader.readuntil(b"\r\n\r\n")).decode()
        writer.write(b"HTTP/1.1 200 OK\r\nx-argosy-decode-pod: decode-1\r\n\r\n")
        writer.write(b'data: {"choices":[{"text":"a "}]}\n\ndata: {"choices":[{"text":"b"}]}\n\n')
        writer.write(b'data: {"choices":[]}\n\n')
        if "content-length" in body:
            writer.write(b"data: [DONE]\n\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    found = await ask(server.sockets[0].getsockname()[1], Ask(1, 3, 2))
    server.close()
    assert (found.status, found.pod, found.text, found.whole) == (200, "decode-1", "a b", True)
    assert len(found.at) == 2
    assert found.tpot_s == found.at[1] - found.at[0]
    assert not (await ask(1, Ask(1, 3, 2))).whole


# Isolation.


def test_the_isolation_ratio_is_of_the_short_streams_medians_over_runs():
    figures = Figures(isolation.FIGURES, "")
    long = answer([], tokens=isolation.LONG_TOKENS, whole=False)
    runs = {
        name: [[answer([0.2, 0.2 + ms / 1000]), long] for ms in times]
        for name, times in (("colocated", (40, 50, 90)), ("apart", (20, 25, 99)))
    }
    isolation.summarise(figures, runs)
    assert figures.values["tpot_p90_isolation_ratio"] == pytest.approx(0.5)
    assert figures.values["tpot_p90_ms_colocated"] == pytest.approx(50)
    assert figures.values["ttft_p90_ms_apart"] == pytest.approx(200)
    assert figures.values["isolation_streams_broken"] == 6


# Overload.


def good(due_s: float) -> Answer:
    return answer([TTFT_S, TTFT_S + 0.999 * TPOT_S], due_s=due_s)


def late(due_s: float) -> Answer:
    return answer([TTFT_S + 0.001, TTFT_S + TPOT_S], due_s=due_s)


def test_recovery_is_the_begin_of_the_first_good_window():
    seen = [late(100 + i / 2) for i in range(8)] + [good(104 + i / 2) for i in range(72)]
    assert recovery_s(seen, 100, 140, least=1.0) == 4.0
    assert recovery_s(seen, 100, 140, least=0.75) == 2.0
    assert recovery_s([late(100 + i) for i in range(40)], 100, 140, least=0.9) == 40


@pytest.mark.long
@pytest.mark.slow
async def test_every_figure_of_the_overload_is_measured(monkeypatch):
    monkeypatch.setattr(overload, "PROMPT_TOKENS", 400)
    monkeypatch.setattr(overload, "OUTPUT_TOKENS", 3)
    monkeypatch.setattr(overload, "FULL_RATE", 4.0)
    monkeypatch.setattr(overload, "BEFORE_S", 2.0)
    monkeypatch.setattr(overload, "AFTER_S", 2.0)
    figures = table()
    await overload.measure_overload(figures, overload.QUEUES[-1], 1.0)
    assert set(figures.values) == set(figures.rows)
    assert figures.values["overload_unanswered"] == 0
    assert figures.values["capacity_goodput"] > 0


# Resume.


def test_figures_are_medians_of_runs_and_count_every_stream():
    other = answer([0.0, 0.02, 0.04, 0.06], pod="decode-2")
    cut = [answer([0.0, 0.02, 0.04, 0.04 + gap], pod=VICTIM) for gap in (0.1, 0.3, 0.5)]
    runs = [Run([one, other], killed_at=0.045) for one in cut]
    broken = answer([0.0, 0.02, 0.9], pod=VICTIM, text="b", whole=False)
    runs.append(Run([broken, other], 0.03))
    figures = Figures(resume.FIGURES, "")
    resume.summarise(figures, Run([answer([]), other], 0.0), runs)
    assert figures.values["resume_gap_ms_p50"] == pytest.approx(400)
    assert figures.values["inter_token_ms_p50"] == pytest.approx(20)
    assert figures.values["streams_resumed"] == 4
    assert figures.missed() == ["streams_broken", "text_mismatches"]


# Trust and the handover of KV.


@pytest.mark.slow
async def test_every_figure_of_trust_is_measured():
    figures = table()
    await trust.measure(figures, 20)
    assert set(figures.values) == set(figures.rows)
    assert figures.values["verify_known_us"] < figures.values["verify_first_us"]


@pytest.mark.slow
def test_pulls_and_copies_of_the_same_bytes_are_measured_in_turn(monkeypatch):
    monkeypatch.setattr(kv, "PULLS", 2)
    figures = Figures(kv.RATES, "")
    kv.measure_rate(figures)
    measured = {"kv_tcp_gb_per_s", "loopback_gb_per_s", "kv_tcp_over_loopback_rate"}
    assert set(figures.values) == measured
    assert all(value > 0 for value in figures.values.values())
