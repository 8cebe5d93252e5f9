"""What is seen while a load runs: a line a second on a terminal, else one every ten seconds."""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator

from rich.console import Console
from rich.live import Live

from argosy_measure.client import Answer, Request, Send
from argosy_measure.score import Limits, Row, percentile

_LAST = 1000
"""Answers whose percentiles are shown: to sort them all each second would make requests late."""
_PLAIN_S = 10.0


class Watch:
    """Counts of a running load."""

    def __init__(self, limits: Limits) -> None:
        self.sent = self.done = self.failed = self.met = 0
        self._limits = limits
        self._last: deque[Row] = deque(maxlen=_LAST)

    def count(self, send: Send) -> Send:
        """Make a `Send` that counts what it sends."""

        async def counted(request: Request) -> Answer:
            self.sent += 1
            return await send(request)

        return counted

    def note(self, row: Row) -> None:
        """Count an answer."""
        self.done += 1
        self.failed += row.error is not None
        self.met += row.meets(self._limits)
        self._last.append(row)

    def line(self, seconds: float) -> str:
        """Write the state after this many seconds."""
        ttft = percentile((row.ttft_s for row in self._last if row.ttft_s is not None), 0.9)
        tpot = percentile((row.tpot_s for row in self._last if row.tpot_s is not None), 0.9)
        share = f"{self.met / self.done:.3f}" if self.done else "-"
        return (
            f"{seconds:4.0f} s  sent {self.sent}  in flight {self.sent - self.done}  "
            f"done {self.done}  failed {self.failed}  attainment {share}  "
            f"TTFT p90 {write_ms(ttft)}  TPOT p90 {write_ms(tpot)}"
        )


def write_ms(seconds: float | None) -> str:
    """Write a latency in milliseconds."""
    return "-" if seconds is None else f"{seconds * 1e3:.{0 if seconds >= 0.1 else 1}f} ms"


@contextlib.asynccontextmanager
async def show(watch: Watch, console: Console) -> AsyncIterator[None]:
    """Show the counts until the block ends."""
    clock = asyncio.get_running_loop().time
    begin, terminal = clock(), console.is_terminal

    async def refresh(live: Live | None) -> None:
        while True:
            await asyncio.sleep(1.0 if live else _PLAIN_S)
            line = watch.line(clock() - begin)
            if live:
                live.update(line, refresh=True)
            else:
                console.print(line, soft_wrap=True)

    with (
        Live(console=console, auto_refresh=False) if terminal else contextlib.nullcontext() as live
    ):
        task = asyncio.create_task(refresh(live))
        try:
            yield
        finally:
            task.cancel()
            line = watch.line(clock() - begin)
            if live:
                live.update(line, refresh=True)
            else:
                console.print(line, soft_wrap=True)
