"""Fit what steps cost to measured times: relative least squares with standard errors. Pure.

A row's seconds are the sum of constants times amounts, such as base·1 + per_prompt_token·512. Its
error counts in relation to its seconds, so short steps count as much as long ones. No constant is
negative: one that came out so is 0, and the others are fitted again.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import sqrt

LEAST_ANGLE = 0.02
"""Of one column to those before it. Below, an error of 1 % in a time is one of 50 % in a
constant."""
SIGNIFICANT = 2.0
"""Standard errors that a constant which may be missing has to have at least."""


@dataclass(frozen=True, slots=True)
class Row:
    """One measured time."""

    amounts: tuple[float, ...]
    """How much of each constant is in it."""
    seconds: float


@dataclass(frozen=True, slots=True)
class Fit:
    """Constants in the order of the amounts, in seconds."""

    constants: tuple[float, ...]
    errors: tuple[float, ...]
    """Standard error of each, in seconds; 0 for a constant that was set to 0."""

    def predict(self, amounts: Sequence[float]) -> float:
        """Return the seconds of these amounts."""
        return sum(c * amount for c, amount in zip(self.constants, amounts, strict=True))


class UndeterminedError(Exception):
    """The rows do not say what one constant is."""

    def __init__(self, constant: str) -> None:
        """`constant`: its name."""
        super().__init__(f"the times do not determine {constant}")
        self.constant = constant


def fit(rows: Sequence[Row], names: Sequence[str], optional: Collection[str] = ()) -> Fit:
    """Return the constants that explain the rows best.

    An `optional` constant is 0 unless it is at least twice its standard error. UndeterminedError if
    there are no more rows than constants, or if one constant's amounts vary only with those of the
    constants before it.
    """
    used = [at for at, name in enumerate(names) if name not in optional]
    used += [at for at, name in enumerate(names) if name in optional]
    while True:
        found = _least_squares(rows, used, names)
        drop = next((at for at in used if found[at][0] < 0), None)
        if drop is None:
            weak = (at for at in used if found[at][0] < SIGNIFICANT * found[at][1])
            drop = next((at for at in weak if names[at] in optional), None)
        if drop is None or len(used) == 1:
            pairs = [found.get(at, (0.0, 0.0)) for at in range(len(names))]
            return Fit(tuple(max(c, 0.0) for c, _ in pairs), tuple(error for _, error in pairs))
        used.remove(drop)


def hold_out(
    rows: Sequence[Row], names: Sequence[str], optional: Collection[str] = ()
) -> list[float]:
    """Return how far each row is from the fit of the others, as a share of its seconds.

    Rows without which a constant is not determined are left out.
    """
    misses = []
    for at, row in enumerate(rows):
        try:
            others = fit([*rows[:at], *rows[at + 1 :]], names, optional)
        except UndeterminedError:
            continue
        misses.append(abs(others.predict(row.amounts) / row.seconds - 1))
    return misses


def _least_squares(
    rows: Sequence[Row], used: Sequence[int], names: Sequence[str]
) -> dict[int, tuple[float, float]]:
    """Return constant and standard error of each used column, by Gram and Schmidt."""
    if len(rows) <= len(used):
        raise UndeterminedError(names[used[len(rows) - 1 if rows else 0]])
    count = len(used)
    columns = [[row.amounts[at] / row.seconds for row in rows] for at in used]
    rest = [1.0] * len(rows)
    basis: list[list[float]] = []
    upper = [[0.0] * count for _ in used]
    target = [0.0] * count
    for j, column in enumerate(columns):
        left, length = column, sqrt(_dot(column, column))
        for i, unit in enumerate(basis):
            upper[i][j] = _dot(unit, left)
            left = _subtract(left, unit, upper[i][j])
        upper[j][j] = sqrt(_dot(left, left))
        if upper[j][j] <= LEAST_ANGLE * length:
            raise UndeterminedError(names[used[j]])
        basis.append([x / upper[j][j] for x in left])
        target[j] = _dot(basis[j], rest)
        rest = _subtract(rest, basis[j], target[j])
    variance = _dot(rest, rest) / (len(rows) - count)
    inverse = [_solve(upper, [float(i == j) for i in range(count)]) for j in range(count)]
    constants = _solve(upper, target)
    # The covariance is variance · R⁻¹·R⁻ᵀ; `inverse` has the columns of R⁻¹.
    return {
        at: (constants[i], sqrt(variance * sum(column[i] ** 2 for column in inverse)))
        for i, at in enumerate(used)
    }


def _solve(upper: Sequence[Sequence[float]], target: Sequence[float]) -> list[float]:
    """Solve a triangular system from below."""
    solved = [0.0] * len(target)
    for i in reversed(range(len(target))):
        known = sum(upper[i][j] * solved[j] for j in range(i + 1, len(target)))
        solved[i] = (target[i] - known) / upper[i][i]
    return solved


def _dot(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


def _subtract(one: Sequence[float], unit: Sequence[float], times: float) -> list[float]:
    return [a - times * b for a, b in zip(one, unit, strict=True)]
