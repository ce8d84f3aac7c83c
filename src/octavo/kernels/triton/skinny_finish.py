"""The end of a product that was split over its columns: whoever arrives last adds the parts up, always in one order."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def finish(
    acc,
    m,
    n,
    y_ptr,
    partial_ptr,
    arrived_ptr,
    tile,
    split,
    num_rows,
    N,
    y_stride,
    SPLITS: tl.constexpr,
    ADD: tl.constexpr = False,
):
    """Store acc [M, N], or the sum of all splits' ones, at rows m and columns n of y [num_rows, N]; add it if ADD.

    `partial` is [SPLITS, num_rows, N] float32 and scratch, `arrived` [tiles] int32, zeros before and after.
    """
    real = (m < num_rows)[:, None] & (n < N)[None, :]
    y_at = m.to(tl.int64)[:, None] * y_stride + n[None, :]
    if SPLITS == 1:
        if ADD:
            acc += tl.load(y_ptr + y_at, mask=real, other=0.0)
        tl.store(y_ptr + y_at, acc.to(y_ptr.dtype.element_ty), mask=real)
    else:
        at = m.to(tl.int64)[:, None] * N + n[None, :]
        plane = tl.cast(num_rows, tl.int64) * N
        tl.store(partial_ptr + split * plane + at, acc, mask=real)
        # All of this program's stores come before its arrival, and all of theirs before what the last one reads.
        tl.debug_barrier()
        arrived = tl.atomic_add(arrived_ptr + tile, 1, sem="acq_rel")
        if arrived == SPLITS - 1:
            total = tl.zeros(acc.shape, tl.float32)
            for part in tl.static_range(SPLITS):
                total += tl.load(partial_ptr + part * plane + at, mask=real, other=0.0, cache_modifier=".cg")
            if ADD:
                total += tl.load(y_ptr + y_at, mask=real, other=0.0)
            tl.store(y_ptr + y_at, total.to(y_ptr.dtype.element_ty), mask=real)
            tl.store(arrived_ptr + tile, 0)
