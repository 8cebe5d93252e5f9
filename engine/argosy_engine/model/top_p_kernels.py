"""The kernel of `TopP`. Importing this needs triton, which only torch's GPU builds bring.

Weights are e^((logit - largest) / temperature), from 0 to 1, so their bits order them. Masses are
sums of weights as whole numbers. They do not depend on the order in which they are added, so a row
depends on nothing but itself.
"""

import triton
import triton.language as tl

_ONE = tl.constexpr(1 << 30)
"""A weight of 1 as a mass: a sum of 2³³ of them fits into 64 bits."""
_LEAST = tl.constexpr(0x30000000)
"""Bits of 2⁻³¹. Lighter tokens have no mass."""
_ABOVE = tl.constexpr(0x3F800001)
"""Bits above those of 1."""


@triton.jit
def _weigh(row, at, vocab, largest, temperature, min_p):
    x = tl.load(row + at, mask=at < vocab, other=float("-inf")).to(tl.float32)
    weight = tl.exp((x - largest) / temperature)
    return tl.where(weight >= min_p, weight, 0.0)  # also where it is NaN


@triton.jit
def _mass(weights):
    return (weights * _ONE + 0.5).to(tl.int32).to(tl.int64)


@triton.jit
def _find(
    row, vocab, largest, temperature, min_p, low, least, WIDTH: tl.constexpr
):  # fmt: skip
    """(bits, mass above): the heaviest bits, from `low` on, such that all tokens of these bits or
    more have the mass `least`, and what those of more bits have.

    Each pass over the row tries three bounds, which leaves a quarter of what it may be.
    """
    high, above = tl.full([], _ABOVE, tl.int32), tl.zeros([], tl.int64)
    while high - low > 1:
        step = tl.maximum((high - low) // 4, 1)
        first, second, third = low + step, low + 2 * step, low + 3 * step
        firsts = tl.zeros([WIDTH], tl.int64)
        seconds = tl.zeros([WIDTH], tl.int64)
        thirds = tl.zeros([WIDTH], tl.int64)
        for begin in range(0, vocab, WIDTH):
            weights = _weigh(
                row, begin + tl.arange(0, WIDTH), vocab, largest, temperature, min_p
            )  # fmt: skip
            bits, mass = weights.to(tl.int32, bitcast=True), _mass(weights)
            firsts += tl.where(bits >= first, mass, 0)
            seconds += tl.where(bits >= second, mass, 0)
            thirds += tl.where(bits >= third, mass, 0)
        of_first, of_second, of_third = tl.sum(firsts), tl.sum(seconds), tl.sum(thirds)
        # With two or three candidates a bound may be beyond `high`: its mass is less than `least`.
        if of_third >= least:
            low = third
        elif of_second >= least:
            low = second
            high, above = third, of_third
        elif of_first >= least:
            low = first
            high, above = second, of_second
        else:
            high, above = first, of_first
    return low, above


@triton.jit
def draw_top_p(
    logits, row_stride, vocab, rows, points, temperatures, top_ps, min_ps, ids,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """Program (draw): the token of row `rows`[draw], written to `ids` at that row."""
    number = tl.program_id(0)
    at_row = tl.load(rows + number)
    row = logits + at_row * row_stride
    temperature, min_p = tl.load(temperatures + number), tl.load(min_ps + number)
    most = tl.full([WIDTH], float("-inf"), tl.float32)
    for begin in range(0, vocab, WIDTH):
        at = begin + tl.arange(0, WIDTH)
        x = tl.load(row + at, mask=at < vocab, other=float("-inf")).to(tl.float32)
        most = tl.maximum(most, x)
    largest = tl.max(most, 0)
    masses = tl.zeros([WIDTH], tl.int64)
    for begin in range(0, vocab, WIDTH):
        at = begin + tl.arange(0, WIDTH)
        masses += _mass(_weigh(row, at, vocab, largest, temperature, min_p))
    # The cut: the shortest head that holds top_p, and at least one token.
    share = tl.load(top_ps + number).to(tl.float64) * tl.sum(masses).to(tl.float64)
    least = tl.maximum(tl.ceil(share).to(tl.int64), 1)
    lowest = tl.full([], _LEAST, tl.int32)
    cut, above = _find(row, vocab, largest, temperature, min_p, lowest, least, WIDTH)
    each = tl.maximum(_mass(cut.to(tl.float32, bitcast=True)), 1)
    kept = above + (least - above + each - 1) // each * each
    # The draw: the first token through which the mass exceeds the point.
    point = (tl.load(points + number) * kept.to(tl.float64)).to(tl.int64)
    point = tl.minimum(point, kept - 1)
    drawn, above = _find(row, vocab, largest, temperature, min_p, cut, point + 1, WIDTH)
    each = tl.maximum(_mass(drawn.to(tl.float32, bitcast=True)), 1)
    rank = (point - above) // each  # among equal ones, by id
    found, before = tl.zeros([], tl.int64), tl.zeros([], tl.int64)
    for begin in range(0, vocab, WIDTH):
        at = begin + tl.arange(0, WIDTH)
        weights = _weigh(row, at, vocab, largest, temperature, min_p)
        equal = (weights.to(tl.int32, bitcast=True) == drawn).to(tl.int32)
        place = before + tl.cumsum(equal, 0) - 1
        found += tl.sum(tl.where((equal == 1) & (place == rank), at, 0))
        before += tl.sum(equal)
    tl.store(ids + at_row, found)
