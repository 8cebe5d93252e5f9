"""`make bench-overload`: what a fleet still serves at ten times what it can, and how it recovers.

    python -m argosy_bench.fleets.overload [--overload-s 60] [--queue KIND] [--json FILE]

A real gateway stands in front of simulated engines, two prefill and one decode, in processes of
their own. One open-loop client sends prompts of PROMPT_TOKENS: at CAPACITY of what the two prefill
engines can compute, then at ten times their whole capacity, then at CAPACITY again. A request is
good if it meets both limits as the client measures them.

The second part sends less than the fleet can serve, once with `--queue none` and once with the
queue that is measured: a queue must cost nothing where there is no overload.
"""

import argparse
import asyncio
import contextlib
import json
import random
import sys
import tempfile
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from argosy_bench.figures import Figure, Figures, Target, conclude
from argosy_bench.fleets.processes import kill, start, until_ready
from argosy_bench.ports import free_ports

ROLES = ("prefill", "prefill", "decode")
PRESET = "llama-70b-h100-tp4"
PROMPT_TOKENS, OUTPUT_TOKENS = 4800, 30
PROMPT_S = 0.54
"""What the preset takes for such a prompt: 3.92 + 0.1066 · 4800 + 1e-6 · 4800² milliseconds."""
TTFT_S, TPOT_S = 2.5, 0.06
FULL_RATE = ROLES.count("prefill") / PROMPT_S
CAPACITY, OVERLOAD = 0.85, 10.0
"""Shares of FULL_RATE. At 1 the queue of a random load grows without end."""
BEFORE_S, AFTER_S = 25.0, 40.0
LIGHT = (0.5, 0.7, 0.9)
LIGHT_S, RAMP_S = 15.0, 20.0
WINDOW_S = 8.0
"""Requests that arrive in such a span show whether the fleet has recovered."""
RECOVERED = 0.9
"""Share of the attainment before the overload."""
QUEUES = ("none", "deadline")
"""Values of the gateway's option; the last one is measured."""
PATIENCE_S = 60.0
"""A client that has no whole answer by then leaves."""

FIGURES = (
    Figure("capacity_goodput", "1/s", digits=2),
    Figure("overload_goodput", "1/s", digits=2),
    Figure("overload_goodput_share", target=Target(">=", 0.8), digits=2),
    Figure("overload_recovery_s", "s", target=Target("<=", 5.0), digits=1),
    Figure("overload_unanswered", target=Target("==", 0)),
    Figure("client_late_p99_s", "s", Target("<=", 0.5, of_the_machine=True)),
    Figure("normal_load_attainment_none"),
    Figure("normal_load_attainment"),
    Figure("queue_normal_load_attainment_ratio", target=Target(">=", 0.99)),
)


@dataclass(frozen=True, slots=True)
class Span:
    """Poisson arrivals whose rate goes evenly from `begin` to `end`, in requests per second."""

    seconds: float
    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class Seen:
    """One request as its client saw it. Times are seconds since the first request was due."""

    due_s: float
    late_s: float
    """How late the client itself sent it."""
    status: int
    """0 without an answer that is whole."""
    ttft_s: float = 0.0
    tpot_s: float = 0.0

    @property
    def good(self) -> bool:
        """Answered within both limits."""
        return self.status == 200 and self.ttft_s <= TTFT_S and self.tpot_s <= TPOT_S


def arrivals(spans: Iterable[Span], seed: int) -> list[float]:
    """When each request is due; the same for the same seed."""
    dice = random.Random(seed)  # noqa: S311
    due, start = list[float](), 0.0
    for span in spans:
        fastest, at = max(span.begin, span.end), 0.0
        while (at := at + dice.expovariate(fastest)) < span.seconds:
            rate = span.begin + (span.end - span.begin) * at / span.seconds
            if dice.random() * fastest <= rate:
                due.append(start + at)
        start += span.seconds
    return due


def share_good(seen: Sequence[Seen]) -> float:
    """Attainment; 1 of no requests."""
    return sum(one.good for one in seen) / len(seen) if seen else 1.0


def within(seen: Iterable[Seen], begin_s: float, end_s: float) -> list[Seen]:
    """The requests that were due in this span."""
    return [one for one in seen if begin_s <= one.due_s < end_s]


def recovery_s(seen: Sequence[Seen], since_s: float, until_s: float, least: float) -> float:
    """Seconds from `since_s` to the first window of arrivals of which the share `least` is good.

    Without such a window it is the whole time to `until_s`.
    """
    begin = since_s
    while begin + WINDOW_S <= until_s:
        if share_good(within(seen, begin, begin + WINDOW_S)) >= least:
            return begin - since_s
        begin += 0.5
    return until_s - since_s


@contextlib.asynccontextmanager
async def fleet(queue: str, folder: Path) -> AsyncIterator[int]:
    """Engines and a gateway, ready; the value is the gateway's port."""
    processes = list[asyncio.subprocess.Process]()
    try:
        entries, admins = list[dict[str, object]](), list[int]()
        for index, role in enumerate(ROLES):
            api, admin, kv = free_ports(3)
            words = f"""engine serve --model sim:{PRESET} --served-name m --role {role}
                --host 127.0.0.1 --port {api} --admin-port {admin} --kv-port {kv}"""
            processes.append(await start(words, POD_NAME=f"{role}-{index}"))
            place = {"ip": "127.0.0.1", "port": api, "kv_port": kv, "revision": "a"}
            entries.append({"name": f"{role}-{index}", "role": role, **place})
            admins.append(admin)
        endpoints = folder / "endpoints.json"
        endpoints.write_text(json.dumps(entries))
        port, admin = free_ports(2)
        words = f"""gateway run --fleet f --namespace n --served-name m --host 127.0.0.1
            --port {port} --admin-port {admin} --endpoints {endpoints} --drain-lag-s 0
            --slo-ttft-ms {TTFT_S * 1000:g} --slo-tpot-ms {TPOT_S * 1000:g} {_option(queue)}"""
        processes.append(await start(words))
        for ready in (*admins, admin):
            await until_ready(ready)
        yield port
    finally:
        await kill(processes)


def _option(queue: str) -> str:
    return "" if queue == "none" else f"--queue {queue}"


async def play(port: int, due: Sequence[float]) -> list[Seen]:
    """Send every request when it is due; returns when all have ended."""
    clock = asyncio.get_running_loop().time
    begin = clock() + 0.2
    tasks = list[asyncio.Task[Seen]]()
    async with asyncio.TaskGroup() as group:
        for number, at in enumerate(due):
            await asyncio.sleep(max(0.0, begin + at - clock()))
            tasks.append(group.create_task(_ask(port, number, begin, at)))
    return [task.result() for task in tasks]


async def _ask(port: int, number: int, begin: float, due_s: float) -> Seen:
    clock = asyncio.get_running_loop().time
    sent = clock()
    late_s = sent - begin - due_s
    lost = Seen(due_s, late_s, 0)
    try:
        async with asyncio.timeout(PATIENCE_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(_request(number))
                status = int((await reader.readline()).split()[1])
                events, first, last = 0, sent, sent
                while line := await reader.readline():
                    if line.startswith(b'data: {"id"') and b'"choices":[]' not in line:
                        events, last = events + 1, clock()
                        first = last if events == 1 else first
                    elif line.startswith(b"data: [DONE]"):
                        tpot_s = (last - first) / (OUTPUT_TOKENS - 1)
                        return Seen(due_s, late_s, status, first - sent, tpot_s)
                return Seen(due_s, late_s, status) if status == 429 else lost
            finally:
                writer.close()
    except (OSError, TimeoutError, IndexError):
        return lost


def _request(number: int) -> bytes:
    # The first word is unique, so that no prefix cache serves one request's prompt to another.
    prompt = f"request{number} " + "word " * (PROMPT_TOKENS - 1)
    options = {"max_tokens": OUTPUT_TOKENS, "ignore_eos": True, "stream": True}
    body = json.dumps({"model": "m", "prompt": prompt, **options}).encode()
    head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


async def measure_overload(figures: Figures, queue: str, overload_s: float, folder: Path) -> None:
    """Capacity, ten times as much, capacity."""
    calm, ends = CAPACITY * FULL_RATE, (BEFORE_S, BEFORE_S + overload_s)
    spans = (
        Span(BEFORE_S, calm, calm),
        Span(overload_s, OVERLOAD * FULL_RATE, OVERLOAD * FULL_RATE),
        Span(AFTER_S, calm, calm),
    )
    async with fleet(queue, folder) as port:
        seen = await play(port, arrivals(spans, seed=1))
    before, during = within(seen, 0, ends[0]), within(seen, *ends)
    goodput = [sum(one.good for one in span) for span in (before, during)]
    figures.put("capacity_goodput", goodput[0] / BEFORE_S)
    figures.put("overload_goodput", goodput[1] / overload_s)
    share = (goodput[1] / overload_s) / max(goodput[0] / BEFORE_S, 1e-9)
    figures.put("overload_goodput_share", share)
    least = RECOVERED * share_good(before)
    figures.put("overload_recovery_s", recovery_s(seen, ends[1], ends[1] + AFTER_S, least))
    figures.put("overload_unanswered", sum(one.status not in (200, 429) for one in seen))
    late = sorted(one.late_s for one in seen)
    figures.put("client_late_p99_s", late[int(0.99 * (len(late) - 1))])
    figures.lists["seconds"] = [
        {"begin_s": a, "sent": len(part), "good": sum(one.good for one in part)}
        for a, b in pairwise(range(0, int(ends[1] + AFTER_S) + 1, 5))
        if (part := within(seen, a, b))
    ]


async def measure_normal(figures: Figures, queue: str, folder: Path) -> None:
    """Loads below capacity and a ramp up to it, without and with the queue."""
    spans = [Span(LIGHT_S, share * FULL_RATE, share * FULL_RATE) for share in LIGHT]
    spans.append(Span(RAMP_S, LIGHT[0] * FULL_RATE, FULL_RATE))
    due = arrivals(spans, seed=2)
    found = dict[str, float]()
    for kind in ("none", queue):
        async with fleet(kind, folder) as port:
            found[kind] = share_good(await play(port, due))
    figures.put("normal_load_attainment_none", found["none"])
    figures.put("normal_load_attainment", found[queue])
    figures.put("queue_normal_load_attainment_ratio", found[queue] / max(found["none"], 1e-9))


async def measure(figures: Figures, queue: str, overload_s: float) -> None:
    """Put every figure: two to five minutes, and as many again to measure the normal load."""
    with tempfile.TemporaryDirectory() as folder:
        await measure_overload(figures, queue, overload_s, Path(folder))
        if queue != "none":
            await measure_normal(figures, queue, Path(folder))


def main() -> int:
    """Run the suite; exit status 1 if a target is missed."""
    parser = argparse.ArgumentParser(prog="make bench-overload", description=__doc__)
    parser.add_argument("--overload-s", type=float, default=60.0, help="length of the overload")
    parser.add_argument("--queue", choices=QUEUES, default=QUEUES[-1])
    parser.add_argument("--json", type=Path, help="write the figures file here")
    asked = parser.parse_args()
    figures = Figures(FIGURES, "make bench-overload")
    figures.notes = {"queue": asked.queue, "overload_s": asked.overload_s}
    asyncio.run(measure(figures, asked.queue, asked.overload_s))
    return conclude(figures, asked.json)


if __name__ == "__main__":
    sys.exit(main())
