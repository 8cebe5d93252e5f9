"""The kernels of `Fused`. Importing this needs triton, which only torch's GPU builds bring."""

import triton
import triton.language as tl


@triton.jit
def fused_add_rms_norm(
    hidden, added, weight, out, eps,
    SIZE: tl.constexpr, WIDTH: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    """Program (row): with ADD `hidden` += `added`, then `out` = the norm of `hidden`.

    The sum is rounded before it is normed, as the next layer reads it.
    """
    at = tl.arange(0, WIDTH)
    there = at < SIZE
    row = tl.program_id(0).to(tl.int64) * SIZE + at
    x = tl.load(hidden + row, mask=there, other=0.0)
    if ADD:
        more = tl.load(added + row, mask=there, other=0.0)
        x = (x.to(tl.float32) + more.to(tl.float32)).to(x.dtype)
        tl.store(hidden + row, x, mask=there)
    wide = x.to(tl.float32)
    factor = tl.rsqrt(tl.sum(wide * wide, 0) / SIZE + eps)
    scaled = wide * factor * tl.load(weight + at, mask=there, other=0.0).to(tl.float32)
    tl.store(out + row, scaled.to(x.dtype), mask=there)


@triton.jit
def silu_and_mul(gate_up, out, INNER: tl.constexpr, WIDTH: tl.constexpr):
    """Program (row, WIDTH columns): SiLU of the first half of `gate_up`, times the second half."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    there = at < INNER
    gate = tl.load(gate_up + row * (2 * INNER) + at, mask=there, other=0.0)
    up = tl.load(gate_up + row * (2 * INNER) + INNER + at, mask=there, other=0.0)
    wide = gate.to(tl.float32)
    product = wide / (1.0 + tl.exp(-wide)) * up.to(tl.float32)
    tl.store(out + row * INNER + at, product.to(gate.dtype), mask=there)
