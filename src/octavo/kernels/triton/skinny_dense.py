"""Products of a few rows with a weight in 16 bit (or float32 under the interpreter): kernels that read the weight once.

Every program takes some of the weight's rows, and of their columns all or a split. Owns no buffer and chooses nothing.
"""

from __future__ import annotations

import triton
import triton.language as tl

from octavo.kernels.triton.half_norm import leave_half_normed, load_squares, root
from octavo.kernels.triton.skinny_finish import finish


@triton.jit
def columns(ptrs, inside, EVEN: tl.constexpr):
    """A tile of a weight, [N, K], which nothing reads a second time."""
    if EVEN:
        return tl.load(ptrs, eviction_policy="evict_first")
    return tl.load(ptrs, mask=inside[None, :], other=0.0)


@triton.jit
def summed(w, x):
    """w [N, K] · x [K] in float32, added up within eight columns, which one lane has: [N, K / 8]."""
    product = w.to(tl.float32) * x.to(w.dtype).to(tl.float32)[None, :]
    return tl.sum(tl.reshape(product, [product.shape[0], product.shape[1] // 8, 8]), 2)


@triton.jit(do_not_specialize=["num_rows"])
def skinny_reduce(
    x_ptr,
    w_ptr,
    y_ptr,
    partial_ptr,
    arrived_ptr,
    num_rows,
    N,
    K,
    split_columns,
    x_stride,
    y_stride,
    norm_ptr,
    weighted_ptr,
    squares_ptr,
    parts,
    eps,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLITS: tl.constexpr,
    TILES: tl.constexpr,
    AHEAD: tl.constexpr,
    EVEN: tl.constexpr,
    DEPENDENT: tl.constexpr,
    LETS_IN: tl.constexpr,
    ADD: tl.constexpr,
    LEAVES: tl.constexpr,
    PARTS: tl.constexpr,
):
    """y [M, N] = x [M, K] · w [N, K]ᵀ for at most BLOCK_M rows, without matrix units. Grid (tiles of N, SPLITS).

    A program has TILES of the weight, which go from memory to registers, AHEAD of them before their turn to be summed;
    with dependent launches the first of these are under way before the kernel in front has written x. If it LETS_IN
    others, the next kernel may begin while this one computes. ADD: the product is added to y, float32. LEAVES: the sum
    is left half normed, too. PARTS (at least `parts`, a power of two, or 0): x is half normed. See `half_norm.py`;
    neither goes with SPLITS.
    """
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    begin = tl.program_id(1) * split_columns
    end = tl.minimum(begin + split_columns, K)
    cols = begin + tl.arange(0, BLOCK_K)
    if DEPENDENT and LETS_IN:
        tl.extra.cuda.gdc_launch_dependents()
    # The last tile reads the last rows once more instead of none.
    w_ptrs = w_ptr + tl.minimum(n, N - 1).to(tl.int64)[:, None] * K + cols[None, :]
    w = ()
    for i in tl.static_range(AHEAD):
        w = w + (columns(w_ptrs + i * BLOCK_K, cols + i * BLOCK_K < end, EVEN),)
    if LEAVES:
        norm = tl.load(norm_ptr + n, mask=n < N, other=0.0)
    if DEPENDENT:
        tl.extra.cuda.gdc_wait()
    m = tl.arange(0, BLOCK_M)
    if LEAVES:
        # Long before it is added to: it may have to come from memory.
        real = (m < num_rows)[:, None] & (n < N)[None, :]
        y_ptrs = y_ptr + m.to(tl.int64)[:, None] * y_stride + n[None, :]
        before = tl.load(y_ptrs, mask=real, other=0.0)
    squares = ()
    acc = ()
    x = ()
    for row in tl.static_range(BLOCK_M):
        acc = acc + (tl.zeros([BLOCK_N, BLOCK_K // 8], tl.float32),)
        if PARTS:
            squares = squares + (load_squares(squares_ptr, row, num_rows, parts, PARTS),)
    # All of x at once, where that is little: every program has it to wait for.
    NEAR: tl.constexpr = TILES if TILES * BLOCK_M <= 16 else AHEAD
    for i in tl.static_range(NEAR):
        x = x + some_columns(x_ptr, x_stride, num_rows, cols + i * BLOCK_K, end, BLOCK_M)
    for i in tl.static_range(TILES):
        if i + AHEAD < TILES:
            w = w + (columns(w_ptrs + (i + AHEAD) * BLOCK_K, cols + (i + AHEAD) * BLOCK_K < end, EVEN),)
        if i + NEAR < TILES:
            x = x + some_columns(x_ptr, x_stride, num_rows, cols + (i + NEAR) * BLOCK_K, end, BLOCK_M)
        more = ()
        for row in tl.static_range(BLOCK_M):
            more = more + (acc[row] + summed(w[i], x[i * BLOCK_M + row]),)
        acc = more
    y = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for row in tl.static_range(BLOCK_M):
        total = tl.sum(acc[row], 1)
        if PARTS:
            total = total / root(squares[row], K, eps)
        y = tl.where((m == row)[:, None], total[None, :], y)
    tile, split = tl.program_id(0), tl.program_id(1)
    if LEAVES:
        y += before
        tl.store(y_ptrs, y, mask=real)
        left = tl.num_programs(0)
        leave_half_normed(y, norm, m, n, real, num_rows, N, weighted_ptr, squares_ptr, tile, left)
    else:
        finish(y, m, n, y_ptr, partial_ptr, arrived_ptr, tile, split, num_rows, N, y_stride, SPLITS, ADD)


@triton.jit
def some_columns(x_ptr, x_stride, num_rows, cols, end, ROWS: tl.constexpr):
    """Columns [K] of each of ROWS rows, zeros for those that there are not."""
    x = ()
    for row in tl.static_range(ROWS):
        x = x + (tl.load(x_ptr + row * x_stride + cols, mask=(cols < end) & (row < num_rows), other=0.0),)
    return x


@triton.jit(do_not_specialize=["num_rows"])
def skinny_dot(
    x_ptr,
    w_ptr,
    y_ptr,
    partial_ptr,
    arrived_ptr,
    num_rows,
    N,
    K,
    split_columns,
    x_stride,
    y_stride,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLITS: tl.constexpr,
    EVEN: tl.constexpr,
    WEIGHT_IS_FIRST: tl.constexpr,
    STAGES: tl.constexpr,
    DEPENDENT: tl.constexpr,
    FOLDS: tl.constexpr = 1,
    EARLY: tl.constexpr = False,
    ADD: tl.constexpr = False,
):
    """y [M, N] = x [M, K] · w [N, K]ᵀ on matrix units. Grid (tiles of M, tiles of N, SPLITS).

    WEIGHT_IS_FIRST computes w · xᵀ: rows of the weight then fill the matrix units' longer side. FOLDS splits of the
    columns are added up one after another here, with the bits that as many SPLITS have. EARLY loads the weight, of
    which a program has at most BLOCK_K columns, before the kernel in front has written x. ADD is as in `skinny_reduce`.
    """
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    begin = tl.program_id(2) * split_columns
    if DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()
        if not EARLY:
            tl.extra.cuda.gdc_wait()
    w_rows = w_ptr + tl.minimum(n, N - 1).to(tl.int64) * K
    k = tl.arange(0, BLOCK_K)
    x_ptrs = x_ptr + m.to(tl.int64)[:, None] * x_stride + k[None, :]
    w_ptrs = w_rows[:, None] + k[None, :]
    tile = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    if EARLY:
        inside = begin + k < tl.minimum(begin + split_columns, K)
        acc = early_product(x_ptrs + begin, w_ptrs + begin, inside, m < num_rows, EVEN, DEPENDENT)
    else:
        SHAPE: tl.constexpr = [BLOCK_N, BLOCK_M] if WEIGHT_IS_FIRST else [BLOCK_M, BLOCK_N]
        acc = tl.zeros(SHAPE, tl.float32)
        for fold in tl.range(0, FOLDS, num_stages=1):
            first = begin + fold * split_columns
            end = tl.minimum(first + split_columns, K)
            split = tl.zeros(SHAPE, tl.float32)
            for at in tl.range(first, end, BLOCK_K, num_stages=STAGES):
                if EVEN:
                    x = tl.load(x_ptrs + at, mask=(m < num_rows)[:, None], other=0.0)
                    w = tl.load(w_ptrs + at, eviction_policy="evict_first")
                else:
                    inside = (at + k < end)[None, :]
                    x = tl.load(x_ptrs + at, mask=(m < num_rows)[:, None] & inside, other=0.0)
                    w = tl.load(w_ptrs + at, mask=inside, other=0.0)
                x = x.to(w.dtype)
                if WEIGHT_IS_FIRST:
                    split = tl.dot(w, tl.trans(x), split, input_precision="ieee")
                else:
                    split = tl.dot(x, tl.trans(w), split, input_precision="ieee")
            acc = split if FOLDS == 1 else acc + split
    if WEIGHT_IS_FIRST:
        acc = tl.trans(acc)
    split = tl.program_id(2)
    finish(acc, m, n, y_ptr, partial_ptr, arrived_ptr, tile, split, num_rows, N, y_stride, SPLITS, ADD)


@triton.jit
def early_product(x_ptrs, w_ptrs, inside, real, EVEN: tl.constexpr, DEPENDENT: tl.constexpr):
    """w [N, K] · xᵀ of x [M, K], both loaded whole."""
    inside = inside[None, :]
    w = tl.load(w_ptrs, mask=None if EVEN else inside, other=None if EVEN else 0.0, eviction_policy="evict_first")
    if DEPENDENT:
        tl.extra.cuda.gdc_wait()
    x = tl.load(x_ptrs, mask=real[:, None] & inside, other=0.0).to(w.dtype)
    return tl.dot(w, tl.trans(x), input_precision="ieee")
