"""Partial results of exact attention, folded one after another as `prefill_tiles` folds parts: the same bits."""

from __future__ import annotations

import triton
import triton.language as tl

from octavo.kernels.triton.decode_split import LOWEST


@triton.jit
def exact_merge(
    out_ptr,
    partial_ptr,
    scalars_ptr,
    merges_ptr,
    sinks_ptr,
    HQ: tl.constexpr,
    STRIDE: tl.constexpr,
    DV: tl.constexpr,
    BLOCK_D: tl.constexpr,
    UNROLL: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """Grid (tiles, HQ * tokens, parts of DV). A merge is 4 int32: first query row, tokens, first slot, slots.

    A slot has room for STRIDE rows of every head. Tiles without slots are whole already.
    """
    merge_ptr = merges_ptr + tl.program_id(0) * 4
    q0 = tl.load(merge_ptr)
    num_tokens = tl.load(merge_ptr + 1)
    first = tl.load(merge_ptr + 2)
    slots = tl.load(merge_ptr + 3)
    if DEPENDENT:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    t = tl.program_id(1) // HQ
    if (t >= num_tokens) | (slots == 0):
        return
    q_head = tl.program_id(1) % HQ
    d = tl.program_id(2) * BLOCK_D + tl.arange(0, BLOCK_D)
    one = tl.full([BLOCK_D], 1.0, tl.float32)
    top = LOWEST
    total = 0.0
    acc = tl.zeros([BLOCK_D], tl.float32)
    for start in tl.range(0, slots, UNROLL):
        for i in tl.static_range(UNROLL):
            there = start + i < slots
            row = ((first + start + i).to(tl.int64) * STRIDE + t) * HQ + q_head
            best = tl.load(scalars_ptr + row * 2, mask=there, other=LOWEST)
            weight = tl.load(scalars_ptr + row * 2 + 1, mask=there, other=0.0)
            sums = tl.load(partial_ptr + row * DV + d, mask=there & (d < DV), other=0.0)
            higher = tl.maximum(top, best)
            fade = tl.exp2(top - higher)
            share = tl.exp2(best - higher)
            top = higher
            total = tl.fma(total, fade, weight * share)
            acc = tl.fma(acc, one * fade, sums * share)
    if HAS_SINKS:
        sink = tl.load(sinks_ptr + q_head) * 1.4426950408889634
        higher = tl.maximum(top, sink)
        fade = tl.exp2(top - higher)
        share = tl.where(total == 0, 0.0, fade / (total * fade + tl.exp2(sink - higher)))
    else:
        share = 1.0 / tl.where(total == 0, 1.0, total)
    out = out_ptr + ((q0 + t).to(tl.int64) * HQ + q_head) * DV + d
    tl.store(out, (acc * share).to(out_ptr.dtype.element_ty), mask=d < DV)
