"""Attention of a chunk of query tokens over its sequence's stored blocks: one program per query tile and K/V head.

Columns are walked in tiles that begin at absolute multiples, and what a row cannot see changes none of its bits. So a
row's result is the same however its prompt is cut into chunks.
"""

from __future__ import annotations

import triton
import triton.language as tl

from octavo.kernels.triton.decode_split import LOWEST, block_ids
from octavo.kernels.triton.dequant import CAST
from octavo.kernels.triton.prefill_operands import (
    load_operand,
    load_queries,
    operand_parts,
    store_sums,
    tile_scores,
    tile_sums,
    zero_sums,
)


@triton.jit
def prefill_tiles(
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
    sinks_ptr,
    scale_log2,
    window,
    num_blocks,
    q_stride,
    HQ: tl.constexpr,
    HKV: tl.constexpr,
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
    TOKENS: tl.constexpr,
    FAST: tl.constexpr,
    PRECISE_END: tl.constexpr,
    HALVES_END: tl.constexpr,
    DEPENDENT: tl.constexpr,
    STAGES: tl.constexpr,
    PART: tl.constexpr = 0,
    ONE_PART: tl.constexpr = True,
):
    """Grid (parts of query tiles, HKV). A part is 10 int32, see `prefill_plan.py`:

        first query row, tokens, column of the first, table offset, first column, end column, partial slot or -1, keep,
        skip, whole tile's end

    A partial result is normalised, with its log-sum-exp in base 2; slot -1 is one that is whole, and goes to `out`.
    Tiles that end up to column PRECISE_END multiply in two halves what rounding to 16 bits would lose, those up to
    HALVES_END queries only.

    With a PART, a row's bits depend on nothing but the row: columns are added up in parts of PART at absolute
    multiples, which are folded one after another, here or, where a program has ONE_PART, from partial results: these
    are sums as they are, and beside them the largest score and the sum of weights.
    """
    item_ptr = items_ptr + tl.program_id(0) * 10
    if DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()
    # What the step's plan wrote is older than any of its kernels.
    num_tokens = tl.load(item_ptr + 1)
    limit = tl.load(item_ptr + 9)
    if DEPENDENT:
        tl.extra.cuda.gdc_wait()
    if num_tokens == 0:
        return
    if limit <= PRECISE_END:
        attend_tile(
            q_ptr, out_ptr, partial_ptr, lse_ptr, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, table_ptr, item_ptr,
            sinks_ptr, scale_log2, window, num_blocks, q_stride, HQ, HKV, DK, DV, BLOCK_SIZE, BLOCK_M, BLOCK_N, K_CODEC,
            V_CODEC, HAS_WINDOW, HAS_GAPS, HAS_SINKS, TOKENS, FAST, True, 2, 1, PART, ONE_PART,
        )  # fmt: skip
    elif HALVES_END > PRECISE_END and limit <= HALVES_END:
        attend_tile(
            q_ptr, out_ptr, partial_ptr, lse_ptr, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, table_ptr, item_ptr,
            sinks_ptr, scale_log2, window, num_blocks, q_stride, HQ, HKV, DK, DV, BLOCK_SIZE, BLOCK_M, BLOCK_N, K_CODEC,
            V_CODEC, HAS_WINDOW, HAS_GAPS, HAS_SINKS, TOKENS, FAST, False, 2, STAGES, PART, ONE_PART,
        )  # fmt: skip
    else:
        attend_tile(
            q_ptr, out_ptr, partial_ptr, lse_ptr, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, table_ptr, item_ptr,
            sinks_ptr, scale_log2, window, num_blocks, q_stride, HQ, HKV, DK, DV, BLOCK_SIZE, BLOCK_M, BLOCK_N, K_CODEC,
            V_CODEC, HAS_WINDOW, HAS_GAPS, HAS_SINKS, TOKENS, FAST, False, 1, STAGES, PART, ONE_PART,
        )  # fmt: skip


@triton.jit
def attend_tile(
    q_ptr, out_ptr, partial_ptr, lse_ptr, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, table_ptr, item_ptr, sinks_ptr,
    scale_log2, window, num_blocks, q_stride, HQ: tl.constexpr, HKV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, K_CODEC: tl.constexpr,
    V_CODEC: tl.constexpr, HAS_WINDOW: tl.constexpr, HAS_GAPS: tl.constexpr, HAS_SINKS: tl.constexpr,
    TOKENS: tl.constexpr, FAST: tl.constexpr, PRECISE: tl.constexpr, HALVES: tl.constexpr,
    STAGES: tl.constexpr, PART: tl.constexpr, ONE_PART: tl.constexpr,
):  # fmt: skip
    """One part of a tile.

        columns   begin .......... | ............... | first ... end
                  window and gap:    seen by every     causal:
                  masked             row: unmasked     masked

    A tile with a block id that does not exist is masked all through, so that none of its columns is read.
    """
    q0 = tl.load(item_ptr)
    num_tokens = tl.load(item_ptr + 1)
    first = tl.load(item_ptr + 2)
    table_ptr += tl.load(item_ptr + 3)
    begin = tl.load(item_ptr + 4)
    end = tl.load(item_ptr + 5)
    slot = tl.load(item_ptr + 6)
    keep = 0
    skip = 0
    if HAS_GAPS:
        keep = tl.load(item_ptr + 7)
        skip = tl.load(item_ptr + 8)
    head = tl.program_id(1)
    GROUP: tl.constexpr = HQ // HKV
    # Row m of the tile is query head m % GROUP of this K/V head, in token m // GROUP.
    m = tl.arange(0, BLOCK_M)
    t = m // GROUP
    q_head = head * GROUP + m % GROUP
    real = t < num_tokens
    q = load_queries(q_ptr + (q0 + t).to(tl.int64) * q_stride + q_head * DK, real, k_ptr, DK, K_CODEC, HALVES)
    last = first + t
    if ONE_PART:
        acc, top, total = walk_part(
            q, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, table_ptr, last, begin, end, keep, skip, window, scale_log2,
            num_blocks, head, first, num_tokens, HKV, DK, DV, BLOCK_SIZE, BLOCK_M, BLOCK_N, K_CODEC, V_CODEC,
            HAS_WINDOW, HAS_GAPS, FAST, PRECISE, HALVES, STAGES, PART > 0,
        )  # fmt: skip
    else:
        top = tl.full([BLOCK_M], LOWEST, tl.float32)
        total = tl.zeros([BLOCK_M], tl.float32)
        acc = zero_sums(BLOCK_M, DV, V_CODEC)
        for at in tl.range(begin // PART * PART, end, PART, num_stages=1):
            sums, best, weight = walk_part(
                q, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, table_ptr, last, tl.maximum(begin, at),
                tl.minimum(end, at + PART), keep, skip, window, scale_log2, num_blocks, head, first, num_tokens, HKV,
                DK, DV, BLOCK_SIZE, BLOCK_M, BLOCK_N, K_CODEC, V_CODEC, HAS_WINDOW, HAS_GAPS, FAST, PRECISE, HALVES,
                STAGES, True,
            )  # fmt: skip
            higher = tl.maximum(top, best)
            fade = tl.exp2(top - higher)
            share = tl.exp2(best - higher)
            top = higher
            total = tl.fma(total, fade, weight * share)
            folded = ()
            for i in tl.static_range(operand_parts(V_CODEC)):
                shares = tl.broadcast_to(share[:, None], acc[i].shape)
                folded = folded + (tl.fma(acc[i], tl.broadcast_to(fade[:, None], acc[i].shape), sums[i] * shares),)
            acc = folded

    row = (q0 + t).to(tl.int64) * HQ + q_head
    if slot < 0:
        if HAS_SINKS:
            sink = tl.load(sinks_ptr + q_head, mask=real, other=0.0) * 1.4426950408889634
            higher = tl.maximum(top, sink)
            fade = tl.exp2(top - higher)
            share = tl.where(total == 0, 0.0, fade / (total * fade + tl.exp2(sink - higher)))
        else:
            share = 1.0 / tl.where(total == 0, 1.0, total)
        store_sums(out_ptr + row * DV, acc, share, real, DV, V_CODEC)
    else:
        row = (slot.to(tl.int64) * TOKENS + t) * HQ + q_head
        if PART == 0:
            norm = tl.where(total == 0, 1.0, total)
            store_sums(partial_ptr + row * DV, acc, 1.0 / norm, real, DV, V_CODEC)
            tl.store(lse_ptr + row, tl.where(total == 0, float("-inf"), top + tl.log2(norm)), mask=real)
        else:
            store_sums(partial_ptr + row * DV, acc, tl.full([BLOCK_M], 1.0, tl.float32), real, DV, V_CODEC)
            tl.store(lse_ptr + row * 2, top, mask=real)
            tl.store(lse_ptr + row * 2 + 1, total, mask=real)


@triton.jit
def walk_part(
    q, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, table_ptr, last, begin, end, keep, skip, window, scale_log2, num_blocks,
    head, first, num_tokens, HKV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, K_CODEC: tl.constexpr, V_CODEC: tl.constexpr,
    HAS_WINDOW: tl.constexpr, HAS_GAPS: tl.constexpr, FAST: tl.constexpr, PRECISE: tl.constexpr, HALVES: tl.constexpr,
    STAGES: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Sums, largest scores and sums of weights over columns `[begin, end)`: see `attend_tile`.

    Of few rows all columns are masked: that costs them nothing, and one loop starts sooner than two or three.
    """
    FEW: tl.constexpr = BLOCK_M <= 16
    LAST_STAGES: tl.constexpr = STAGES if FEW else 1
    top = tl.full([BLOCK_M], LOWEST, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = zero_sums(BLOCK_M, DV, V_CODEC)
    start = begin // BLOCK_N * BLOCK_N
    if not (PRECISE or FEW):
        clear = start
        if HAS_WINDOW:
            clear = tl.maximum(clear, first + num_tokens - window)
        if HAS_GAPS:
            clear = tl.maximum(clear, tl.where(skip > 0, keep + skip, 0))
        if HAS_WINDOW or HAS_GAPS:
            clear = tl.minimum((clear + BLOCK_N - 1) // BLOCK_N, (end + BLOCK_N - 1) // BLOCK_N) * BLOCK_N
            acc, top, total = walk(
                q, acc, top, total, start, clear, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, table_ptr, last, begin, end,
                keep, skip, window, scale_log2, num_blocks, head, HKV, DK, DV, BLOCK_SIZE, BLOCK_N, K_CODEC, V_CODEC,
                HAS_WINDOW, HAS_GAPS, FAST, True, PRECISE, HALVES, 1, EXACT,
            )  # fmt: skip
        diagonal = tl.maximum(tl.minimum((first + 1) // BLOCK_N * BLOCK_N, end), clear)
        if not all_blocks_exist(table_ptr, begin, end, num_blocks, BLOCK_SIZE):
            diagonal = clear
        acc, top, total = walk(
            q, acc, top, total, clear, diagonal, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, table_ptr, last, begin, end,
            keep, skip, window, scale_log2, num_blocks, head, HKV, DK, DV, BLOCK_SIZE, BLOCK_N, K_CODEC, V_CODEC,
            HAS_WINDOW, HAS_GAPS, FAST, False, PRECISE, HALVES, STAGES, EXACT,
        )  # fmt: skip
        start = diagonal
    return walk(
        q, acc, top, total, start, end, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, table_ptr, last, begin, end, keep, skip,
        window, scale_log2, num_blocks, head, HKV, DK, DV, BLOCK_SIZE, BLOCK_N, K_CODEC, V_CODEC, HAS_WINDOW, HAS_GAPS,
        FAST, True, PRECISE, HALVES, LAST_STAGES, EXACT,
    )  # fmt: skip


@triton.jit
def all_blocks_exist(table_ptr, begin, end, num_blocks, BLOCK_SIZE: tl.constexpr):
    worst = 0
    step = tl.arange(0, 1024)
    for block in tl.range(begin // BLOCK_SIZE, (end + BLOCK_SIZE - 1) // BLOCK_SIZE, 1024):
        there = (block + step) * BLOCK_SIZE < end
        ids = tl.load(table_ptr + block + step, mask=there, other=0)
        worst = tl.maximum(worst, tl.max(((ids < 0) | (ids >= num_blocks)).to(tl.int32), 0))
    return worst == 0


@triton.jit
def walk(
    q, acc, top, total, start, stop, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, table_ptr, last, begin, end, keep, skip,
    window, scale_log2, num_blocks, head, HKV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, BLOCK_N: tl.constexpr, K_CODEC: tl.constexpr, V_CODEC: tl.constexpr,
    HAS_WINDOW: tl.constexpr, HAS_GAPS: tl.constexpr, FAST: tl.constexpr, MASKED: tl.constexpr, PRECISE: tl.constexpr,
    HALVES: tl.constexpr, STAGES: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Attend over columns `[start, stop)`, start a multiple of BLOCK_N; those that are hidden only if MASKED."""
    cols = start + tl.arange(0, BLOCK_N)
    ids = block_ids(table_ptr, cols, end, BLOCK_SIZE)
    for _ in tl.range(start, stop, BLOCK_N, num_stages=STAGES):
        visible = (cols >= begin) & (ids >= 0) & (ids < num_blocks)
        rows = ids.to(tl.int64) * BLOCK_SIZE + cols % BLOCK_SIZE
        next_cols = cols + BLOCK_N
        ids = block_ids(table_ptr, next_cols, end, BLOCK_SIZE)
        if MASKED and HAS_GAPS:
            visible &= (cols < keep) | (cols >= keep + skip)
        k = load_operand(k_ptr, k_scale_ptr, rows, visible, head, HKV, DK, K_CODEC, FAST, PRECISE, MASKED)
        s = tile_scores(q, k, K_CODEC, HALVES, PRECISE)
        if MASKED:
            seen = visible[None, :] & (cols[None, :] <= last[:, None])
            if HAS_WINDOW:
                if HAS_GAPS:
                    position = tl.where(cols < keep, cols, cols - skip)
                    seen &= position[None, :] > (last - skip - window)[:, None]
                else:
                    seen &= cols[None, :] > (last - window)[:, None]
            s = tl.where(seen, s, float("-inf"))
        higher = tl.maximum(top, tl.max(s, 1) * scale_log2)
        # Fused in so many words: loops that differ in their masks must not differ in their rounding.
        p = tl.exp2(
            tl.fma(s, tl.full(s.shape, 1.0, tl.float32) * scale_log2, tl.broadcast_to(-higher[:, None], s.shape))
        )
        fade = tl.exp2(top - higher)
        top = higher
        v = load_operand(v_ptr, v_scale_ptr, rows, visible, head, HKV, DV, V_CODEC, FAST, PRECISE, MASKED)
        total = tl.fma(total, fade, row_sums(p, v[0], V_CODEC, PRECISE, EXACT))
        acc = tile_sums(acc, p, fade, v, V_CODEC, PRECISE)
        cols = next_cols
    return acc, top, total


@triton.jit
def row_sums(p, values, V_CODEC: tl.constexpr, PRECISE: tl.constexpr, EXACT: tl.constexpr):
    """Sums [M] of p [M, N]; if EXACT of p as it is rounded to multiply `values`, by the matrix units: lanes add in an
    order that depends on the tile's layout.
    """
    if not EXACT:
        return tl.sum(p, 1)
    weights = p.to(tl.float16) if V_CODEC != CAST else p.to(values.dtype)
    ones = tl.full([p.shape[1], 16], 1.0, tl.float32).to(weights.dtype)
    sums = tl.dot(weights, ones)
    if PRECISE:
        sums = tl.dot((p - weights.to(tl.float32)).to(weights.dtype), ones, sums)
    return tl.max(sums, 1)
