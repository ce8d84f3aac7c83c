"""Gate and up projection of a few rows with their activation in one kernel, without matrix units."""

from __future__ import annotations

import triton
import triton.language as tl

from octavo.kernels.triton.half_norm import load_squares, root
from octavo.kernels.triton.row_kernels import gated


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
    EVEN: tl.constexpr,
    GELU: tl.constexpr,
    DEPENDENT: tl.constexpr,
    PARTS: tl.constexpr,
):
    """y [M, N] = activation(x · gateᵀ) · (x · upᵀ) for at most BLOCK_M rows; w [2 N, K] is gate [N, K] above up [N, K].

    Grid (tiles of N,). Both products are rounded to the weight's dtype first, as they would be on their own. Loads as
    `skinny_reduce`: one tile ahead of the sums, the first one before the kernel in front has written x. PARTS as there.
    """
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    cols = tl.arange(0, BLOCK_K)
    if DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()
    gate_ptrs = w_ptr + tl.minimum(n, N - 1).to(tl.int64)[:, None] * K + cols[None, :]
    up_ptrs = gate_ptrs + tl.cast(N, tl.int64) * K
    if EVEN:
        gate = tl.load(gate_ptrs, eviction_policy="evict_first")
        up = tl.load(up_ptrs, eviction_policy="evict_first")
    else:
        gate = tl.load(gate_ptrs, mask=(cols < K)[None, :], other=0.0)
        up = tl.load(up_ptrs, mask=(cols < K)[None, :], other=0.0)
    if DEPENDENT:
        tl.extra.cuda.gdc_wait()
    squares = ()
    gates = ()
    ups = ()
    for row in tl.static_range(BLOCK_M):
        if PARTS:
            squares = squares + (load_squares(squares_ptr, row, num_rows, parts, PARTS),)
        gates = gates + (tl.zeros([BLOCK_N, BLOCK_K], tl.float32),)
        ups = ups + (tl.zeros([BLOCK_N, BLOCK_K], tl.float32),)
    for at in range(0, K, BLOCK_K):
        gate_ptrs += BLOCK_K
        up_ptrs += BLOCK_K
        if EVEN:
            next_gate = tl.load(gate_ptrs, mask=at + BLOCK_K < K, other=0.0, eviction_policy="evict_first")
            next_up = tl.load(up_ptrs, mask=at + BLOCK_K < K, other=0.0, eviction_policy="evict_first")
        else:
            next_gate = tl.load(gate_ptrs, mask=(cols + BLOCK_K < K)[None, :], other=0.0)
            next_up = tl.load(up_ptrs, mask=(cols + BLOCK_K < K)[None, :], other=0.0)
        summed_gates = ()
        summed_ups = ()
        for row in tl.static_range(BLOCK_M):
            x = tl.load(x_ptr + row * x_stride + cols, mask=(cols < K) & (row < num_rows), other=0.0)
            x = x.to(gate.dtype).to(tl.float32)[None, :]
            summed_gates = summed_gates + (gates[row] + gate.to(tl.float32) * x,)
            summed_ups = summed_ups + (ups[row] + up.to(tl.float32) * x,)
        gates = summed_gates
        ups = summed_ups
        gate = next_gate
        up = next_up
        cols += BLOCK_K
    for row in tl.static_range(BLOCK_M):
        g = tl.sum(gates[row], 1)
        u = tl.sum(ups[row], 1)
        if PARTS:
            divisor = root(squares[row], K, eps)
            g = g / divisor
            u = u / divisor
        g = g.to(gate.dtype).to(tl.float32)
        u = u.to(gate.dtype).to(tl.float32)
        y = gated(g, u, GELU).to(y_ptr.dtype.element_ty)
        tl.store(y_ptr + row * y_stride + n, y, mask=(n < N) & (row < num_rows))
