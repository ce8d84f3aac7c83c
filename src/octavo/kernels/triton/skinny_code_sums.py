"""Products of one to four rows with weights of codes, without matrix units: codes go from memory to registers.

Weights are packed by `skinny_pack.py`; `skinny_codes.py` is for more rows.
"""

from __future__ import annotations

import triton
import triton.language as tl

from octavo.kernels.triton.skinny_codes import scale_and_minimum
from octavo.kernels.triton.skinny_finish import finish


@triton.jit
def _input_pair(words, BF16: tl.constexpr):
    """32-bit words of two 16-bit inputs, as float32 each: the one in the lower half first."""
    if BF16:
        return (words << 16).to(tl.float32, bitcast=True), (words & -65536).to(tl.float32, bitcast=True)
    low = (words & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True)
    return low.to(tl.float32), (words >> 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


_PICK_4, _PICK_8 = (
    tl.constexpr(f"lop3.b32 $0, $1, {((1 << bits) - 1) << (23 - bits):#x}, {(127 + bits) << 23:#x}, 0xEA;")
    for bits in (4, 8)
)


@triton.jit
def _code(words, PLACE: tl.constexpr, BITS: tl.constexpr, FAST: tl.constexpr):
    """The code PLACE bits up in each word, plus 2 ** BITS, as float32: it becomes the mantissa's first bits."""
    UP: tl.constexpr = 23 - BITS - PLACE
    words = words << UP if UP >= 0 else words >> -UP
    if FAST:
        bits = tl.inline_asm_elementwise(_PICK_4 if BITS == 4 else _PICK_8, "=r,r", [words], tl.int32, True, 1)
    else:
        bits = (words & (((1 << BITS) - 1) << (23 - BITS))) | ((127 + BITS) << 23)
    return bits.to(tl.float32, bitcast=True)


@triton.jit(do_not_specialize=["num_rows"])
def skinny_code_sums(
    x_ptr,
    codes_ptr,
    scale_ptr,
    y_ptr,
    partial_ptr,
    arrived_ptr,
    num_rows,
    N,
    K,
    num_chunks,
    split_chunks,
    x_stride,
    y_stride,
    BITS: tl.constexpr,
    SCALES: tl.constexpr,
    SHARED_BY: tl.constexpr,
    SHIFT: tl.constexpr,
    PAIRS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    CHUNKS: tl.constexpr,
    SPLITS: tl.constexpr,
    EVEN: tl.constexpr,
    BF16: tl.constexpr,
    FAST: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """y [M, N] = x [M, K] · wᵀ as in `skinny_codes`, for at most BLOCK_M rows. Grid (tiles of N, SPLITS).

    x is read as 32-bit words of two columns, so K and x_stride are even. CHUNKS chunks of 512 bits are loaded at a time
    for each row of the weight, the first ones before the kernel in front has written x.
    """
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    row = tl.minimum(n, N - 1)
    begin = tl.program_id(1) * split_chunks
    end = tl.minimum(begin + split_chunks, num_chunks)
    if DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()
    chunk = begin + tl.arange(0, CHUNKS)
    words, scales = _load(codes_ptr, scale_ptr, chunk, end, row, N, SCALES, SHARED_BY)
    if DEPENDENT:
        tl.extra.cuda.gdc_wait()
    acc = ()
    for _ in tl.static_range(BLOCK_M):
        acc = acc + (tl.zeros([CHUNKS, BLOCK_N, 4, 4], tl.float32),)
    lane = tl.arange(0, 4)[None, :, None]
    part = tl.arange(0, 4)[None, None, :]
    for _ in range(begin, end, CHUNKS):
        next_words, next_scales = _load(codes_ptr, scale_ptr, chunk + CHUNKS, end, row, N, SCALES, SHARED_BY)
        # A word's columns: of 4 bits those of 32 neighbours, of 8 bits of 16.
        pair_at = chunk[:, None, None] * (256 // BITS) + part * (64 // BITS) + lane
        inside = chunk[:, None, None] < end
        words4 = tl.reshape(words, [CHUNKS, BLOCK_N, 4, 4])
        scale, minimum = scale_and_minimum(tl.reshape(scales, [CHUNKS, BLOCK_N, 4, 4]), 0, PAIRS)
        summed = ()
        for m in tl.static_range(BLOCK_M):
            product = tl.zeros([CHUNKS, BLOCK_N, 4, 4], tl.float32)
            total = tl.zeros([CHUNKS, 4, 4], tl.float32)
            for eight in tl.static_range(16 // BITS):
                at = pair_at + eight * 4
                real = inside & (m < num_rows)
                if not EVEN:
                    real = real & (at * 2 < K)
                low, high = _input_pair(tl.load(x_ptr + m * x_stride // 2 + at, mask=real, other=0), BF16)
                total += low + high
                product += _code(words4, eight * BITS, BITS, FAST) * low[:, None, :, :]
                product += _code(words4, eight * BITS + 16, BITS, FAST) * high[:, None, :, :]
            # Of each code, 2 ** BITS is too much, and what it is counted from.
            total = total[:, None, :, :]
            product -= total * ((1 << BITS) + (1 << (BITS - 1)) - SHIFT)
            part_sum = product * scale
            if PAIRS:
                part_sum += total * minimum
            summed = summed + (acc[m] + part_sum,)
        acc = summed
        words, scales = next_words, next_scales
        chunk += CHUNKS
    rows = tl.arange(0, BLOCK_M)
    y = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for m in tl.static_range(BLOCK_M):
        whole = tl.sum(tl.sum(tl.sum(acc[m], 3), 2), 0)
        y = tl.where((rows == m)[:, None], whole[None, :], y)
    finish(
        y, rows, n, y_ptr, partial_ptr, arrived_ptr, tl.program_id(0), tl.program_id(1), num_rows, N, y_stride, SPLITS
    )


@triton.jit
def _load(codes_ptr, scale_ptr, chunk, end, row, N, SCALES: tl.constexpr, SHARED_BY: tl.constexpr):
    """Words [chunks, rows, 16] and the scale of each; zeros from chunk `end` on."""
    inside = (chunk < end)[:, None, None]
    word = tl.arange(0, 16)[None, None, :]
    at = (chunk.to(tl.int64)[:, None] * N + row[None, :])[:, :, None]
    words = tl.load(codes_ptr + at * 16 + word, mask=inside, other=0, eviction_policy="evict_first")
    at = ((chunk // SHARED_BY).to(tl.int64)[:, None] * N + row[None, :])[:, :, None]
    scale_at = word % 4 if SCALES == 4 else word % 4 * SCALES // 4
    return words, tl.load(scale_ptr + at * SCALES + scale_at, mask=inside, other=0)
