"""Products of a few rows with weights of 4- and 8-bit codes in groups, read once and as packed by `skinny_pack.py`.

Codes are converted to the operands' dtype, which is exact, and a group's product is scaled after it was formed, in
float32. So no weight is ever rounded.
"""

from __future__ import annotations

import triton
import triton.language as tl

from octavo.kernels.triton.skinny_finish import finish

# A word's halves are neighbours in a row of the weight. Under 0x6400 a code c is the float16 1024 + c, under 0x4300 the
# bfloat16 128 + c (below 128); whole numbers subtract exactly.
_PAIR = """
    shr.b32 t, $IN, SHIFT;
    lop3.b32 t, t, MASK, BASE, 0xEA;
    sub.rn.TYPE t, t, BIAS;
    mov.b32 {$LOW, $HIGH}, t;"""
# In 8 significant bits the upper bit has to go elsewhere: (128 + lower seven) - (256 - 128 * upper).
_BYTE_PAIR = """
    shr.b32 u, $IN, SHIFT;
    xor.b32 u, u, 0x00800080;
    lop3.b32 t, u, 0x007f007f, 0x43004300, 0xEA;
    lop3.b32 u, u, 0x00800080, 0x43004300, 0xEA;
    sub.rn.bf16x2 t, t, u;
    mov.b32 {$LOW, $HIGH}, t;"""


def _assembly(pair: str, bits: int, **replaced: str) -> str:
    lines = []
    for j in range(16 // bits):
        line = pair
        for name, value in {"LOW": 2 * j, "HIGH": 2 * j + 1, "IN": 32 // bits, "SHIFT": bits * j, **replaced}.items():
            line = line.replace(name, str(value))
        lines.append(line)
    return "{ .reg .b32 t, u, bias;\nmov.b32 bias, " + replaced.get("VALUE", "0") + ";" + "".join(lines) + "\n}"


_HALVES = {
    "F16_4": _assembly(_PAIR, 4, MASK="0x000f000f", BASE="0x64006400", TYPE="f16x2", BIAS="bias", VALUE="0x64086408"),
    "BF16_4": _assembly(_PAIR, 4, MASK="0x000f000f", BASE="0x43004300", TYPE="bf16x2", BIAS="bias", VALUE="0x43084308"),
    "F16_8": _assembly(_PAIR, 8, MASK="0x00ff00ff", BASE="0x64006400", TYPE="f16x2", BIAS="bias", VALUE="0x64806480"),
    "BF16_8": _assembly(_BYTE_PAIR, 8),
}
_F16_4, _BF16_4, _F16_8, _BF16_8 = (tl.constexpr(text) for text in _HALVES.values())
_REGISTERS_4, _REGISTERS_8 = (tl.constexpr(",".join(["=h"] * count + ["r"])) for count in (8, 4))
_EIGHT_F16, _FOUR_F16 = tl.constexpr((tl.float16,) * 8), tl.constexpr((tl.float16,) * 4)
_EIGHT_BF16, _FOUR_BF16 = tl.constexpr((tl.bfloat16,) * 8), tl.constexpr((tl.bfloat16,) * 4)


@triton.jit
def _unpack(words, BITS: tl.constexpr, BF16: tl.constexpr, FAST: tl.constexpr):
    """Words [...] -> 32 / BITS tensors of codes less half their range, in bfloat16 or float16: first those in the
    lowest bits of a word's lower and upper half, and so on."""
    if FAST and BITS == 4 and not BF16:
        return tl.inline_asm_elementwise(_F16_4, _REGISTERS_4, [words], _EIGHT_F16, True, 1)
    elif FAST and BITS == 4:
        return tl.inline_asm_elementwise(_BF16_4, _REGISTERS_4, [words], _EIGHT_BF16, True, 1)
    elif FAST and not BF16:
        return tl.inline_asm_elementwise(_F16_8, _REGISTERS_8, [words], _FOUR_F16, True, 1)
    elif FAST:
        return tl.inline_asm_elementwise(_BF16_8, _REGISTERS_8, [words], _FOUR_BF16, True, 1)
    else:
        parts = ()
        for j in tl.static_range(32 // BITS):
            code = (words >> (j // 2 * BITS + j % 2 * 16)) & ((1 << BITS) - 1)
            parts = parts + ((code - (1 << (BITS - 1))).to(tl.bfloat16 if BF16 else tl.float16),)
        return parts


@triton.jit
def _pieces(words, ROWS: tl.constexpr, BITS: tl.constexpr, PIECE: tl.constexpr, BF16: tl.constexpr, FAST: tl.constexpr):
    """Words [ROWS, 16] of a chunk -> one [ROWS, PIECE] tensor for each PIECE columns of it: 32, or 16 of 8 bits."""
    p = _unpack(words, BITS, BF16, FAST)
    if BITS == 4:  # row, lane, q, odd, 8, 16
        lower = tl.join(tl.join(p[0], p[1]), tl.join(p[2], p[3]))
        upper = tl.join(tl.join(p[4], p[5]), tl.join(p[6], p[7]))
        whole = tl.permute(tl.reshape(tl.join(lower, upper), [ROWS, 4, 4, 2, 2, 2]), (0, 5, 4, 1, 3, 2))
        even, odd = tl.split(tl.reshape(whole, [ROWS, 32, 2, 2]))
        first, third = tl.split(even)
        second, fourth = tl.split(odd)
        return first, second, third, fourth
    else:  # row, lane, q, 16, odd, 8
        eights = tl.join(tl.join(p[0], p[1]), tl.join(p[2], p[3]))
        eights = tl.reshape(eights, [ROWS, 4, 2, 2, 2, 2])
        if PIECE == 32:
            whole = tl.permute(eights, (0, 3, 5, 1, 4, 2))
            first, second = tl.split(tl.reshape(whole, [ROWS, 32, 2]))
            return first, second
        else:
            whole = tl.permute(eights, (0, 5, 1, 4, 2, 3))
            even, odd = tl.split(tl.reshape(whole, [ROWS, 16, 2, 2]))
            first, third = tl.split(even)
            second, fourth = tl.split(odd)
            return first, second, third, fourth


@triton.jit
def scale_and_minimum(word, SHIFT: tl.constexpr, PAIRS: tl.constexpr):
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


@triton.jit(do_not_specialize=["first_row", "num_rows"])
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
    SCALES: tl.constexpr,
    SHARED_BY: tl.constexpr,
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
    PIECE: tl.constexpr = GROUP if GROUP < 32 else 32
    PER_SCALE: tl.constexpr = CHUNK // PIECE // SCALES
    chunk = tl.program_id(0)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    real = n < num_rows
    row = first_row + n
    if HAS_IDS:
        row = tl.load(ids_ptr + n, mask=real, other=0)
    row = tl.maximum(tl.minimum(row, N - 1), 0).to(tl.int64)
    words = tl.load(codes_ptr + chunk.to(tl.int64) * (N * 16) + row[:, None] * 16 + tl.arange(0, 16)[None, :])
    # Codes are whole numbers that float16 holds.
    pieces = _pieces(words, BLOCK_N, BITS, PIECE, False, FAST)
    for part in tl.static_range(CHUNK // PIECE):
        start = chunk * CHUNK + part * PIECE
        scale_at = (chunk // SHARED_BY * N + row) * SCALES + part // PER_SCALE
        scale, minimum = scale_and_minimum(tl.load(scale_ptr + scale_at), SHIFT, PAIRS)
        values = pieces[part].to(tl.float32) * scale[:, None]
        if PAIRS:
            values += minimum[:, None]
        k = start + tl.arange(0, PIECE)
        at = n.to(tl.int64)[:, None] * K + k[None, :]
        tl.store(out_ptr + at, values.to(out_ptr.dtype.element_ty), mask=real[:, None] & (k < K)[None, :])


@triton.jit(do_not_specialize=["num_rows"])
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
    SCALES: tl.constexpr,
    SHARED_BY: tl.constexpr,
    SHIFT: tl.constexpr,
    PAIRS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SPLITS: tl.constexpr,
    EVEN: tl.constexpr,
    BF16: tl.constexpr,
    FAST: tl.constexpr,
    STAGES: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """y [M, N] = x [M, K] · wᵀ with w = (code - half the range + SHIFT) * scale + minimum.

    Grid (tiles of M, tiles of N, SPLITS). A chunk is 64 bytes of codes of each row of the weight: 512 / BITS columns.
    """
    CHUNK: tl.constexpr = 512 // BITS
    PIECE: tl.constexpr = GROUP if GROUP < 32 else 32
    PER_SCALE: tl.constexpr = CHUNK // PIECE // SCALES
    DTYPE: tl.constexpr = tl.bfloat16 if BF16 else tl.float16
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    begin = tl.program_id(2) * split_chunks
    end = tl.minimum(begin + split_chunks, num_chunks)
    if DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = tl.minimum(n, N - 1)
    # The matrix units want 16 neighbouring rows in a warp, a load gives it 8 at a time: take them in that order.
    place = tl.arange(0, BLOCK_N)
    loaded = place // 32 * 8 + place // 8 % 4 * (BLOCK_N // 4) + place % 8
    loaded = tl.minimum(tl.program_id(1) * BLOCK_N + loaded, N - 1)
    words_at = loaded[:, None] * 16 + tl.arange(0, 16)[None, :]
    k = tl.arange(0, PIECE)
    x_ptrs = x_ptr + m.to(tl.int64)[:, None] * x_stride + k[None, :]
    acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    for chunk in tl.range(begin, end, num_stages=STAGES):
        words = tl.load(codes_ptr + chunk * (N * 16) + words_at, eviction_policy="evict_first")
        pieces = _pieces(words, BLOCK_N, BITS, PIECE, BF16, FAST)
        for s in tl.static_range(SCALES):
            scales_at = (chunk // SHARED_BY * N + row) * SCALES + s
            scale, minimum = scale_and_minimum(tl.load(scale_ptr + scales_at), SHIFT, PAIRS)
            product = tl.zeros(acc.shape, tl.float32)
            total = tl.zeros([BLOCK_M], tl.float32)
            for part in tl.static_range(s * PER_SCALE, (s + 1) * PER_SCALE):
                inside = (m < num_rows)[:, None]
                if not EVEN:
                    inside = inside & (chunk * CHUNK + part * PIECE + k < K)[None, :]
                x = tl.load(x_ptrs + chunk * CHUNK + part * PIECE, mask=inside, other=0.0).to(DTYPE)
                w = tl.reshape(pieces[part], [BLOCK_N // 32, 4, 8, PIECE])
                w = tl.reshape(tl.permute(w, (1, 0, 2, 3)), [BLOCK_N, PIECE])
                product = tl.dot(w, tl.trans(x), product)
                if PAIRS:
                    total += tl.sum(x.to(tl.float32), 1)
            acc += product * scale[:, None]
            if PAIRS:
                acc += minimum[:, None] * total[None, :]
    tile = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    finish(tl.trans(acc), m, n, y_ptr, partial_ptr, arrived_ptr, tile, tl.program_id(2), num_rows, N, y_stride, SPLITS)
