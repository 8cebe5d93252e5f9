"""`make bench-isolation`: what bursts of long prompts do to streams, with and without own pods.

    python -m argosy_bench.fleets.isolation [--runs N] [--json FILE]

Two simulated engines stand behind a real gateway, in processes of their own: two colocated ones, or
one for prefill and one for decode. One open-loop client sends both fleets the same load: short
prompts with answers of OUTPUT_TOKENS, and every BURST_EVERY_S a burst of BURST long prompts. The
TPOT of the short ones is measured. Fleets take turns; medians of the runs count.

Source of the question: DistServe (OSDI 2024), section 2: a prompt that joins a batch delays the
tokens of every stream in it.
"""

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from argosy_bench.figures import Figure, Figures, Target, conclude
from argosy_bench.fleets.resume import fleet

COLOCATED = ("colocated", "colocated")
APART = ("prefill", "decode")
LOAD_S = 24.0
SHORT_EVERY_S, SHORT_TOKENS, OUTPUT_TOKENS = 0.2, 64, 32
BURST_EVERY_S, BURST, LONG_TOKENS = 2.0, 6, 1900
"""A long prompt takes 237 ms on the preset, so bursts keep one prefill engine busy for 0.71 of the
time, and two colocated ones for half of that."""
PATIENCE_S = 60.0
RUNS = 3

FIGURES = (
    Figure("tpot_p90_ms_colocated", "ms", digits=1),
    Figure("tpot_p90_ms_apart", "ms", digits=1),
    Figure("tpot_p90_isolation_ratio", target=Target("<=", 0.6), digits=2),
    Figure("ttft_p90_ms_colocated", "ms", digits=0),
    Figure("ttft_p90_ms_apart", "ms", digits=0),
    Figure("streams_broken", target=Target("==", 0), digits=0),
    Figure("client_late_p99_s", "s", Target("<=", 0.1, of_the_machine=True)),
)


@dataclass(frozen=True, slots=True)
class Due:
    """One request of the load."""

    at_s: float
    """Seconds after the load begins."""
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Seen:
    """One request as its client saw it."""

    due: Due
    late_s: float
    """How late the client itself sent it."""
    ttft_s: float
    tpot_s: float
    whole: bool


def load() -> list[Due]:
    """Every request, in the order in which it is due."""
    short = [
        Due(SHORT_EVERY_S * n, SHORT_TOKENS, OUTPUT_TOKENS)
        for n in range(round(LOAD_S / SHORT_EVERY_S))
    ]
    long = [
        Due(BURST_EVERY_S * (n + 0.5), LONG_TOKENS, 2)
        for n in range(round(LOAD_S / BURST_EVERY_S))
        for _ in range(BURST)
    ]
    return sorted([*short, *long], key=lambda due: due.at_s)


def p90(values: Sequence[float]) -> float:
    """The smallest value that 90 % of the values do not exceed."""
    return sorted(values)[-(-9 * len(values) // 10) - 1]


def summarise(
    figures: Figures, colocated: Sequence[Sequence[Seen]], apart: Sequence[Sequence[Seen]]
) -> None:
    """Put every figure; each fleet has the same number of runs."""
    tpot_ms = dict[str, float]()
    for name, runs in (("colocated", colocated), ("apart", apart)):
        short = [[one for one in run if one.due.prompt_tokens == SHORT_TOKENS] for run in runs]
        tpot_ms[name] = statistics.median(p90([1000 * one.tpot_s for one in run]) for run in short)
        ttft_ms = statistics.median(p90([1000 * one.ttft_s for one in run]) for run in short)
        figures.put(f"tpot_p90_ms_{name}", tpot_ms[name])
        figures.put(f"ttft_p90_ms_{name}", ttft_ms)
    figures.put("tpot_p90_isolation_ratio", tpot_ms["apart"] / tpot_ms["colocated"])
    everyone = [one for run in (*colocated, *apart) for one in run]
    figures.put("streams_broken", sum(not one.whole for one in everyone))
    late = sorted(one.late_s for one in everyone)
    figures.put("client_late_p99_s", late[min(len(late) - 1, int(0.99 * len(late)))])


async def _ask(port: int, number: int, due: Due, begin: float) -> Seen:
    """Send one request when it is due, and read its stream."""
    await asyncio.sleep(max(0.0, begin + due.at_s - time.monotonic()))
    sent = time.monotonic()
    words = [f"load{number}", *(f"w{i}" for i in range(due.prompt_tokens - 1))]
    asked = {
        "model": "m",
        "prompt": " ".join(words),
        "max_tokens": due.output_tokens,
        "stream": True,
    }
    body = json.dumps(asked).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n"
    writer.write(head.encode() + b"connection: close\r\n\r\n" + body)
    tokens, whole = list[float](), False
    while line := await reader.readline():
        if line == b"data: [DONE]\n":
            whole = True
        elif line.startswith(b"data: {") and b'"text": ""' not in line and b'"text"' in line:
            tokens.append(time.monotonic())
    writer.close()
    if len(tokens) < 2:
        return Seen(due, sent - begin - due.at_s, PATIENCE_S, PATIENCE_S, whole=False)
    return Seen(
        due,
        late_s=sent - begin - due.at_s,
        ttft_s=tokens[0] - sent,
        tpot_s=(tokens[-1] - tokens[0]) / (len(tokens) - 1),
        whole=whole,
    )


async def run(roles: Sequence[str]) -> list[Seen]:
    """New processes, and the whole load."""
    async with fleet(roles) as started, asyncio.timeout(LOAD_S + PATIENCE_S):
        begin = time.monotonic() + 0.5
        return await asyncio.gather(
            *(_ask(started.port, number, due, begin) for number, due in enumerate(load()))
        )


async def measure(figures: Figures, runs: int) -> None:
    """Put every figure; a run of both fleets takes about a minute."""
    colocated, apart = list[list[Seen]](), list[list[Seen]]()
    for _ in range(runs):
        colocated.append(await run(COLOCATED))
        apart.append(await run(APART))
    summarise(figures, colocated, apart)


def main() -> int:
    """Run the suite; exit status 1 if a target is missed."""
    parser = argparse.ArgumentParser(prog="make bench-isolation", description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--json", type=Path, help="write the figures file here")
    asked = parser.parse_args()
    figures = Figures(FIGURES, "make bench-isolation")
    asyncio.run(measure(figures, asked.runs))
    return conclude(figures, asked.json)


if __name__ == "__main__":
    sys.exit(main())
