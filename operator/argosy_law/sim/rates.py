"""Requests drawn from a table of rates and from the lengths of recorded requests.

A table has a column `t_s` and a column `req_per_s` or `req_per_s_mid`; others are left alone. `cli`
reads it where a day of traffic is known by its rates only.
"""

import csv
from collections.abc import Iterable
from itertools import pairwise
from math import isfinite
from random import Random

from argosy_law.sim.traces import LONGEST_GAP_S, Trace, TraceError

TIME, GAP = "t_s", "gap"
RATE = ("req_per_s", "req_per_s_mid")
HIGHEST_PER_S = 1e6
"""A larger rate is a mistake of units."""

Point = tuple[float, float]
"""(seconds since the first row, requests per second)."""


def read(name: str, lines: Iterable[str]) -> list[Point]:
    """The points in these lines. Raises TraceError, which starts with `name` and the line."""
    rows = csv.reader(lines)
    try:
        header = [cell.strip() for cell in next(rows, [])]
        rate = next((header.index(column) for column in RATE if column in header), None)
        if rate is None or TIME not in header:
            raise TraceError(
                f"{name}, line 1: the header needs {TIME} and {RATE[0]}; it has "
                f"{', '.join(header) or 'nothing'}"
            )
        time, gap = header.index(TIME), header.index(GAP) if GAP in header else None
        points: list[Point] = []
        for row in rows:
            if row:
                at = f"{name}, line {rows.line_num}"
                if len(row) != len(header):
                    raise TraceError(f"{at}: {len(row)} values where the header has {len(header)}")
                if gap is not None and row[gap].strip() not in ("", "0"):
                    raise TraceError(f"{at}: {GAP} marks missing data: cut the table there")
                _append(points, _number(row[time], TIME, at), _number(row[rate], RATE[0], at), at)
    except (csv.Error, UnicodeDecodeError) as error:
        # A line that cannot be decoded is not counted yet.
        line = rows.line_num + isinstance(error, UnicodeDecodeError)
        raise TraceError(
            f"{name}, line {line}: no text of comma-separated values: {error}"
        ) from None
    if len(points) < 2:
        raise TraceError(f"{name} has {len(points)} rows; it needs two: rates lie between them")
    return [(at - points[0][0], per_s) for at, per_s in points]


def _number(text: str, column: str, at: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise TraceError(f"{at}: {column} is {text!r}; write a number") from None
    if not isfinite(number) or number < 0:
        raise TraceError(f"{at}: {column} is {text}; write a number of at least 0")
    return number


def _append(points: list[Point], time: float, per_s: float, at: str) -> None:
    if per_s > HIGHEST_PER_S:
        raise TraceError(f"{at}: {per_s:g} requests per second; the most is {HIGHEST_PER_S:g}")
    if points and time <= points[-1][0]:
        raise TraceError(f"{at}: {TIME} is {time:g}, not after {points[-1][0]:g}: sort by {TIME}")
    if points and time - points[-1][0] > LONGEST_GAP_S:
        raise TraceError(
            f"{at}: no rate for {time - points[-1][0]:g} s; more than {LONGEST_GAP_S:g} s are "
            "taken for missing data: cut the table there"
        )
    points.append((time, per_s))


def drawn(points: list[Point], lengths: Trace, scale: float, seed: int) -> Trace:
    """Poisson arrivals at `scale` times the rates, which are linear between the points.

    Each has the prompt, the answer and the cached prefix of a request of `lengths`, by chance.
    Raises TraceError if that gives no request.
    """
    rng = Random(f"rates {seed}")  # noqa: S311 (a simulation, not a secret)
    trace = Trace([], [], [])
    for (begin, first), (end, last) in pairwise(points):
        most, at = scale * max(first, last), begin
        while most > 0:
            # of a stream at the higher rate, each request is kept with the chance of its moment
            at += rng.expovariate(most)
            if at >= end:
                break
            if rng.random() * most <= scale * (
                first + (last - first) * (at - begin) / (end - begin)
            ):
                index = rng.randrange(len(lengths))
                trace.arrival.append(at)
                trace.prompt.append(lengths.prompt[index])
                trace.output.append(lengths.output[index])
                if lengths.cached:
                    trace.cached.append(lengths.cached[index])
    if not trace.arrival:
        raise TraceError("the rates give no request: give higher ones, or a larger --scale")
    return trace
