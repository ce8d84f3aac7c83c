"""Gate and up projection with their activation in one kernel on matrix units, with the bits of a product and a gate."""

from __future__ import annotations

import triton
import triton.language as tl

from octavo.kernels.triton.row_kernels import gated


@triton.jit(do_not_specialize=["num_rows"])
def gated_dot(
    x_ptr,
    w_ptr,
    y_ptr,
    num_rows,
    N,
    K,
    x_stride,
    y_stride,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EVEN: tl.constexpr,
    GELU: tl.constexpr,
    STAGES: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """y [M, N] = activation(x · gateᵀ) · (x · upᵀ); w [2 N, K] is gate [N, K] above up [N, K].

    Grid (tiles of M, tiles of N). A program's tile has BLOCK_N / 2 rows of the gate and as many of up, and adds as
    `skinny_dot` does. Both products are rounded to the weight's dtype before they meet.
    """
    HALF: tl.constexpr = BLOCK_N // 2
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    place = tl.arange(0, BLOCK_N)
    row = tl.minimum(tl.program_id(1) * HALF + place % HALF, N - 1) + place // HALF * N
    if DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    k = tl.arange(0, BLOCK_K)
    x_ptrs = x_ptr + m.to(tl.int64)[:, None] * x_stride + k[None, :]
    w_ptrs = w_ptr + row.to(tl.int64)[:, None] * K + k[None, :]
    acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    for at in tl.range(0, K, BLOCK_K, num_stages=STAGES):
        if EVEN:
            x = tl.load(x_ptrs + at, mask=(m < num_rows)[:, None], other=0.0)
            w = tl.load(w_ptrs + at, eviction_policy="evict_first")
        else:
            inside = (at + k < K)[None, :]
            x = tl.load(x_ptrs + at, mask=(m < num_rows)[:, None] & inside, other=0.0)
            w = tl.load(w_ptrs + at, mask=inside, other=0.0)
        acc = tl.dot(w, tl.trans(x.to(w.dtype)), acc, input_precision="ieee")
    kind = w_ptr.dtype.element_ty
    gates, values = tl.split(tl.permute(tl.reshape(acc, [2, HALF, BLOCK_M]), (1, 2, 0)))
    y = gated(gates.to(kind).to(tl.float32), values.to(kind).to(tl.float32), GELU)
    n = tl.program_id(1) * HALF + tl.arange(0, HALF)
    ptrs = y_ptr + m.to(tl.int64)[None, :] * y_stride + n[:, None]
    tl.store(ptrs, y.to(y_ptr.dtype.element_ty), mask=(m < num_rows)[None, :] & (n < N)[:, None])
