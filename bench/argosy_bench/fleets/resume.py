"""`make bench-resume`: how long a stream pauses when its decode engine is killed.

    python -m argosy_bench.fleets.resume [--runs N] [--json FILE]

A real gateway stands in front of simulated engines, one prefill and two decode, in processes of
their own. STREAMS streams are read at once; when each has AHEAD tokens, one decode engine gets
SIGKILL. A stream's gap is its longest time without a token after that. Beside it stands the usual
time between two tokens, before the kill. Each run has new processes; medians of the runs count.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import signal
import statistics
import sys
import tempfile
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from argosy_bench.figures import Figure, Figures, Target, conclude
from argosy_bench.fleets.processes import kill, start, until_ready
from argosy_bench.ports import free_ports

ROLES = ("prefill", "decode", "decode")
VICTIM = "decode-1"
PRESET = "opt-13b-a100"
STREAMS, PROMPT_TOKENS, OUTPUT_TOKENS, AHEAD = 40, 200, 120, 40
RUNS = 5

FIGURES = (
    Figure("resume_gap_ms_p50", "ms", digits=0),
    Figure("resume_gap_ms_p99", "ms", digits=0),
    Figure("inter_token_ms_p50", "ms", digits=1),
    Figure("streams_resumed", digits=0),
    Figure("streams_broken", target=Target("==", 0), digits=0),
    Figure("text_mismatches", target=Target("==", 0), digits=0),
)


@dataclass(slots=True)
class Stream:
    """One stream as its client saw it."""

    pod: str = ""
    """The decode pod that began it."""
    at: list[float] = field(default_factory=list)
    """When each token came, in seconds."""
    text: str = ""
    whole: bool = False

    def gap_s(self, since: float) -> float:
        """The longest time without a token that ended after `since`."""
        return max(b - a for a, b in itertools.pairwise(self.at) if b > since)

    def paces_s(self, until: float) -> list[float]:
        """Times between tokens that came before `until`."""
        return [b - a for a, b in itertools.pairwise(self.at) if b <= until]


@dataclass(frozen=True, slots=True)
class Run:
    """All streams of one run, and when the engine was killed."""

    streams: Sequence[Stream]
    killed_at: float

    @property
    def resumed(self) -> list[Stream]:
        """The streams that the killed engine had begun and that went on after it."""
        begun = (stream for stream in self.streams if stream.pod == VICTIM)
        return [stream for stream in begun if stream.at and stream.at[-1] > self.killed_at]


@dataclass(frozen=True, slots=True)
class Fleet:
    """Running processes."""

    port: int
    """The gateway's."""
    processes: dict[str, Process]
    """By pod name."""


def summarise(figures: Figures, undisturbed: Run, runs: Sequence[Run]) -> None:
    """Put every figure; `undisturbed` has the texts that all other runs must have."""
    gaps = [sorted(stream.gap_s(run.killed_at) for stream in run.resumed) for run in runs]
    paces = [[s for one in run.streams for s in one.paces_s(run.killed_at)] for run in runs]
    figures.put("resume_gap_ms_p50", 1000 * statistics.median(map(statistics.median, gaps)))
    late = [gap[min(len(gap) - 1, int(0.99 * len(gap)))] for gap in gaps]
    figures.put("resume_gap_ms_p99", 1000 * statistics.median(late))
    figures.put("inter_token_ms_p50", 1000 * statistics.median(map(statistics.median, paces)))
    figures.put("streams_resumed", sum(len(run.resumed) for run in runs))
    broken = sum(not stream.whole for run in runs for stream in run.streams)
    figures.put("streams_broken", broken)
    texts = [stream.text for stream in undisturbed.streams]
    figures.put(
        "text_mismatches",
        sum(one.text != text for run in runs for one, text in zip(run.streams, texts, strict=True)),
    )


@contextlib.asynccontextmanager
async def fleet(roles: Sequence[str] = ROLES) -> AsyncIterator[Fleet]:
    """An engine of each role and a gateway, ready; killed at the end."""
    processes = dict[str, Process]()
    entries, admins = list[dict[str, object]](), list[int]()
    with tempfile.TemporaryDirectory() as folder:
        try:
            for index, role in enumerate(roles):
                api, admin, kv = free_ports(3)
                words = f"""engine serve --model sim:{PRESET} --served-name m --role {role}
                    --host 127.0.0.1 --port {api} --admin-port {admin} --kv-port {kv}"""
                name = f"{role}-{index}"
                processes[name] = await start(words, POD_NAME=name)
                place = {"ip": "127.0.0.1", "port": api, "kv_port": kv, "revision": "a"}
                entries.append({"name": name, "role": role, **place})
                admins.append(admin)
            endpoints = Path(folder) / "endpoints.json"
            endpoints.write_text(json.dumps(entries))
            port, admin = free_ports(2)
            words = f"""gateway run --fleet f --namespace n --served-name m --host 127.0.0.1
                --port {port} --admin-port {admin} --endpoints {endpoints} --drain-lag-s 0"""
            processes["gateway"] = await start(words)
            for ready in (*admins, admin):
                await until_ready(ready)
            yield Fleet(port, processes)
        finally:
            await kill(processes.values())


async def _read(port: int, number: int, stream: Stream, ahead: asyncio.Semaphore) -> None:
    """Read one stream to its end; `ahead` is released at its token AHEAD."""
    prompt = " ".join([f"stream{number}"] + [f"w{i}" for i in range(PROMPT_TOKENS - 1)])
    asked = {"model": "m", "prompt": prompt, "max_tokens": OUTPUT_TOKENS, "stream": True}
    body = json.dumps(asked).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n"
    writer.write(head.encode() + b"connection: close\r\n\r\n" + body)
    while line := await reader.readline():
        name, _, value = line.decode().strip().partition(": ")
        if name == "x-argosy-decode-pod":
            stream.pod = value
        if line == b"data: [DONE]\n":
            stream.whole = True
        elif line.startswith(b"data: {") and (text := _text_of(json.loads(line[6:]))):
            stream.at.append(time.monotonic())
            stream.text += text
            if len(stream.at) == AHEAD:
                ahead.release()
    writer.close()


def _text_of(chunk: dict[str, Any]) -> str:
    return "".join(choice["text"] for choice in chunk.get("choices", ()))


async def run(*, kill: bool = True) -> Run:
    """New processes, and one kill."""
    streams = [Stream() for _ in range(STREAMS)]
    ahead = asyncio.Semaphore(0)
    async with fleet() as started:
        async with asyncio.timeout(120), asyncio.TaskGroup() as group:
            for number, stream in enumerate(streams):
                group.create_task(_read(started.port, number, stream, ahead))
            for _ in streams:
                await ahead.acquire()
            killed_at = time.monotonic()
            if kill:
                started.processes[VICTIM].send_signal(signal.SIGKILL)
        return Run(streams, killed_at)


async def measure(figures: Figures, runs: int) -> None:
    """Put every figure; a run takes about 10 s."""
    undisturbed = await run(kill=False)
    summarise(figures, undisturbed, [await run() for _ in range(runs)])


def main() -> int:
    """Run the suite; exit status 1 if a target is missed."""
    parser = argparse.ArgumentParser(prog="make bench-resume", description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--json", type=Path, help="write the figures file here")
    asked = parser.parse_args()
    figures = Figures(FIGURES, "make bench-resume")
    asyncio.run(measure(figures, asked.runs))
    return conclude(figures, asked.json)


if __name__ == "__main__":
    sys.exit(main())
