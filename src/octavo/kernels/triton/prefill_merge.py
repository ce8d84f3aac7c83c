"""The second half of paged prefill: what a query tile's parts came to becomes one result."""

from __future__ import annotations

import triton
import triton.language as tl

from octavo.kernels.triton.decode_split import LOWEST


@triton.jit
def prefill_merge(
    out_ptr,
    partial_ptr,
    lse_ptr,
    merges_ptr,
    sinks_ptr,
    HQ: tl.constexpr,
    TOKENS: tl.constexpr,
    DV: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_D: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """Grid (tiles, HQ, parts of TOKENS). A merge is 4 int32: first query row, tokens, first slot, slots, see
    `prefill_plan.py`. Parts that saw nothing (log-sum-exp -inf) weigh nothing; they are added in their order.
    """
    merge_ptr = merges_ptr + tl.program_id(0) * 4
    if DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    q0 = tl.load(merge_ptr)
    num_tokens = tl.load(merge_ptr + 1)
    first = tl.load(merge_ptr + 2)
    slots = tl.load(merge_ptr + 3)
    q_head = tl.program_id(1)
    t = tl.program_id(2) * BLOCK_T + tl.arange(0, BLOCK_T)
    d = tl.arange(0, BLOCK_D)
    real = t < num_tokens
    mask = real[:, None] & (d < DV)[None, :]
    top = tl.full([BLOCK_T], LOWEST, tl.float32)
    if HAS_SINKS:
        sink = tl.load(sinks_ptr + q_head) * 1.4426950408889634
        top = tl.maximum(top, sink)
    total = tl.zeros([BLOCK_T], tl.float32)
    acc = tl.zeros([BLOCK_T, BLOCK_D], tl.float32)
    for i in tl.range(0, slots):
        rows = ((first + i).to(tl.int64) * TOKENS + t) * HQ + q_head
        lse = tl.load(lse_ptr + rows, mask=real, other=float("-inf"))
        part = tl.load(partial_ptr + rows[:, None] * DV + d[None, :], mask=mask, other=0.0)
        higher = tl.maximum(top, lse)
        fade = tl.exp2(top - higher)
        weight = tl.exp2(lse - higher)
        total = tl.fma(total, fade, weight)
        # What an empty part left behind may be anything.
        acc = acc * fade[:, None] + tl.where(weight[:, None] == 0, 0.0, part * weight[:, None])
        top = higher
    norm = total
    if HAS_SINKS:
        norm += tl.exp2(sink - top)
    share = tl.where(total == 0, 0.0, 1.0 / tl.where(norm == 0, 1.0, norm))
    rows = (q0 + t).to(tl.int64) * HQ + q_head
    values = (acc * share[:, None]).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + rows[:, None] * DV + d[None, :], values, mask=mask)
