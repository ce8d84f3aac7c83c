"""The first half of paged decode: every program attends over one chunk of one sequence for one K/V head.

Owns the walk over the block table and the online softmax; `dequant.py` owns how stored rows become matrix operands.
"""

from __future__ import annotations

import triton
import triton.language as tl

from octavo.kernels.triton.dequant import (
    accumulate,
    num_halves,
    prepare_queries,
    scores,
    store_output,
    zero_accumulators,
)

# What a hidden score becomes is -inf; the running maximum starts here, which is finite, so that no difference is NaN.
LOWEST = tl.constexpr(-1e30)


@triton.jit
def block_ids(table_ptr, cols, visible_end, BLOCK_SIZE: tl.constexpr):
    """Ids of the blocks that hold columns `cols` of a sequence; -1 from `visible_end` on."""
    return tl.load(table_ptr + cols // BLOCK_SIZE, mask=cols < visible_end, other=-1)


@triton.jit
def decode_split(
    q_ptr,
    out_ptr,
    partial_ptr,
    lse_ptr,
    k_ptr,
    v_ptr,
    k_scale_ptr,
    v_scale_ptr,
    table_ptr,
    items_ptr,
    gaps_ptr,
    sinks_ptr,
    scale_log2,
    window,
    num_blocks,
    q_stride,
    HQ: tl.constexpr,
    HKV: tl.constexpr,
    QUERIES: tl.constexpr,
    DK: tl.constexpr,
    DV: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    K_CODEC: tl.constexpr,
    V_CODEC: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_GAPS: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    FAST: tl.constexpr,
    PRECISE: tl.constexpr,
    DEPENDENT: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Grid (HKV, items, query tiles). An item is 8 int32, see `decode_plan.py`:

        first query row, query rows, first column, end column, table offset, partial slot or -1, columns, sequence

    A column is a position in the block table: block `column // BLOCK_SIZE`, row `column % BLOCK_SIZE` of it. A partial
    result is normalised, with its log-sum-exp in base 2; slot -1 is one that is whole, and goes to `out`.
    """
    head = tl.program_id(0)
    item_ptr = items_ptr + tl.program_id(1) * 8
    q0 = tl.load(item_ptr)
    num_queries = tl.load(item_ptr + 1)
    begin = tl.load(item_ptr + 2)
    end = tl.load(item_ptr + 3)
    table_ptr += tl.load(item_ptr + 4)
    slot = tl.load(item_ptr + 5)
    columns = tl.load(item_ptr + 6)
    # With dependent launches the next kernel begins, and this one has begun, before the one in front is done: up to the
    # wait it reads what the step's plan wrote, long before any layer.
    if DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()
    # Tiles lie at absolute multiples, wherever a chunk begins.
    cols = begin // BLOCK_N * BLOCK_N + tl.arange(0, BLOCK_N)
    ids = block_ids(table_ptr, cols, end, BLOCK_SIZE)
    if DEPENDENT:
        tl.extra.cuda.gdc_wait()
    if num_queries == 0:
        return
    GROUP: tl.constexpr = HQ // HKV
    # Row m of the tile is query head m % GROUP of this K/V head, in query row m // GROUP.
    m = tl.program_id(2) * BLOCK_M + tl.arange(0, BLOCK_M)
    t = m // GROUP
    q_head = head * GROUP + m % GROUP
    real = t < num_queries
    q = prepare_queries(q_ptr + (q0 + t).to(tl.int64) * q_stride + q_head * DK, real, k_ptr, DK, K_CODEC, PRECISE)
    HALVES: tl.constexpr = num_halves(q_ptr.dtype.element_ty, k_ptr.dtype.element_ty, PRECISE)

    keep = 0
    skip = 0
    if HAS_GAPS:
        sequence = tl.load(item_ptr + 7)
        keep = tl.load(gaps_ptr + sequence * 2)
        skip = tl.load(gaps_ptr + sequence * 2 + 1)
    # Of `columns` stored ones the last belongs to the last query row.
    last = columns - num_queries + t

    top = tl.full([BLOCK_M], LOWEST, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = zero_accumulators(BLOCK_M, DV, V_CODEC)
    for _ in tl.range(begin // BLOCK_N * BLOCK_N, end, BLOCK_N, num_stages=STAGES):
        visible = (cols >= begin) & (ids >= 0) & (ids < num_blocks)
        if HAS_GAPS:
            visible &= (cols < keep) | (cols >= keep + skip)
        rows = ids.to(tl.int64) * BLOCK_SIZE + cols % BLOCK_SIZE
        # Ids of the next tile are under way while this one is multiplied.
        next_cols = cols + BLOCK_N
        ids = block_ids(table_ptr, next_cols, end, BLOCK_SIZE)
        s = scores(q, k_ptr, k_scale_ptr, rows, visible, head, HKV, DK, K_CODEC, FAST, HALVES)
        if QUERIES == 1:
            seen = visible[None, :]
        else:
            seen = visible[None, :] & (cols[None, :] <= last[:, None])
            if HAS_WINDOW:
                if HAS_GAPS:
                    # Positions count without the gap, which lies before every query.
                    position = tl.where(cols < keep, cols, cols - skip)
                    seen &= position[None, :] > (last - skip - window)[:, None]
                else:
                    seen &= cols[None, :] > (last - window)[:, None]
        s = tl.where(seen, s, float("-inf"))
        higher = tl.maximum(top, tl.max(s, 1) * scale_log2)
        p = tl.exp2(s * scale_log2 - higher[:, None])
        fade = tl.exp2(top - higher)
        top = higher
        total = total * fade + tl.sum(p, 1)
        acc = accumulate(acc, p, fade, v_ptr, v_scale_ptr, rows, visible, head, HKV, DV, V_CODEC, FAST, PRECISE)
        cols = next_cols
    row = (q0 + t).to(tl.int64) * HQ + q_head
    if slot < 0:
        if HAS_SINKS:
            sink = tl.load(sinks_ptr + q_head, mask=real, other=0.0) * 1.4426950408889634
            # A sink joins a softmax that has something to weigh: an empty row stays 0 either way.
            higher = tl.maximum(top, sink)
            fade = tl.exp2(top - higher)
            norm = total * fade + tl.exp2(sink - higher)
            share = tl.where(total == 0, 0.0, fade / norm)
        else:
            share = 1.0 / tl.where(total == 0, 1.0, total)
        store_output(out_ptr + row * DV, acc, share, real, DV, V_CODEC)
    else:
        row = (slot.to(tl.int64) * QUERIES + t) * HQ + q_head
        norm = tl.where(total == 0, 1.0, total)
        store_output(partial_ptr + row * DV, acc, 1.0 / norm, real, DV, V_CODEC)
        lse = tl.where(total == 0, float("-inf"), top + tl.log2(norm))
        tl.store(lse_ptr + row, lse, mask=real)
