"""The kernels of `TritonPool`. Importing this needs triton, which only torch's GPU builds bring.

Tiles are at whole multiples of KEYS from a sequence's first key, and the splits of a decode follow
from its own length alone. So a row's result does not depend on the other rows of the step.

Names: `pool` and `heads` are pointers to elements, `lengths` to KV lengths after the step, `first`
to the offset of each sequence's first token among the N of the step, and N; `table_first` to the
offset of its block table in `tables`. KV of another type than Q, FP8, is widened as it is read.
`layer` and `block_stride` are in elements of the pool.
"""

import triton
import triton.language as tl


@triton.jit
def turn_and_write(
    heads, token_stride, head_stride, turns, q_norm, k_norm, eps, slots, pool, layer, block_stride,
    Q_HEADS: tl.constexpr, KV_HEADS: tl.constexpr, BLOCK: tl.constexpr, DIM: tl.constexpr,
    WIDTH: tl.constexpr, HEADS: tl.constexpr, TURN: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """Program (token, group of HEADS heads); `heads` are Q_HEADS of Q, then K, then V.

    With NORM, each head of Q and of K is normed; with TURN, they are turned: Q where it is, K on
    its way into the pool. Heads are loaded and stored whole, and split into pairs in between, so
    that the accesses of a thread are 16 bytes wide.
    """
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]
    dim = tl.arange(0, WIDTH)[None, :]
    there = (head < Q_HEADS + 2 * KV_HEADS) & (dim < DIM)
    source = heads + token * token_stride + head * head_stride + dim
    values = tl.load(source, mask=there, other=0.0)
    if TURN:
        wide = values.to(tl.float32)
        if NORM:
            of_q = tl.load(q_norm + dim, mask=dim < DIM, other=0.0).to(tl.float32)
            of_k = tl.load(k_norm + dim, mask=dim < DIM, other=0.0).to(tl.float32)
            factor = tl.rsqrt(tl.sum(wide * wide, 1) / DIM + eps)
            wide = wide * factor[:, None] * tl.where(head < Q_HEADS, of_q, of_k)
        angles = tl.load(turns + token * DIM + dim, mask=dim < DIM, other=0.0)
        cosine, sine = tl.split(tl.reshape(angles, [1, WIDTH // 2, 2]))
        x, y = tl.split(tl.reshape(wide, [HEADS, WIDTH // 2, 2]))
        pairs = tl.join(x * cosine - y * sine, x * sine + y * cosine)
        turned = tl.reshape(pairs, [HEADS, WIDTH]).to(values.dtype)
        values = tl.where(head < Q_HEADS + KV_HEADS, turned, values)
        tl.store(source, values, mask=there & (head < Q_HEADS))
    slot = tl.load(slots + token).to(tl.int64)
    place = pool + layer + slot // BLOCK * block_stride + slot % BLOCK * DIM
    target = place + (head - Q_HEADS) * (BLOCK * DIM) + dim
    if pool.dtype.element_ty == tl.float8e4nv:  # whose largest number is 448; NaN stays
        wide = values.to(tl.float32)
        values = tl.where(wide > 448.0, 448.0, tl.where(wide < -448.0, -448.0, wide))
        values = values.to(tl.float8e4nv)
    tl.store(target, values, mask=there & (head >= Q_HEADS))


@triton.jit
def _product(a, b, WIDEN: tl.constexpr):
    """a · b, summed in float32. WIDEN: Triton's interpreter cannot multiply bfloat16 as it is."""
    if WIDEN:
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
def _fold_tile(
    q, scale, largest, total, sums, rows, reach, at, end, table, keys, values, block_stride,
    BLOCK: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr, WIDEN: tl.constexpr,
    MASK: tl.constexpr,
):  # fmt: skip
    """One tile of keys at positions `at`, of which those before `end` are loaded.

    `rows` are the positions of the queries. With MASK a row sees the `reach` keys up to its own;
    without, each row sees the whole tile. The online softmax, with powers of two: `scale` holds
    log2(e) and is positive, so the largest score is scaled once, and the rest in exp2's own sum.
    """
    dims = tl.arange(0, WIDTH)
    if MASK:
        here = at < end
        block = tl.load(table + at // BLOCK, mask=here, other=0).to(tl.int64)
    else:
        block = tl.load(table + at // BLOCK).to(tl.int64)
    place = (block * block_stride + at % BLOCK * DIM)[:, None] + dims[None, :]
    if MASK:
        there = here[:, None] & (dims[None, :] < DIM)
        k = tl.load(keys + place, mask=there, other=0.0)
        v = tl.load(values + place, mask=there, other=0.0)
    elif DIM < WIDTH:
        k = tl.load(keys + place, mask=dims[None, :] < DIM, other=0.0)
        v = tl.load(values + place, mask=dims[None, :] < DIM, other=0.0)
    else:
        k = tl.load(keys + place)
        v = tl.load(values + place)
    k, v = k.to(q.dtype), v.to(q.dtype)
    scores = _product(q, tl.trans(k), WIDEN)
    if MASK:
        back = rows[:, None] - at[None, :]
        seen = here[None, :] & (back >= 0) & (back < reach)
        scores = tl.where(seen, scores, float("-inf"))
    higher = tl.maximum(largest, tl.max(scores, 1) * scale)
    base = higher
    if MASK:  # a row that has seen no key yet has -inf, and -inf less -inf is no number
        base = tl.where(higher == float("-inf"), 0.0, higher)
    weights = tl.exp2(scores * scale - base[:, None])
    kept = tl.exp2(largest - base)
    total = total * kept + tl.sum(weights, 1)
    product = _product(weights.to(v.dtype), v, WIDEN)
    return higher, total, sums * kept[:, None] + product


@triton.jit(do_not_specialize=["reach"])
def attend_rows(
    q, q_token_stride, q_head_stride, out, pool, layer, block_stride, first, lengths, table_first,
    tables, tile_sequences, tile_tokens, scale, reach,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr, DIM: tl.constexpr,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """Program (tile, KV head): ROWS // GROUP tokens of one sequence, their query heads as rows.

    Most keys of a long prompt are seen by all rows of a tile, and need no mask. A masked tile gives
    the same bits, so that a row does not depend on the tile that it is in.
    """
    sequence = tl.load(tile_sequences + tl.program_id(0))
    token = tl.load(tile_tokens + tl.program_id(0))
    kv_head = tl.program_id(1)
    begin = tl.load(first + sequence)
    count = tl.load(first + sequence + 1) - begin
    start = tl.load(lengths + sequence) - count
    table = tables + tl.load(table_first + sequence)
    row = tl.arange(0, ROWS)
    dims = tl.arange(0, WIDTH)
    mine = token + row // GROUP
    live = (row // GROUP < ROWS // GROUP) & (mine < count)
    there = live[:, None] & (dims[None, :] < DIM)
    head = kv_head * GROUP + row % GROUP
    flat = (begin + mine).to(tl.int64)
    read = flat * q_token_stride + head.to(tl.int64) * q_head_stride
    queries = tl.load(q + read[:, None] + dims[None, :], mask=there, other=0.0)
    keys = pool + layer + kv_head * (BLOCK * DIM)
    values = keys + KV_HEADS * (BLOCK * DIM)
    end = start + tl.minimum(token + ROWS // GROUP, count)
    oldest = tl.maximum(start + token - reach + 1, 0) // KEYS * KEYS
    largest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    sums = tl.zeros([ROWS, WIDTH], tl.float32)
    # Free of masks: from the first key of the last row's window to the first row's own key.
    free = tl.cdiv(tl.maximum(end - reach, 0), KEYS) * KEYS
    free_end = tl.maximum((start + token + 1) // KEYS * KEYS, free)
    for tile in range(oldest, tl.minimum(free, end), KEYS):
        at = tile + tl.arange(0, KEYS)
        largest, total, sums = _fold_tile(
            queries, scale, largest, total, sums, start + mine, reach, at, end,
            table, keys, values, block_stride, BLOCK, DIM, WIDTH, WIDEN, True,
        )  # fmt: skip
    for tile in range(free, free_end, KEYS):
        at = tile + tl.arange(0, KEYS)
        largest, total, sums = _fold_tile(
            queries, scale, largest, total, sums, start + mine, reach, at, end,
            table, keys, values, block_stride, BLOCK, DIM, WIDTH, WIDEN, False,
        )  # fmt: skip
    for tile in range(free_end, end, KEYS):
        at = tile + tl.arange(0, KEYS)
        largest, total, sums = _fold_tile(
            queries, scale, largest, total, sums, start + mine, reach, at, end,
            table, keys, values, block_stride, BLOCK, DIM, WIDTH, WIDEN, True,
        )  # fmt: skip
    total = tl.where(total == 0.0, 1.0, total)
    result = (sums / total[:, None]).to(out.dtype.element_ty)
    written = (flat * (KV_HEADS * GROUP) + head) * DIM
    tl.store(out + written[:, None] + dims[None, :], result, mask=there)


@triton.jit(do_not_specialize=["reach"])
def attend_splits(
    q, q_token_stride, q_head_stride, sums_of, totals_of, largest_of, pool, layer, block_stride,
    first, lengths, table_first, tables, singles, scale, reach,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr, DIM: tl.constexpr,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, WIDEN: tl.constexpr,
    SPLITS: tl.constexpr, LEAST: tl.constexpr,
):  # fmt: skip
    """Program (single, KV head, split): a share of the keys of a sequence with one new token.

    A split has at least LEAST tiles, so the last ones of a short sequence have none.
    """
    single = tl.program_id(0)
    kv_head = tl.program_id(1)
    sequence = tl.load(singles + single)
    length = tl.load(lengths + sequence)
    table = tables + tl.load(table_first + sequence)
    row = tl.arange(0, ROWS)
    dims = tl.arange(0, WIDTH)
    there = (row < GROUP)[:, None] & (dims[None, :] < DIM)
    head = kv_head * GROUP + row
    token = tl.load(first + sequence).to(tl.int64)
    read = token * q_token_stride + head.to(tl.int64) * q_head_stride
    queries = tl.load(q + read[:, None] + dims[None, :], mask=there, other=0.0)
    keys = pool + layer + kv_head * (BLOCK * DIM)
    values = keys + KV_HEADS * (BLOCK * DIM)
    oldest = tl.maximum(length - reach, 0) // KEYS
    share = tl.maximum(tl.cdiv(tl.cdiv(length, KEYS) - oldest, SPLITS), LEAST)
    begin = (oldest + tl.program_id(2) * share) * KEYS
    end = tl.minimum(begin + share * KEYS, length)
    largest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    sums = tl.zeros([ROWS, WIDTH], tl.float32)
    rows = tl.zeros([ROWS], tl.int32) + length - 1
    for tile in range(begin, end, KEYS):
        at = tile + tl.arange(0, KEYS)
        largest, total, sums = _fold_tile(
            queries, scale, largest, total, sums, rows, reach, at, end,
            table, keys, values, block_stride, BLOCK, DIM, WIDTH, WIDEN, True,
        )  # fmt: skip
    part = (single * (KV_HEADS * GROUP) + head) * SPLITS + tl.program_id(2)
    tl.store(largest_of + part, largest, mask=row < GROUP)
    tl.store(totals_of + part, total, mask=row < GROUP)
    if begin < end:
        place = part.to(tl.int64)[:, None] * DIM + dims[None, :]
        tl.store(sums_of + place, sums, mask=there)


@triton.jit
def join_splits(
    sums_of, totals_of, largest_of, out, first, singles,
    HEADS: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Program (single, head): the shares of its splits as one row of `out`."""
    head = tl.program_id(1)
    split = tl.arange(0, SPLITS)
    dims = tl.arange(0, WIDTH)
    part = (tl.program_id(0) * HEADS + head) * SPLITS + split
    largest = tl.load(largest_of + part)
    totals = tl.load(totals_of + part)
    used = totals != 0.0  # also where it is NaN, which must reach the row
    place = part.to(tl.int64)[:, None] * DIM + dims[None, :]
    there = used[:, None] & (dims[None, :] < DIM)
    sums = tl.load(sums_of + place, mask=there, other=0.0)
    highest = tl.max(largest, 0)
    weights = tl.exp2(largest - tl.where(highest == float("-inf"), 0.0, highest))
    total = tl.sum(totals * weights, 0)
    joined = tl.sum(sums * weights[:, None], 0) / total
    token = tl.load(first + tl.load(singles + tl.program_id(0))).to(tl.int64)
    target = out + (token * HEADS + head) * DIM + dims
    tl.store(target, joined.to(out.dtype.element_ty), mask=dims < DIM)
