"""Attention of single tokens from what a q/k/v product gives: heads are normalised, rotated and stored where they are
attended over, instead of by a kernel in front.

For K and V in 16 bit. The partial results of sequences in several chunks are merged as those of `decode_split`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from octavo.kernels.triton.decode_split import LOWEST, block_ids
from octavo.kernels.triton.dequant import load_tile, multiply, num_halves
from octavo.kernels.triton.head_kernel import head_values


@triton.jit
def decode_projected(
    qkv_ptr,
    bias_ptr,
    positions_ptr,
    cos_ptr,
    sin_ptr,
    q_norm_ptr,
    k_norm_ptr,
    rows_ptr,
    out_ptr,
    partial_ptr,
    lse_ptr,
    k_ptr,
    v_ptr,
    table_ptr,
    items_ptr,
    scale_log2,
    num_blocks,
    num_rows,
    num_positions,
    qkv_stride,
    eps,
    HQ: tl.constexpr,
    HKV: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    AHEAD: tl.constexpr,
    HAS_NORMS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    PRECISE: tl.constexpr,
    DEPENDENT: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Grid (HKV, items); items and results are those of `decode_split`, qkv, positions and rows of `rotate_and_store`.

    A token's own key and value go from the projection into the softmax, and, rounded as they are there, to row
    `rows[t]` of the stored ones, by the program of the chunk that ends with them. All others are older than the step:
    AHEAD tiles of a chunk are loaded before the kernel in front has written qkv.
    """
    head = tl.program_id(0)
    item_ptr = items_ptr + tl.program_id(1) * 8
    token = tl.load(item_ptr).to(tl.int64)
    num_queries = tl.load(item_ptr + 1)
    begin = tl.load(item_ptr + 2)
    end = tl.load(item_ptr + 3)
    table_ptr += tl.load(item_ptr + 4)
    slot = tl.load(item_ptr + 5)
    columns = tl.load(item_ptr + 6)
    if DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()
    last = (end == columns) & (columns > 0)
    stop = tl.where(last, end - 1, end)
    position = tl.load(positions_ptr + token)
    position = tl.minimum(tl.maximum(position, 0), num_positions - 1)
    d = tl.arange(0, DIM)
    cos = tl.load(cos_ptr + position * DIM + d)
    sin = tl.load(sin_ptr + position * DIM + d)
    row = tl.load(rows_ptr + token).to(tl.int64)
    first = begin // BLOCK_N * BLOCK_N
    cols = first + tl.arange(0, BLOCK_N)
    ids = block_ids(table_ptr, cols, stop, BLOCK_SIZE)
    k = ()
    v = ()
    seen = ()
    for _ in tl.static_range(AHEAD):
        rows, visible = stored_columns(ids, cols, begin, stop, num_blocks, BLOCK_SIZE)
        cols += BLOCK_N
        ids = block_ids(table_ptr, cols, stop, BLOCK_SIZE)
        k = k + (load_tile(k_ptr + head * DIM, rows, visible, HKV * DIM, DIM, DIM),)
        v = v + (load_tile(v_ptr + head * DIM, rows, visible, HKV * DIM, DIM, DIM),)
        seen = seen + (visible,)
    if DEPENDENT:
        tl.extra.cuda.gdc_wait()
    if num_queries == 0:
        return
    GROUP: tl.constexpr = HQ // HKV
    KIND: tl.constexpr = k_ptr.dtype.element_ty
    HALVES: tl.constexpr = num_halves(tl.float32, KIND, PRECISE)
    m = tl.arange(0, BLOCK_M)
    real = m < GROUP
    q_head = head * GROUP + m
    qkv_ptr += token * qkv_stride
    x = turned_heads(qkv_ptr, bias_ptr, q_norm_ptr, q_head * DIM, real, d, cos, sin, eps, DIM, HAS_NORMS, HAS_BIAS)
    q = in_halves(x, KIND, HALVES)
    top = tl.full([BLOCK_M], LOWEST, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, DIM], tl.float32)
    if last:
        start = tl.full([1], (HQ + head) * DIM, tl.int32)
        key = turned_heads(qkv_ptr, bias_ptr, k_norm_ptr, start, start >= 0, d, cos, sin, eps, DIM, HAS_NORMS, HAS_BIAS)
        own_k = tl.sum(key, 0).to(KIND)
        own_v = head_values(qkv_ptr, bias_ptr, (HQ + HKV + head) * DIM + d, d < DIM, 0, HAS_BIAS, 1)
        own_v = own_v.to(v_ptr.dtype.element_ty)
        place = (row * HKV + head) * DIM + d
        tl.store(k_ptr + place, own_k, mask=(row >= 0) & (row < num_rows))
        tl.store(v_ptr + place, own_v, mask=(row >= 0) & (row < num_rows))
        for half in tl.static_range(HALVES):
            part = tl.sum(q[half].to(tl.float32) * own_k.to(tl.float32)[None, :], 1)
            top = part if half == 0 else top + part
        top *= scale_log2
        total += 1.0
        acc += own_v.to(tl.float32)[None, :]
    for i in tl.static_range(AHEAD):
        top, total, acc = folded(top, total, acc, q, k[i], v[i], seen[i], scale_log2, HALVES, PRECISE)
    for _ in tl.range(first + AHEAD * BLOCK_N, stop, BLOCK_N, num_stages=STAGES):
        rows, visible = stored_columns(ids, cols, begin, stop, num_blocks, BLOCK_SIZE)
        # Ids of the next tile are under way while this one is multiplied.
        cols += BLOCK_N
        ids = block_ids(table_ptr, cols, stop, BLOCK_SIZE)
        next_k = load_tile(k_ptr + head * DIM, rows, visible, HKV * DIM, DIM, DIM)
        next_v = load_tile(v_ptr + head * DIM, rows, visible, HKV * DIM, DIM, DIM)
        top, total, acc = folded(top, total, acc, q, next_k, next_v, visible, scale_log2, HALVES, PRECISE)
    norm = tl.where(total == 0, 1.0, total)[:, None]
    if slot < 0:
        at = (token * HQ + q_head) * DIM
        tl.store(out_ptr + at[:, None] + d[None, :], (acc / norm).to(out_ptr.dtype.element_ty), mask=real[:, None])
    else:
        at = slot.to(tl.int64) * HQ + q_head
        tl.store(partial_ptr + at[:, None] * DIM + d[None, :], acc / norm, mask=real[:, None])
        lse = tl.where(total == 0, float("-inf"), top + tl.log2(tl.where(total == 0, 1.0, total)))
        tl.store(lse_ptr + at, lse, mask=real)


@triton.jit
def stored_columns(ids, cols, begin, end, num_blocks, BLOCK_SIZE: tl.constexpr):
    """Pool rows of columns, and which of them there are to see."""
    visible = (cols >= begin) & (cols < end) & (ids >= 0) & (ids < num_blocks)
    return ids.to(tl.int64) * BLOCK_SIZE + cols % BLOCK_SIZE, visible


@triton.jit
def turned_heads(
    qkv_ptr,
    bias_ptr,
    norm_ptr,
    start,
    real,
    d,
    cos,
    sin,
    eps,
    DIM: tl.constexpr,
    HAS_NORMS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
):
    """Heads [M, DIM] float32 that begin at `start` [M], normalised if there are norms, and rotated; 0 if not `real`."""
    other = (d + DIM // 2) % DIM
    x = head_values(qkv_ptr, bias_ptr, start[:, None] + d[None, :], real[:, None], 0, HAS_BIAS, 1)
    # Its partner of every element: loaded once more, as that is nearer than another lane's register.
    y = head_values(qkv_ptr, bias_ptr, start[:, None] + other[None, :], real[:, None], 0, HAS_BIAS, 1)
    if HAS_NORMS:
        root = tl.sqrt(tl.sum(x * x, 1) / DIM + eps)[:, None]
        x = x / root * tl.load(norm_ptr + d)[None, :]
        y = y / root * tl.load(norm_ptr + other)[None, :]
    return x * cos[None, :] + y * sin[None, :]


@triton.jit
def in_halves(x, KIND: tl.constexpr, HALVES: tl.constexpr):
    """x as a matrix operand, and as another what rounding left of it, where there are two HALVES."""
    high = x.to(KIND)
    if HALVES == 2:
        return (high, (x - high.to(tl.float32)).to(KIND))
    else:  # what comes after a return would make the type of what is returned
        return (high,)


@triton.jit
def folded(top, total, acc, q, k, v, seen, scale_log2, HALVES: tl.constexpr, PRECISE: tl.constexpr):
    """The softmax so far, and a tile of columns more: highest score [M], sum of weights [M], weighted values [M, D]."""
    s = tl.dot(q[0], tl.trans(k), input_precision="ieee")
    for half in tl.static_range(1, HALVES):
        s = tl.dot(q[half], tl.trans(k), s)
    s = tl.where(seen[None, :], s * scale_log2, float("-inf"))
    higher = tl.maximum(top, tl.max(s, 1))
    p = tl.exp2(s - higher[:, None])
    fade = tl.exp2(top - higher)
    return higher, total * fade + tl.sum(p, 1), multiply(p, v, acc * fade[:, None], PRECISE)
