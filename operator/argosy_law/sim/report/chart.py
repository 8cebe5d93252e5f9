"""One chart over time as SVG: lines and steps with axes and a legend. Pure text, no script."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import floor, log10

WIDTH, HEIGHT = 960, 200
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 10, 24
"""Margins around the drawing, in the same units."""
_HOUR_S, _MINUTE_S = 3600.0, 60.0

Point = tuple[float, float | None]
"""(seconds, value); None: there is no value then, and the line breaks."""


@dataclass(frozen=True, slots=True)
class Line:
    """One series."""

    name: str
    """For the legend; empty: it has no entry there."""
    points: Sequence[Point]
    style: str
    """Class of the page's style sheet: a colour, and `wanted` for a dashed line."""
    steps: bool = False
    """Whether a value holds until the next point."""


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines over the same time."""

    title: str
    unit: str
    lines: tuple[Line, ...]
    end_s: float
    warmup_s: float
    """Shaded: what is not counted."""
    top: float | None = None
    """The largest value of the axis; None: what the lines need."""

    def svg(self) -> str:
        """The picture with its title and legend."""
        most = self.top or ceiling(
            max((v for line in self.lines for _, v in line.points if v is not None), default=0.0)
        )
        legend = "".join(
            f'<span class="{line.style}"><svg viewBox="0 0 24 8" aria-hidden="true">'
            f'<path d="M0 4H24"/></svg>{escape(line.name)}</span>'
            for line in self.lines
            if line.name
        )
        drawn = "".join(
            f'<path class="{line.style}" d="{self._path(line, most)}"/>' for line in self.lines
        )
        return (
            f"<figure><figcaption><b>{escape(self.title)}</b> <i>{escape(self.unit)}</i>{legend}"
            f'</figcaption><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
            f'aria-label="{escape(self.title)}">{self._axes(most)}{drawn}</svg></figure>'
        )

    def _x(self, seconds: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * seconds / self.end_s, 1)

    def _y(self, value: float, most: float) -> float:
        return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / most, 1)

    def _path(self, line: Line, most: float) -> str:
        words: list[str] = []
        drawing = False
        for at, value in line.points:
            if value is None:
                drawing = False
                continue
            x, y = self._x(at), self._y(value, most)
            words.append(f"{f'H{x}V' if line.steps else f'L{x} '}{y}" if drawing else f"M{x} {y}")
            drawing = True
        if drawing and line.steps:
            words.append(f"H{self._x(self.end_s)}")
        return "".join(words)

    def _axes(self, most: float) -> str:
        floor_y, right = HEIGHT - BOTTOM, WIDTH - RIGHT
        parts = [
            f'<rect class="warmup" x="{LEFT}" y="{TOP}" height="{floor_y - TOP}" '
            f'width="{round(self._x(min(self.warmup_s, self.end_s)) - LEFT, 1)}"/>'
        ]
        for n in range(5):
            value, y = most * n / 4, self._y(most * n / 4, most)
            parts.append(f'<path class="grid" d="M{LEFT} {y}H{right}"/>')
            parts.append(f'<text class="y" x="{LEFT - 6}" y="{y + 4}">{value:g}</text>')
        step, unit, seconds = time_step(self.end_s)
        for n in range(int(self.end_s / step) + 1):
            label = f"{n * step / seconds:g} {unit}"
            parts.append(f'<text class="x" x="{self._x(n * step)}" y="{HEIGHT - 8}">{label}</text>')
        return "".join(parts)


def ceiling(value: float) -> float:
    """The next of 1, 2, 4, 8 times a power of ten: quarters of it are short to write."""
    if value <= 0:
        return 1.0
    power = 10.0 ** floor(log10(value))
    return next(power * n for n in (1, 2, 4, 8, 10) if power * n >= value)


def time_step(seconds: float) -> tuple[float, str, float]:
    """(seconds between marks, their unit, seconds of the unit), for at most twelve marks."""
    units = [("min", _MINUTE_S, n) for n in (1, 2, 5, 10, 15, 30)]
    units += [("h", _HOUR_S, n) for n in (1, 2, 3, 6, 12, 24, 48, 168)]
    for unit, of, n in units:
        if seconds <= 12 * of * n:
            return of * n, unit, of
    return seconds / 12, "h", _HOUR_S
