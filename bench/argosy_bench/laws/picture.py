"""A picture of laws on traces: attainment over GPU-hours, one panel for each trace, as SVG."""

from collections.abc import Mapping, Sequence
from html import escape

from argosy_bench.laws.player import GOAL, Point

_WIDE, _HIGH, _LEFT, _TOP, _GAP = 260, 190, 46, 44, 26
_COLUMNS = 3
_LEAST_X, _MOST_X, _LEAST_Y = 0.4, 2.0, 0.7
_COLORS = ("#0b6e4f", "#c1440e", "#33658a", "#8e5572", "#b88b00", "#6b6b6b", "#2d936c")
"""The first is that of our law, which is drawn last and thicker."""


def svg(found: Mapping[str, Mapping[str, Sequence[Point]]]) -> str:
    """The picture. `found`: trace → law → its points; the first law is ours."""
    laws = list(next(iter(found.values())))
    rows = -(-len(found) // _COLUMNS)
    wide = _COLUMNS * (_WIDE + _GAP) + _LEFT
    high = rows * (_HIGH + _GAP + 20) + _TOP + 24
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" '
        'font-family="sans-serif" font-size="11">',
        "<title>Attainment over GPU-hours of several laws</title>",
        f'<rect width="{wide}" height="{high}" fill="#ffffff"/>',
    ]
    for place, law in enumerate(laws):
        x = _LEFT + place * 110
        parts.append(f'<circle cx="{x}" cy="16" r="4" fill="{_color(place)}"/>')
        parts.append(f'<text x="{x + 8}" y="20">{escape(law)}</text>')
    for number, (name, of) in enumerate(found.items()):
        x = _LEFT + number % _COLUMNS * (_WIDE + _GAP)
        y = _TOP + number // _COLUMNS * (_HIGH + _GAP + 20)
        parts += _panel(name, of, x, y)
    parts.append(
        f'<text x="{_LEFT}" y="{high - 8}">right: GPU-hours over those of the best constant fleet; '
        f"up: share of requests within the SLO; dashed: the goal, {GOAL:g}</text>"
    )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(name: str, of: Mapping[str, Sequence[Point]], left: int, top: int) -> list[str]:
    parts = [
        f'<g transform="translate({left} {top})">',
        f'<text y="-6" font-weight="bold">{escape(name)}</text>',
        f'<rect width="{_WIDE}" height="{_HIGH}" fill="none" stroke="#999999"/>',
        f'<path d="M0 {_y(GOAL):.1f}H{_WIDE}" stroke="#999999" stroke-dasharray="4 3"/>',
        f'<path d="M{_x(1.0):.1f} 0V{_HIGH}" stroke="#dddddd"/>',
    ]
    parts += [
        f'<text x="{_x(x):.1f}" y="{_HIGH + 14}" text-anchor="middle">{x:g}</text>'
        for x in (0.5, 1.0, 1.5, 2.0)
    ]
    parts += [
        f'<text x="-6" y="{_y(y) + 4:.1f}" text-anchor="end">{y:g}</text>'
        for y in (0.7, 0.8, 0.9, 1.0)
    ]
    for place, points in reversed(list(enumerate(of.values()))):
        parts += _curve(points, _color(place), 2.5 if place == 0 else 1.0)
    return [*parts, "</g>"]


def _curve(points: Sequence[Point], color: str, wide: float) -> list[str]:
    """A line through the points in the order of their cost. What is outside lies on the edge."""
    at = [(_x(p.cost), _y(p.attainment)) for p in sorted(points, key=lambda p: p.cost)]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
    return [
        f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="{wide:g}"/>',
        *(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{wide + 1:g}" fill="{color}"/>' for x, y in at),
    ]


def _x(cost: float) -> float:
    inside = min(max(cost, _LEAST_X), _MOST_X)
    return (inside - _LEAST_X) / (_MOST_X - _LEAST_X) * _WIDE


def _y(attainment: float) -> float:
    return (1 - (max(attainment, _LEAST_Y) - _LEAST_Y) / (1 - _LEAST_Y)) * _HIGH


def _color(place: int) -> str:
    return _COLORS[place % len(_COLORS)]
