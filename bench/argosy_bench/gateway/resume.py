"""How long a stream pauses when its decode engine is killed.

A gateway stands in front of simulated engines, one prefill and two decode. STREAMS streams are read
at once; when each has AHEAD tokens, one decode engine gets SIGKILL. A stream's gap is its longest
time without a token after that. Beside it stands the usual time between two tokens, before the
kill. Each run has new processes; medians of the runs count.
"""

import asyncio
import itertools
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from argosy_bench.client import Answer, Ask, ask, quantile
from argosy_bench.processes import fleet
from local.figures import Figure, Figures, Target

ROLES = ("prefill", "decode", "decode")
VICTIM = "decode-1"
STREAMS, PROMPT_TOKENS, OUTPUT_TOKENS, AHEAD = 40, 200, 120, 40

FIGURES = (
    Figure("resume_gap_ms_p50", "ms", digits=0),
    Figure("resume_gap_ms_p99", "ms", digits=0),
    Figure("inter_token_ms_p50", "ms", digits=1),
    Figure("streams_resumed", digits=0),
    Figure("streams_broken", target=Target("==", 0), digits=0),
    Figure("text_mismatches", target=Target("==", 0), digits=0),
)


@dataclass(frozen=True, slots=True)
class Run:
    """All streams of one run, and when the engine was killed."""

    streams: Sequence[Answer]
    killed_at: float

    def gaps_s(self) -> list[float]:
        """Return the longest pause after the kill of each stream that was resumed."""
        begun = (one for one in self.streams if one.pod == VICTIM)
        return [
            max(b - a for a, b in itertools.pairwise(one.at) if b > self.killed_at)
            for one in begun
            if one.at and one.at[-1] > self.killed_at
        ]

    def paces_s(self) -> list[float]:
        """Return the times between tokens that came before the kill."""
        pairs = [pair for one in self.streams for pair in itertools.pairwise(one.at)]
        return [b - a for a, b in pairs if b <= self.killed_at]


def summarise(figures: Figures, undisturbed: Run, runs: Sequence[Run]) -> None:
    """Put every figure; `undisturbed` has the texts that all other runs must have."""
    gaps = [run.gaps_s() for run in runs]
    for share, name in ((0.5, "p50"), (0.99, "p99")):
        late_s = statistics.median(quantile(gap, share) for gap in gaps)
        figures.put(f"resume_gap_ms_{name}", 1000 * late_s)
    pace_s = statistics.median(statistics.median(run.paces_s()) for run in runs)
    figures.put("inter_token_ms_p50", 1000 * pace_s)
    figures.put("streams_resumed", sum(map(len, gaps)))
    broken = sum(not stream.whole for run in runs for stream in run.streams)
    figures.put("streams_broken", broken)
    texts = [stream.text for stream in undisturbed.streams]
    figures.put(
        "text_mismatches",
        sum(one.text != text for run in runs for one, text in zip(run.streams, texts, strict=True)),
    )


async def run(*, kill: bool = True) -> Run:
    """Start new processes, read all streams, and kill the victim meanwhile."""
    ahead = asyncio.Semaphore(0)

    def count(answer: Answer) -> None:
        if len(answer.at) == AHEAD:
            ahead.release()

    async with fleet(ROLES) as (front, engines):
        reads = [
            asyncio.create_task(
                ask(front.port, Ask(number, PROMPT_TOKENS, OUTPUT_TOKENS), on_token=count)
            )
            for number in range(STREAMS)
        ]
        async with asyncio.timeout(120):
            for _ in reads:
                await ahead.acquire()
            killed_at = time.monotonic()
            if kill:
                next(one for one in engines if one.name == VICTIM).process.kill()
            return Run(await asyncio.gather(*reads), killed_at)


async def measure(figures: Figures, runs: int) -> None:
    """Put every figure; a run takes about 10 s."""
    figures.declare(FIGURES)
    undisturbed = await run(kill=False)
    summarise(figures, undisturbed, [await run() for _ in range(runs)])
