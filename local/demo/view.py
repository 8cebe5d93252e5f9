"""What the demo prints: a live table on a terminal, plain lines elsewhere."""

import sys
import time

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from local.demo.traffic.watch import Reading

START = time.monotonic()
console = Console(highlight=False)


def say(text: str) -> None:
    """Print one line with the seconds since this process began."""
    console.print(f"[dim]{time.monotonic() - START:6.1f} s[/dim]  {escape(text)}", soft_wrap=True)


class Board:
    """Shows readings: a table of the newest eight, or a plain line every five seconds."""

    def __init__(self) -> None:
        self._live = Live(console=console, auto_refresh=False) if sys.stdout.isatty() else None
        self._rows: list[Reading] = []
        self._printed = -5.0

    def __enter__(self) -> "Board":
        if self._live:
            self._live.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.__exit__(None, None, None)

    def show(self, reading: Reading) -> None:
        """Show one more reading."""
        self._rows = [*self._rows[-7:], reading]
        if self._live:
            self._live.update(self._table(), refresh=True)
        elif reading.at_s - self._printed >= 5:
            self._printed = reading.at_s
            cells = self._cells(reading)
            console.print(
                "  {:>5} {:<10} demand {:>8}  P {:>4}  D {:>4}  GPUs {:>3}  met {:>5}  {}".format(
                    cells[0], cells[1], cells[2], *cells[3:7], cells[8]
                ),
                soft_wrap=True,
            )

    @staticmethod
    def _cells(reading: Reading) -> list[str]:
        share = "–" if reading.attainment is None else f"{reading.attainment:.0%}"
        return [
            f"{reading.at_s:.0f} s",
            reading.phase,
            f"{reading.offered_rps:.1f} rps",
            "{}/{}".format(*reading.prefill),
            "{}/{}".format(*reading.decode),
            str(reading.gpus),
            share,
            f"{reading.cpu_share:.0%}",
            reading.decision,
        ]

    def _table(self) -> Table:
        names = ["time", "phase", "demand", "P", "D", "GPUs", "met", "CPU", "last decision"]
        table = Table(
            *names, expand=True, title="simulated Llama-70B on H100: P and D ready/desired"
        )
        for reading in self._rows:
            table.add_row(*self._cells(reading))
        return table
