"""Gate and up projection of a few rows with their activation in one kernel, without matrix units."""

from __future__ import annotations

import triton
import triton.language as tl

from octavo.kernels.triton.half_norm import load_squares, root
from octavo.kernels.triton.row_kernels import gated
from octavo.kernels.triton.skinny_dense import columns, some_columns, summed


@triton.jit
def gated_sums(
    x_ptr,
    w_ptr,
    y_ptr,
    num_rows,
    N,
    K,
    x_stride,
    y_stride,
    squares_ptr,
    parts,
    eps,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    TILES: tl.constexpr,
    AHEAD: tl.constexpr,
    EVEN: tl.constexpr,
    GELU: tl.constexpr,
    DEPENDENT: tl.constexpr,
    PARTS: tl.constexpr,
):
    """y [M, N] = activation(x · gateᵀ) · (x · upᵀ) for at most BLOCK_M rows; w [2 N, K] is gate [N, K] above up [N, K].

    Grid (tiles of N,). Both products are rounded to the weight's dtype first, as they would be on their own. TILES,
    AHEAD and PARTS are as in `skinny_reduce`, which it loads and adds as.
    """
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    cols = tl.arange(0, BLOCK_K)
    if DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()
    gate_ptrs = w_ptr + tl.minimum(n, N - 1).to(tl.int64)[:, None] * K + cols[None, :]
    up_ptrs = gate_ptrs + tl.cast(N, tl.int64) * K
    gate = ()
    up = ()
    for i in tl.static_range(AHEAD):
        gate = gate + (columns(gate_ptrs + i * BLOCK_K, cols + i * BLOCK_K < K, EVEN),)
        up = up + (columns(up_ptrs + i * BLOCK_K, cols + i * BLOCK_K < K, EVEN),)
    if DEPENDENT:
        tl.extra.cuda.gdc_wait()
    squares = ()
    gates = ()
    ups = ()
    x = ()
    for row in tl.static_range(BLOCK_M):
        if PARTS:
            squares = squares + (load_squares(squares_ptr, row, num_rows, parts, PARTS),)
        gates = gates + (tl.zeros([BLOCK_N, BLOCK_K // 8], tl.float32),)
        ups = ups + (tl.zeros([BLOCK_N, BLOCK_K // 8], tl.float32),)
    NEAR: tl.constexpr = TILES if TILES * BLOCK_M <= 16 else AHEAD
    for i in tl.static_range(NEAR):
        x = x + some_columns(x_ptr, x_stride, num_rows, cols + i * BLOCK_K, K, BLOCK_M)
    for i in tl.static_range(TILES):
        if i + AHEAD < TILES:
            gate = gate + (columns(gate_ptrs + (i + AHEAD) * BLOCK_K, cols + (i + AHEAD) * BLOCK_K < K, EVEN),)
            up = up + (columns(up_ptrs + (i + AHEAD) * BLOCK_K, cols + (i + AHEAD) * BLOCK_K < K, EVEN),)
        if i + NEAR < TILES:
            x = x + some_columns(x_ptr, x_stride, num_rows, cols + (i + NEAR) * BLOCK_K, K, BLOCK_M)
        more_gates = ()
        more_ups = ()
        for row in tl.static_range(BLOCK_M):
            more_gates = more_gates + (gates[row] + summed(gate[i], x[i * BLOCK_M + row]),)
            more_ups = more_ups + (ups[row] + summed(up[i], x[i * BLOCK_M + row]),)
        gates = more_gates
        ups = more_ups
    kind = w_ptr.dtype.element_ty
    for row in tl.static_range(BLOCK_M):
        g = tl.sum(gates[row], 1)
        u = tl.sum(ups[row], 1)
        if PARTS:
            divisor = root(squares[row], K, eps)
            g = g / divisor
            u = u / divisor
        g = g.to(kind).to(tl.float32)
        u = u.to(kind).to(tl.float32)
        y = gated(g, u, GELU).to(y_ptr.dtype.element_ty)
        tl.store(y_ptr + row * y_stride + n, y, mask=(n < N) & (row < num_rows))
