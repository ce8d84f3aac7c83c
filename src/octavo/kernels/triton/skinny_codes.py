"""Products of a few rows with weights of 4- and 8-bit codes in groups, read once and as packed by `skinny_pack.py`.

Codes are converted to the operands' dtype, which is exact, and a group's product is scaled after it was formed, in
float32. So no weight is ever rounded.
"""

from __future__ import annotations

import triton
import triton.language as tl

from octavo.kernels.triton.skinny_finish import finish

# A word holds two 16-bit elements, neighbours in a row of the weight. Under 0x6400 a code c is the float16 1024 + c,
# under 0x4300 the bfloat16 128 + c (below 128); whole numbers subtract exactly.
_PICK = "lop3.b32 $OUT, t, 0xMASKMASK, 0xBASEBASE, 0xEA;\n"
_FOUR_BITS = (
    "{ .reg .b32 t, bias;\nmov.b32 bias, 0xBIASBIAS;\n"
    + "".join(
        f"shr.b32 t, $4, {4 * j};\n" + _PICK.replace("OUT", str(j)) + f"sub.rn.TYPEx2 ${j}, ${j}, bias;\n"
        for j in range(4)
    )
    + "}"
)
_F16_4 = tl.constexpr(
    _FOUR_BITS.replace("MASK", "000f").replace("BASE", "6400").replace("BIAS", "6408").replace("TYPE", "f16")
)
_BF16_4 = tl.constexpr(
    _FOUR_BITS.replace("MASK", "000f").replace("BASE", "4300").replace("BIAS", "4308").replace("TYPE", "bf16")
)
_F16_8 = tl.constexpr(
    "{ .reg .b32 t, bias;\nmov.b32 bias, 0x64806480;\n"
    + "".join(
        f"shr.b32 t, $2, {8 * j};\nlop3.b32 ${j}, t, 0x00ff00ff, 0x64006400, 0xEA;\nsub.rn.f16x2 ${j}, ${j}, bias;\n"
        for j in range(2)
    )
    + "}"
)
# In 8 significant bits the upper bit has to go elsewhere: (128 + lower seven) - (256 - 128 * upper).
_BF16_8 = tl.constexpr(
    "{ .reg .b32 t, u;\nxor.b32 u, $2, 0x80808080;\n"
    + "".join(
        f"shr.b32 t, u, {8 * j};\nlop3.b32 ${j}, t, 0x007f007f, 0x43004300, 0xEA;\n"
        f"lop3.b32 t, t, 0x00800080, 0x43004300, 0xEA;\nsub.rn.bf16x2 ${j}, ${j}, t;\n"
        for j in range(2)
    )
    + "}"
)
_FOUR_F16, _TWO_F16 = tl.constexpr((tl.float16,) * 4), tl.constexpr((tl.float16,) * 2)
_FOUR_BF16, _TWO_BF16 = tl.constexpr((tl.bfloat16,) * 4), tl.constexpr((tl.bfloat16,) * 2)


@triton.jit
def _unpack(words, BITS: tl.constexpr, BF16: tl.constexpr, FAST: tl.constexpr):
    """16-bit words [...] -> 16 / BITS tensors of codes less half their range, in bfloat16 or float16."""
    if FAST and BITS == 4 and not BF16:
        return tl.inline_asm_elementwise(_F16_4, "=&r,=&r,=&r,=&r,r", [words], _FOUR_F16, True, 2)
    elif FAST and BITS == 4:
        return tl.inline_asm_elementwise(_BF16_4, "=&r,=&r,=&r,=&r,r", [words], _FOUR_BF16, True, 2)
    elif FAST and not BF16:
        return tl.inline_asm_elementwise(_F16_8, "=&r,=&r,r", [words], _TWO_F16, True, 2)
    elif FAST:
        return tl.inline_asm_elementwise(_BF16_8, "=&r,=&r,r", [words], _TWO_BF16, True, 2)
    else:
        parts = ()
        for j in tl.static_range(16 // BITS):
            code = (words.to(tl.int32) >> (BITS * j)) & ((1 << BITS) - 1)
            parts = parts + ((code - (1 << (BITS - 1))).to(tl.bfloat16 if BF16 else tl.float16),)
        return parts


@triton.jit
def _groups(words, ROWS: tl.constexpr, BITS: tl.constexpr, BF16: tl.constexpr, FAST: tl.constexpr):
    """Words [ROWS, 4, 8] of a chunk -> one [ROWS, 32] tensor for each 32 columns of it."""
    parts = _unpack(words, BITS, BF16, FAST)
    if BITS == 4:
        halves = tl.join(tl.join(parts[0], parts[2]), tl.join(parts[1], parts[3]))  # [ROWS, lane, e, kk, half]
        whole = tl.reshape(halves, [ROWS, 4, 2, 2, 2, 2, 2])  # row, lane, q1, q0, par, kk, half
        whole = tl.permute(whole, (0, 5, 6, 1, 4, 2, 3))  # row, kk, half, lane, par, q1, q0
        even, odd = tl.split(tl.reshape(whole, [ROWS, 32, 2, 2]))
        first, third = tl.split(even)
        second, fourth = tl.split(odd)
        return first, second, third, fourth
    else:
        halves = tl.join(parts[0], parts[1])  # [ROWS, lane, e, half]
        whole = tl.reshape(halves, [ROWS, 4, 2, 2, 2, 2])  # row, lane, q, kk, par, half
        whole = tl.permute(whole, (0, 3, 5, 1, 4, 2))  # row, kk, half, lane, par, q
        first, second = tl.split(tl.reshape(whole, [ROWS, 32, 2]))
        return first, second


@triton.jit
def _scale_and_minimum(word, SHIFT: tl.constexpr, PAIRS: tl.constexpr):
    """Float32 scale and what a group's sum of inputs is multiplied by; a word is a float32, or two of 16 bit."""
    if PAIRS == 0:
        return word, 0.0
    elif PAIRS == 1:
        scale = (word & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
        minimum = (word >> 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
        return scale, minimum + scale * SHIFT
    else:
        scale = (word << 16).to(tl.float32, bitcast=True)
        return scale, ((word >> 16) << 16).to(tl.float32, bitcast=True) + scale * SHIFT


@triton.jit
def unpack_rows(
    codes_ptr,
    scale_ptr,
    ids_ptr,
    out_ptr,
    first_row,
    num_rows,
    N,
    K,
    BITS: tl.constexpr,
    GROUP: tl.constexpr,
    SHIFT: tl.constexpr,
    PAIRS: tl.constexpr,
    HAS_IDS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    FAST: tl.constexpr,
):
    """Rows `ids` [num_rows] int64 of a weight, or those from `first_row` on, as out [num_rows, K], rounded once.

    Grid (chunks, tiles of rows). Ids outside the weight read its first or last row.
    """
    CHUNK: tl.constexpr = 512 // BITS
    chunk = tl.program_id(0)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    real = n < num_rows
    row = first_row + n
    if HAS_IDS:
        row = tl.load(ids_ptr + n, mask=real, other=0)
    row = tl.maximum(tl.minimum(row, N - 1), 0).to(tl.int64)
    words = tl.load(codes_ptr + chunk.to(tl.int64) * (N * 32) + row[:, None] * 32 + tl.arange(0, 32)[None, :])
    # Codes are whole numbers that float16 holds.
    groups = _groups(tl.reshape(words, [BLOCK_N, 4, 8]), BLOCK_N, BITS, False, FAST)
    for part in tl.static_range(CHUNK // 32):
        start = chunk * CHUNK + part * 32
        scale, minimum = _scale_and_minimum(tl.load(scale_ptr + (start // GROUP) * N + row), SHIFT, PAIRS)
        values = groups[part].to(tl.float32) * scale[:, None]
        if PAIRS:
            values += minimum[:, None]
        k = start + tl.arange(0, 32)
        at = n.to(tl.int64)[:, None] * K + k[None, :]
        tl.store(out_ptr + at, values.to(out_ptr.dtype.element_ty), mask=real[:, None] & (k < K)[None, :])


@triton.jit
def skinny_codes(
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
    GROUP: tl.constexpr,
    SHIFT: tl.constexpr,
    PAIRS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SPLITS: tl.constexpr,
    EVEN: tl.constexpr,
    WEIGHT_IS_FIRST: tl.constexpr,
    BF16: tl.constexpr,
    FAST: tl.constexpr,
    STAGES: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """y [M, N] = x [M, K] · wᵀ with w = (code - half the range + SHIFT) * scale + minimum.

    Grid (tiles of M, tiles of N, SPLITS). A chunk is 64 bytes of codes of each row of the weight: 512 / BITS columns.
    """
    CHUNK: tl.constexpr = 512 // BITS
    PARTS: tl.constexpr = CHUNK // 32
    SCALES: tl.constexpr = CHUNK // GROUP if GROUP < CHUNK else 1
    PER_SCALE: tl.constexpr = PARTS // SCALES
    SHARED_BY: tl.constexpr = GROUP // CHUNK if GROUP > CHUNK else 1
    DTYPE: tl.constexpr = tl.bfloat16 if BF16 else tl.float16
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    begin = tl.program_id(2) * split_chunks
    end = tl.minimum(begin + split_chunks, num_chunks)
    if DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = tl.minimum(n, N - 1)
    if WEIGHT_IS_FIRST:
        # The matrix units want 16 neighbouring rows in a warp, a load gives it 8 at a time: take them in that order.
        place = tl.arange(0, BLOCK_N)
        loaded = place // 32 * 8 + place // 8 % 4 * (BLOCK_N // 4) + place % 8
        loaded = tl.minimum(tl.program_id(1) * BLOCK_N + loaded, N - 1)
    else:
        loaded = row
    words_at = loaded[:, None] * 32 + tl.arange(0, 32)[None, :]
    k = tl.arange(0, 32)
    x_ptrs = x_ptr + m.to(tl.int64)[:, None] * x_stride + k[None, :]
    acc = tl.zeros([BLOCK_N, BLOCK_M] if WEIGHT_IS_FIRST else [BLOCK_M, BLOCK_N], tl.float32)
    for chunk in tl.range(begin, end, num_stages=STAGES):
        words = tl.load(codes_ptr + chunk * (N * 32) + words_at, eviction_policy="evict_first")
        groups = _groups(tl.reshape(words, [BLOCK_N, 4, 8]), BLOCK_N, BITS, BF16, FAST)
        for s in tl.static_range(SCALES):
            scales_at = (chunk // SHARED_BY * SCALES + s) * N + row
            scale, minimum = _scale_and_minimum(tl.load(scale_ptr + scales_at), SHIFT, PAIRS)
            product = tl.zeros(acc.shape, tl.float32)
            total = tl.zeros([BLOCK_M], tl.float32)
            for part in tl.static_range(s * PER_SCALE, (s + 1) * PER_SCALE):
                inside = (m < num_rows)[:, None]
                if not EVEN:
                    inside = inside & (chunk * CHUNK + part * 32 + k < K)[None, :]
                x = tl.load(x_ptrs + chunk * CHUNK + part * 32, mask=inside, other=0.0).to(DTYPE)
                w = groups[part]
                if WEIGHT_IS_FIRST:
                    w = tl.reshape(w, [BLOCK_N // 32, 4, 8, 32])
                    w = tl.reshape(tl.permute(w, (1, 0, 2, 3)), [BLOCK_N, 32])
                    product = tl.dot(w, tl.trans(x), product)
                else:
                    product = tl.dot(x, tl.trans(w), product)
                if PAIRS:
                    total += tl.sum(x.to(tl.float32), 1)
            if WEIGHT_IS_FIRST:
                acc += product * scale[:, None]
                if PAIRS:
                    acc += minimum[:, None] * total[None, :]
            else:
                acc += product * scale[None, :]
                if PAIRS:
                    acc += total[:, None] * minimum[None, :]
    if WEIGHT_IS_FIRST:
        acc = tl.trans(acc)
    tile = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    finish(acc, m, n, y_ptr, partial_ptr, arrived_ptr, tile, tl.program_id(2), num_rows, N, y_stride, SPLITS)
