"""Products of tens of rows on Hopper's matrix units, whose weights are under way before the kernel in front is done.

Written in Gluon, which fixes what is copied when: `skinny_dense.py` and `gated_dot.py` are the forms for other devices.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@gluon.jit
def streamed_dot(
    x_desc,
    w_desc,
    y_ptr,
    num_rows,
    N,
    K,
    split_columns,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr,
    GATED: gl.constexpr,
    GELU: gl.constexpr,
    DEPENDENT: gl.constexpr,
):
    """y [SPLITS, M, N] = x [M, K] · w [N, K]ᵀ, over the columns of each split. Grid (tiles of M, tiles of N, SPLITS).

    GATED: y [M, N] = activation(x · gateᵀ) · (x · upᵀ); w [2 N, K] is gate [N, K] above up [N, K], and both products
    are rounded to w's dtype before they meet. Tiles of both have BLOCK_N rows of w then.
    """
    PARTS: gl.constexpr = 2 if GATED else 1
    WARPS: gl.constexpr = gl.num_warps()
    kind: gl.constexpr = w_desc.dtype
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, BLOCK_N, 16])
    m0 = gl.program_id(0) * BLOCK_M
    n0 = gl.program_id(1) * BLOCK_N
    split = gl.program_id(2)
    first = split * split_columns
    steps = gl.cdiv(gl.minimum(split_columns, K - first), BLOCK_K)
    xs = gl.allocate_shared_memory(kind, [STAGES, BLOCK_M, BLOCK_K], x_desc.layout)
    ws = gl.allocate_shared_memory(kind, [STAGES * PARTS, BLOCK_N, BLOCK_K], w_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    BYTES: gl.constexpr = 2 * BLOCK_K * (BLOCK_M + PARTS * BLOCK_N)
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
    # Weights are older than the step: only x waits for the kernel in front.
    for i in gl.static_range(STAGES):
        there = i < steps
        mbarrier.expect(full.index(i), BYTES, pred=there)
        for part in gl.static_range(PARTS):
            at = [n0 + part * N, first + i * BLOCK_K]
            tma.async_copy_global_to_shared(w_desc, at, full.index(i), ws.index(i * PARTS + part), pred=there)
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    for i in gl.static_range(STAGES):
        at = [m0, first + i * BLOCK_K]
        tma.async_copy_global_to_shared(x_desc, at, full.index(i), xs.index(i), pred=i < steps)
    acc = gl.zeros([BLOCK_M, BLOCK_N], gl.float32, layout)
    up = gl.zeros([BLOCK_M, BLOCK_N], gl.float32, layout)
    for t in range(steps):
        stage = t % STAGES
        mbarrier.wait(full.index(stage), t // STAGES & 1)
        x = xs.index(stage)
        acc = warpgroup_mma(x, ws.index(stage * PARTS).permute((1, 0)), acc, is_async=True)
        if GATED:
            up = warpgroup_mma(x, ws.index(stage * PARTS + 1).permute((1, 0)), up, is_async=True)
            acc, up = warpgroup_mma_wait(PARTS, deps=(acc, up))
        else:
            acc = warpgroup_mma_wait(PARTS, deps=(acc,))
        # What the step before multiplied has been read: its place is free.
        again = t + STAGES - 1
        free = (t + STAGES - 1) % STAGES
        there = (t > 0) & (again < steps)
        mbarrier.expect(full.index(free), BYTES, pred=there)
        for part in gl.static_range(PARTS):
            at = [n0 + part * N, first + again * BLOCK_K]
            tma.async_copy_global_to_shared(w_desc, at, full.index(free), ws.index(free * PARTS + part), pred=there)
        at = [m0, first + again * BLOCK_K]
        tma.async_copy_global_to_shared(x_desc, at, full.index(free), xs.index(free), pred=there)
    if GATED:
        acc, up = warpgroup_mma_wait(0, deps=(acc, up))
    else:
        acc = warpgroup_mma_wait(0, deps=(acc,))
    for i in gl.static_range(STAGES):
        mbarrier.invalidate(full.index(i))
    y = acc
    if GATED:
        gates, values = acc.to(kind).to(gl.float32), up.to(kind).to(gl.float32)
        z = gates
        if GELU:
            # (1 + tanh(y)) / 2 is the sigmoid of 2 y.
            z = 1.5957691216057308 * (gates + 0.044715 * gates * gates * gates)
        small = gl.exp(-gl.abs(z))
        y = gates * (gl.where(z >= 0, 1.0, small) / (1.0 + small)) * values
    m = m0 + gl.arange(0, BLOCK_M, layout=gl.SliceLayout(1, layout))
    n = n0 + gl.arange(0, BLOCK_N, layout=gl.SliceLayout(0, layout))
    rows = m.to(gl.int64) + split.to(gl.int64) * num_rows
    real = (m < num_rows)[:, None] & (n < N)[None, :]
    gl.store(y_ptr + rows[:, None] * N + n[None, :], y.to(y_ptr.dtype.element_ty), mask=real)
