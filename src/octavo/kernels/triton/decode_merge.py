"""The second half of paged decode: the partial results of sequences that were cut into chunks become one each."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def decode_merge(
    out_ptr,
    partial_ptr,
    lse_ptr,
    merges_ptr,
    sinks_ptr,
    HQ: tl.constexpr,
    QUERIES: tl.constexpr,
    DV: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_S: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    DEPENDENT: tl.constexpr,
    LETS_IN: tl.constexpr = False,
):
    """Grid (sequences, HQ * QUERIES, parts of DV). A merge is 4 int32: first query row, query rows, first slot, slots.

    Partial results that saw nothing (log-sum-exp -inf) weigh nothing. Sequences without slots are whole already.
    """
    merge_ptr = merges_ptr + tl.program_id(0) * 4
    q0 = tl.load(merge_ptr)
    num_queries = tl.load(merge_ptr + 1)
    first = tl.load(merge_ptr + 2)
    slots = tl.load(merge_ptr + 3)
    # Only then may the next one start: earlier it would take room from the programs that this one waits for. With
    # LETS_IN it may, where there is so little room to take that the weights it can ask for meanwhile are worth more.
    if DEPENDENT and LETS_IN:
        tl.extra.cuda.gdc_launch_dependents()
    if DEPENDENT:
        tl.extra.cuda.gdc_wait()
        if not LETS_IN:
            tl.extra.cuda.gdc_launch_dependents()
    t = tl.program_id(1) // HQ
    if (t >= num_queries) | (slots == 0):
        return
    q_head = tl.program_id(1) % HQ
    row = t * HQ + q_head
    d = tl.program_id(2) * BLOCK_D + tl.arange(0, BLOCK_D)
    s = tl.arange(0, BLOCK_S)
    top = -1e30
    if HAS_SINKS:
        sink = tl.load(sinks_ptr + q_head) * 1.4426950408889634
        top = tl.maximum(top, sink)
    total = 0.0
    acc = tl.zeros([BLOCK_D], tl.float32)
    for start in tl.range(0, slots, BLOCK_S):
        there = start + s < slots
        rows = (first + start + s).to(tl.int64) * (QUERIES * HQ) + row
        lse = tl.load(lse_ptr + rows, mask=there, other=float("-inf"))
        mask = there[:, None] & (d < DV)[None, :]
        part = tl.load(partial_ptr + rows[:, None] * DV + d[None, :], mask=mask, other=0.0)
        part = tl.where(lse[:, None] == float("-inf"), 0.0, part)  # whatever it is: NaN times nothing is NaN
        higher = tl.maximum(top, tl.max(lse, 0))
        fade = tl.exp2(top - higher)
        weight = tl.exp2(lse - higher)
        total = total * fade + tl.sum(weight, 0)
        acc = acc * fade + tl.sum(part * weight[:, None], 0)
        top = higher
    norm = total
    if HAS_SINKS:
        norm += tl.exp2(sink - top)
    share = 1.0 / tl.where(norm == 0, 1.0, norm)
    out = out_ptr + ((q0 + t).to(tl.int64) * HQ + q_head) * DV + d
    tl.store(out, (acc * share).to(out_ptr.dtype.element_ty), mask=d < DV)
