"""How stored rows of K and V become operands of the matrix units: 16-bit rows, `q8_0` and `q4_0` codes with scales.

A head is cut into parts, each multiplied on its own: one for rows of a floating dtype, else the 32 elements that share
a scale. So a product with codes is scaled after it was formed, and codes are only ever converted, which is exact; where
results may be rounded, `words.py` is faster and has parts of its own.
Queries, accumulators and outputs are tuples with one tensor for each part.
"""

from __future__ import annotations

import triton
import triton.language as tl

from octavo.kernels.triton.words import load_words

CAST = tl.constexpr(0)
Q8 = tl.constexpr(1)
Q4 = tl.constexpr(2)
Q8_WORDS = tl.constexpr(3)
Q4_WORDS = tl.constexpr(4)
GROUP = tl.constexpr(32)


@triton.constexpr_function
def num_parts(dim, codec):
    """Parts that a head of `dim` elements is cut into."""
    if codec == 0:
        return 1
    if codec >= 3:
        return 4 if codec == 3 else 8
    if codec == 1:
        return -(-dim // 32)
    # Codes of the lower half of a head and of the upper lie in the same bytes; a group may straddle both halves.
    half = dim // 2
    return -(-half // 32) + -(-dim // 32) - half // 32


@triton.constexpr_function
def part_width(dim, codec):
    """Elements of a part, a power of two and at least 16; those past `part_size` are padding."""
    size = {0: dim, 3: dim // 4, 4: dim // 8}.get(codec, 32)
    width = 16
    while width < size:
        width *= 2
    return width


@triton.constexpr_function
def part_start(dim, codec, part):
    """First element of a part."""
    if codec == 0:
        return 0
    if codec >= 3:
        return part % 4 + part // 4 * (dim // 2)
    lower = -(-(dim // 2) // 32)
    if codec == 1 or part < lower:
        return part * 32
    return max(dim // 2, ((dim // 2) // 32 + part - lower) * 32)


@triton.constexpr_function
def part_size(dim, codec, part):
    """Elements of a part without padding."""
    if codec == 0:
        return dim
    if codec >= 3:
        return dim // 4 if codec == 3 else dim // 8
    if codec == 1:
        return min(32, dim - part * 32)
    half = dim // 2
    lower = -(-half // 32)
    if part < lower:
        return min(32, half - part * 32)
    group = half // 32 + part - lower
    return min(dim, group * 32 + 32) - max(half, group * 32)


@triton.constexpr_function
def part_stride(codec):
    """Distance between the elements of a part."""
    return 4 if codec >= 3 else 1


@triton.constexpr_function
def num_halves(q_dtype, k_dtype, precise):
    """16-bit operands that a query becomes: float32 ones two if they are to keep more precision than one has.

    bfloat16 has so little that its rounding shows among thousands of columns.
    """
    if q_dtype.primitive_bitwidth != 32 or k_dtype.primitive_bitwidth == 32:
        return 1
    return 2 if precise or k_dtype.is_bf16() else 1


@triton.jit
def prepare_queries(row_ptrs, real, k_ptr, DIM: tl.constexpr, CODEC: tl.constexpr, PRECISE: tl.constexpr):
    """Queries [M, width] of each part in the operands' dtype, then what rounding left of them; zeros for padding."""
    WIDTH: tl.constexpr = part_width(DIM, CODEC)
    STRIDE: tl.constexpr = part_stride(CODEC)
    high = ()
    low = ()
    for part in tl.static_range(num_parts(DIM, CODEC)):
        d = tl.arange(0, WIDTH)
        mask = real[:, None] & (d < part_size(DIM, CODEC, part))[None, :]
        x = tl.load(row_ptrs[:, None] + part_start(DIM, CODEC, part) + STRIDE * d[None, :], mask=mask, other=0.0)
        # Codes are whole numbers that float16 holds.
        rounded = x.to(k_ptr.dtype.element_ty if CODEC == CAST else tl.float16)
        high = high + (rounded,)
        if num_halves(row_ptrs.dtype.element_ty, k_ptr.dtype.element_ty, PRECISE) == 2:
            low = low + ((x - rounded.to(tl.float32)).to(rounded.dtype),)
    return high + low


@triton.jit
def zero_accumulators(BLOCK_M: tl.constexpr, DIM: tl.constexpr, CODEC: tl.constexpr):
    acc = ()
    for _ in tl.static_range(num_parts(DIM, CODEC)):
        acc = acc + (tl.zeros([BLOCK_M, part_width(DIM, CODEC)], tl.float32),)
    return acc


@triton.jit
def load_tile(base, rows, visible, stride, SIZE: tl.constexpr, WIDTH: tl.constexpr):
    """[N, WIDTH] elements from `base` on of the rows; zeros past SIZE and where nothing is visible."""
    d = tl.arange(0, WIDTH)
    mask = visible[:, None]
    if SIZE < WIDTH:
        mask = mask & (d < SIZE)[None, :]
    return tl.load(base + rows[:, None] * stride + d[None, :], mask=mask, other=0)


# Four bytes become four float16: under 0x64 as upper byte, byte b is 1024 + b, and whole numbers subtract exactly.
_CONVERT = """
{
    .reg .b32 x, bias;
    TAKE
    prmt.b32 $0, x, 0x64646464, 0x4140;
    prmt.b32 $1, x, 0x64646464, 0x4342;
    mov.b32 bias, BIAS;
    sub.rn.f16x2 $0, $0, bias;
    sub.rn.f16x2 $1, $1, bias;
}
"""
_TAKES = {
    "q8_0": ("xor.b32 x, $2, 0x80808080;", "0x64806480"),
    "lower": ("and.b32 x, $2, 0x0f0f0f0f;", "0x64086408"),
    "upper": ("shr.b32 x, $2, 4;\n    and.b32 x, x, 0x0f0f0f0f;", "0x64086408"),
}
Q8_ASM, LOWER_ASM, UPPER_ASM = (
    tl.constexpr(_CONVERT.replace("TAKE", line).replace("BIAS", bias)) for line, bias in _TAKES.values()
)


@triton.jit
def convert(codes, ASM: tl.constexpr):
    """Bytes as the float16 whole numbers that they stand for."""
    return tl.inline_asm_elementwise(ASM, "=r,=r,r", [codes], tl.float16, True, 4)


@triton.jit
def load_codes(
    ptr,
    rows,
    visible,
    head,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    CODEC: tl.constexpr,
    part: tl.constexpr,
    FAST: tl.constexpr,
):
    """Codes [N, 32] of one part as float16 whole numbers; anything finite where nothing is visible."""
    START: tl.constexpr = part_start(DIM, CODEC, part)
    SIZE: tl.constexpr = part_size(DIM, CODEC, part)
    if CODEC == Q8:
        codes = load_tile(ptr + head * DIM + START, rows, visible, HEADS * DIM, SIZE, GROUP)
        if FAST:
            return convert(codes, Q8_ASM)
        return codes.to(tl.float16)
    HALF: tl.constexpr = DIM // 2
    if START < HALF:
        packed = load_tile(ptr + head * HALF + START, rows, visible, HEADS * HALF, SIZE, GROUP)
        if FAST:
            return convert(packed, LOWER_ASM)
        return (packed & 15).to(tl.float16) - 8.0
    packed = load_tile(ptr + head * HALF + START - HALF, rows, visible, HEADS * HALF, SIZE, GROUP)
    if FAST:
        return convert(packed, UPPER_ASM)
    return (packed >> 4).to(tl.float16) - 8.0


@triton.jit
def load_scales(
    ptr, rows, visible, head, HEADS: tl.constexpr, DIM: tl.constexpr, CODEC: tl.constexpr, part: tl.constexpr
):
    """Scales [N] of one part, float32; 0 where nothing is visible."""
    GROUPS: tl.constexpr = (DIM + 31) // 32
    offset = head * GROUPS + part_start(DIM, CODEC, part) // 32
    return tl.load(ptr + rows * (HEADS * GROUPS) + offset, mask=visible, other=0.0).to(tl.float32)


@triton.jit
def scores(
    q,
    k_ptr,
    scale_ptr,
    rows,
    visible,
    head,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    CODEC: tl.constexpr,
    FAST: tl.constexpr,
    HALVES: tl.constexpr,
):
    """q · k [M, N] in float32 for the stored rows, 0 where nothing is visible."""
    PARTS: tl.constexpr = num_parts(DIM, CODEC)
    if CODEC == CAST:
        k = load_tile(k_ptr + head * DIM, rows, visible, HEADS * DIM, DIM, part_width(DIM, CODEC))
        s = tl.dot(q[0], tl.trans(k), input_precision="ieee")
        if HALVES == 2:
            s = tl.dot(q[1], tl.trans(k), s)
        return s
    elif CODEC >= Q8_WORDS:
        k = load_words(k_ptr, scale_ptr, rows, visible, head, HEADS, DIM, CODEC, FAST)
        s = tl.dot(q[0], tl.trans(k[0]))
        for part in tl.static_range(1, PARTS):
            s = tl.dot(q[part], tl.trans(k[part]), s)
        return s
    else:
        s = tl.zeros([q[0].shape[0], rows.shape[0]], tl.float32)
        for part in tl.static_range(PARTS):
            codes = tl.trans(load_codes(k_ptr, rows, visible, head, HEADS, DIM, CODEC, part, FAST))
            product = tl.dot(q[part], codes)
            if HALVES == 2:
                product = tl.dot(q[PARTS + part], codes, product)
            s += product * load_scales(scale_ptr, rows, visible, head, HEADS, DIM, CODEC, part)[None, :]
        return s


@triton.jit
def accumulate(
    acc,
    p,
    fade,
    v_ptr,
    scale_ptr,
    rows,
    visible,
    head,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    CODEC: tl.constexpr,
    FAST: tl.constexpr,
    PRECISE: tl.constexpr,
):
    """Add p [M, N] · v to the accumulators, after what they hold has faded by fade [M]."""
    if CODEC == CAST:
        v = load_tile(v_ptr + head * DIM, rows, visible, HEADS * DIM, DIM, part_width(DIM, CODEC))
        return (multiply(p, v, acc[0] * fade[:, None], PRECISE),)
    elif CODEC >= Q8_WORDS:
        v = load_words(v_ptr, scale_ptr, rows, visible, head, HEADS, DIM, CODEC, FAST)
        weights = p.to(tl.float16)
        out = ()
        for part in tl.static_range(num_parts(DIM, CODEC)):
            out = out + (tl.dot(weights, v[part], acc[part] * fade[:, None]),)
        return out
    else:
        out = ()
        for part in tl.static_range(num_parts(DIM, CODEC)):
            codes = load_codes(v_ptr, rows, visible, head, HEADS, DIM, CODEC, part, FAST)
            scale = load_scales(scale_ptr, rows, visible, head, HEADS, DIM, CODEC, part)
            out = out + (multiply(p * scale[None, :], codes, acc[part] * fade[:, None], PRECISE),)
        return out


@triton.jit
def multiply(weights, operand, acc, PRECISE: tl.constexpr):
    """acc + weights · operand; float32 weights become one 16-bit operand, or its sum with what rounding left."""
    if operand.dtype == tl.float32:
        return tl.dot(weights, operand, acc, input_precision="ieee")
    high = weights.to(operand.dtype)
    acc = tl.dot(high, operand, acc)
    if PRECISE:
        acc = tl.dot((weights - high.to(tl.float32)).to(operand.dtype), operand, acc)
    return acc


@triton.jit
def store_output(row_ptrs, acc, share, real, DIM: tl.constexpr, CODEC: tl.constexpr):
    """Store acc [M, DIM] times share [M]."""
    for part in tl.static_range(num_parts(DIM, CODEC)):
        d = tl.arange(0, part_width(DIM, CODEC))
        mask = real[:, None] & (d < part_size(DIM, CODEC, part))[None, :]
        ptrs = row_ptrs[:, None] + part_start(DIM, CODEC, part) + part_stride(CODEC) * d[None, :]
        tl.store(ptrs, (acc[part] * share[:, None]).to(row_ptrs.dtype.element_ty), mask=mask)
