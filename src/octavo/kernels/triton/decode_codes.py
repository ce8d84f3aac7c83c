"""The first half of paged decode for quantised K and V on NVIDIA's matrix units, each code loaded by the lane that
multiplies it. Written in Gluon, which fixes the lanes; `decode_split.py` is the form for everything else.

Owns the walk and the softmax; how codes become operands is in `code_operands.py`.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.kernels.triton.code_operands import (
    MMA,
    SCORE,
    SUB,
    as_weights,
    copy_keys,
    element_of,
    load_keys,
    load_values,
    num_pieces,
    num_words,
    piece_rows,
    prepare_queries,
    scores,
    shared_words,
    values,
)

LOWEST = gl.constexpr(-1e30)
ROWS = gl.constexpr(8)  # query rows of a program: a matrix instruction's columns


@gluon.jit
def stored_rows(table_ptr, column, end, num_blocks, BLOCK_SIZE: gl.constexpr, SUBS: gl.constexpr):
    """For every 16 columns from `column` on: the pools' row where they lie, and where those end that can be seen.

    Without such a block they are row 0 on, and none is seen.
    """
    out = ()
    for i in gl.static_range(SUBS):
        first = column + i * SUB
        block = gl.load(table_ptr + first // BLOCK_SIZE, mask=first < end, other=-1)
        there = (block >= 0) & (block < num_blocks)
        row = gl.where(there, block, 0).to(gl.int64) * BLOCK_SIZE + first % BLOCK_SIZE
        out = out + ((row, gl.where(there, end, 0)),)
    return out


@gluon.jit
def visible(cols, begin, end, keep, skip):
    """Whether columns are in `[begin, end)` and not in the gap, of which there is none where `keep` is None."""
    seen = (cols >= begin) & (cols < end)
    if keep is not None:
        seen &= (cols < keep) | (cols >= keep + skip)
    return seen


@gluon.jit
def decode_codes(
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
    HQ: gl.constexpr,
    HKV: gl.constexpr,
    QUERIES: gl.constexpr,
    DK: gl.constexpr,
    DV: gl.constexpr,
    BLOCK_SIZE: gl.constexpr,
    SUBS: gl.constexpr,
    K_CODEC: gl.constexpr,
    V_CODEC: gl.constexpr,
    HAS_WINDOW: gl.constexpr,
    HAS_GAPS: gl.constexpr,
    HAS_SINKS: gl.constexpr,
    DEPENDENT: gl.constexpr,
    STAGES: gl.constexpr,
):
    """`decode_split.py`'s kernel in tiles of 8 query rows and SUBS times 16 columns, of one warp.

    Codes are read as int32 words, scales of K as int32 pairs.
    """
    head = gl.program_id(0)
    item_ptr = items_ptr + gl.program_id(1) * 8
    q0 = gl.load(item_ptr)
    num_queries = gl.load(item_ptr + 1)
    begin = gl.load(item_ptr + 2)
    end = gl.load(item_ptr + 3)
    table_ptr += gl.load(item_ptr + 4)
    slot = gl.load(item_ptr + 5)
    columns = gl.load(item_ptr + 6)
    if DEPENDENT:
        gdc_launch_dependents()
    TILE: gl.constexpr = SUBS * SUB
    column = begin // TILE * TILE
    rows = stored_rows(table_ptr, column, end, num_blocks, BLOCK_SIZE, SUBS)
    if DEPENDENT:
        gdc_wait()
    if num_queries == 0:
        return
    # K of STAGES tiles: one that is multiplied, the others under way.
    words = gl.allocate_shared_memory(
        gl.int32, [STAGES, TILE, num_words(DK, K_CODEC)], shared_words(num_words(DK, K_CODEC))
    )
    scales = gl.allocate_shared_memory(gl.int32, [STAGES, TILE, DK // 64], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
    copy_keys(k_ptr, k_scale_ptr, rows, head, words.index(0), scales.index(0), HKV, DK, K_CODEC)
    for stage in gl.static_range(1, STAGES - 1):
        later = stored_rows(table_ptr, column + stage * TILE, end, num_blocks, BLOCK_SIZE, SUBS)
        copy_keys(k_ptr, k_scale_ptr, later, head, words.index(stage), scales.index(stage), HKV, DK, K_CODEC)
    later = stored_rows(table_ptr, column + (STAGES - 1) * TILE, end, num_blocks, BLOCK_SIZE, SUBS)
    read = 0
    written = STAGES - 1
    stored = load_values(v_ptr, v_scale_ptr, rows, head, HKV, DV, V_CODEC)
    keep = None
    skip = None
    if HAS_GAPS:
        sequence = gl.load(item_ptr + 7)
        keep = gl.load(gaps_ptr + sequence * 2)
        skip = gl.load(gaps_ptr + sequence * 2 + 1)

    GROUP: gl.constexpr = HQ // HKV
    m = gl.program_id(2) * ROWS + gl.arange(0, ROWS, layout=gl.SliceLayout(1, SCORE))
    t = m // GROUP
    q_head = head * GROUP + m % GROUP
    real = t < num_queries
    q, q_scale = prepare_queries(q_ptr + (q0 + t).to(gl.int64) * q_stride + q_head * DK, real, DK, K_CODEC)
    q_scale *= scale_log2
    last = columns - num_queries + t

    # Tiles of 8 columns: what a lane has of them are 2 * (lane % 4) and the next one.
    step = gl.arange(0, 8, layout=gl.SliceLayout(0, SCORE))
    top = gl.full([ROWS], LOWEST, gl.float32, gl.SliceLayout(1, SCORE))
    total = gl.zeros([ROWS, 8], gl.float32, SCORE)
    acc = ()
    for _ in gl.static_range(num_pieces(DV, V_CODEC)):
        acc = acc + (gl.zeros([piece_rows(DV, V_CODEC), ROWS], gl.float32, MMA),)
    for _ in range(begin // TILE * TILE, end, TILE):
        next_rows = stored_rows(table_ptr, column + TILE, end, num_blocks, BLOCK_SIZE, SUBS)
        async_copy.wait_group(STAGES - 2)
        keys = load_keys(words.index(read), scales.index(read), SUBS, DK, K_CODEC)
        copy_keys(k_ptr, k_scale_ptr, later, head, words.index(written), scales.index(written), HKV, DK, K_CODEC)
        later = stored_rows(table_ptr, column + STAGES * TILE, end, num_blocks, BLOCK_SIZE, SUBS)
        s = ()
        for i in gl.static_range(2 * SUBS):
            cols = column + i * 8 + step
            seen = visible(cols, begin, rows[i // 2][1], keep, skip)[None, :]
            if QUERIES > 1:
                seen = seen & (cols[None, :] <= last[:, None])
                if HAS_WINDOW:
                    if HAS_GAPS:
                        position = gl.where(cols < keep, cols, cols - skip)
                        seen &= position[None, :] > (last - skip - window)[:, None]
                    else:
                        seen &= cols[None, :] > (last - window)[:, None]
            x = scores(q, keys[i], DK, K_CODEC) * q_scale[:, None]
            s = s + (gl.where(seen, x, float("-inf")),)
        largest = s[0]
        for i in gl.static_range(1, 2 * SUBS):
            largest = gl.maximum(largest, s[i])
        higher = gl.maximum(top, gl.max(largest, 1))
        fade = gl.exp2(top - higher)
        top = higher
        total *= fade[:, None]
        faded = ()
        for piece in gl.static_range(num_pieces(DV, V_CODEC)):
            faded = faded + (acc[piece] * gl.convert_layout(fade, gl.SliceLayout(0, MMA))[None, :],)
        acc = faded
        for i in gl.static_range(SUBS):
            p0 = gl.exp2(s[2 * i] - higher[:, None])
            p1 = gl.exp2(s[2 * i + 1] - higher[:, None])
            total += p0 + p1
            weights = as_weights(p0, p1)
            v = values(stored, i, column, begin, rows[i][1], keep, skip, DV, V_CODEC)
            sums = ()
            for piece in gl.static_range(num_pieces(DV, V_CODEC)):
                sums = sums + (mma_v2(v[piece], weights, acc[piece]),)
            acc = sums
        column += TILE
        rows = next_rows
        read = gl.where(read == STAGES - 1, 0, read + 1)
        written = gl.where(written == STAGES - 1, 0, written + 1)
        stored = load_values(v_ptr, v_scale_ptr, rows, head, HKV, DV, V_CODEC)
    whole = gl.sum(total, 1)
    row = (q0 + t).to(gl.int64) * HQ + q_head
    if slot < 0:
        if HAS_SINKS:
            sink = gl.load(sinks_ptr + q_head, mask=real, other=0.0) * 1.4426950408889634
            higher = gl.maximum(top, sink)
            fade = gl.exp2(top - higher)
            norm = whole * fade + gl.exp2(sink - higher)
            share = gl.where(whole == 0, 0.0, fade / norm)
        else:
            share = 1.0 / gl.where(whole == 0, 1.0, whole)
        store_output(out_ptr, row * DV, acc, share, real, DV, V_CODEC)
    else:
        row = (slot.to(gl.int64) * QUERIES + t) * HQ + q_head
        norm = gl.where(whole == 0, 1.0, whole)
        store_output(partial_ptr, row * DV, acc, 1.0 / norm, real, DV, V_CODEC)
        gl.store(lse_ptr + row, gl.where(whole == 0, float("-inf"), top + gl.log2(norm)), mask=real)


@gluon.jit
def store_output(ptr, offsets, acc, share, real, DIM: gl.constexpr, CODEC: gl.constexpr):
    """Store the accumulators times share [8] at offsets [8]."""
    columns: gl.constexpr = gl.SliceLayout(0, MMA)
    offsets = gl.convert_layout(offsets, columns)[None, :]
    share = gl.convert_layout(share, columns)[None, :]
    m = gl.arange(0, piece_rows(DIM, CODEC), layout=gl.SliceLayout(1, MMA))
    mask = gl.convert_layout(real, columns)[None, :] & (m >= 0)[:, None]
    for piece in gl.static_range(num_pieces(DIM, CODEC)):
        ptrs = ptr + offsets + element_of(m, piece, DIM, CODEC)[:, None]
        gl.store(ptrs, (acc[piece] * share).to(ptr.dtype.element_ty), mask=mask)
