"""Stored rows of K and V as wide operands of the matrix units, for tiles of many queries.

A head is one part, or, where two codes share a byte, its lower and its upper half. Quantised values are float16, or
float32 for tiles that keep their precision.
"""

from __future__ import annotations

import triton
import triton.language as tl

from octavo.kernels.triton.dequant import CAST, LOWER_ASM, Q8, Q8_ASM, UPPER_ASM, convert


@triton.constexpr_function
def operand_parts(codec):
    return 2 if codec == 2 else 1


@triton.constexpr_function
def operand_size(dim, codec):
    """Elements of a part."""
    return dim // 2 if codec == 2 else dim


@triton.constexpr_function
def operand_width(dim, codec):
    """Elements of a part with padding: a power of two, of whole groups where there are codes."""
    width = 16 if codec == 0 else 32
    while width < (dim // 2 if codec == 2 else dim):
        width *= 2
    return width


@triton.jit
def load_part(base, rows, visible, stride, SIZE: tl.constexpr, WIDTH: tl.constexpr, MASKED: tl.constexpr):
    """[N, WIDTH] elements from `base` on of the rows; zeros past SIZE and, if MASKED, where nothing is visible."""
    d = tl.arange(0, WIDTH)
    ptrs = base + rows[:, None] * stride + d[None, :]
    if MASKED:
        return tl.load(ptrs, mask=visible[:, None] & (d < SIZE)[None, :], other=0)
    elif SIZE < WIDTH:
        return tl.load(ptrs, mask=(d < SIZE)[None, :], other=0)
    else:
        return tl.load(ptrs)


@triton.jit
def scaled(
    codes,
    scale_ptr,
    rows,
    visible,
    head,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    START: tl.constexpr,
    SIZE: tl.constexpr,
    PRECISE: tl.constexpr,
    MASKED: tl.constexpr,
):
    """codes [N, WIDTH], of which the first SIZE are elements START on of a head, times their scales."""
    GROUPS: tl.constexpr = (DIM + 31) // 32
    N: tl.constexpr = codes.shape[0]
    WIDTH: tl.constexpr = codes.shape[1]
    dtype = tl.float32 if PRECISE else tl.float16
    scale_ptr += head * GROUPS
    stride = HEADS * GROUPS
    # One group alone may not take this way: Triton 3.6 gave wrong values for tiles of 64 columns and more on an H200.
    if START % 32 == 0 and WIDTH > 32:
        COUNT: tl.constexpr = (SIZE + 31) // 32
        scale = load_part(scale_ptr + START // 32, rows, visible, stride, COUNT, WIDTH // 32, MASKED).to(dtype)
        values = tl.reshape(codes.to(dtype), [N, WIDTH // 32, 32]) * scale[:, :, None]
        return tl.reshape(values, [N, WIDTH])
    else:
        d = tl.arange(0, WIDTH)
        mask = (d < SIZE)[None, :]
        if MASKED:
            mask = mask & visible[:, None]
        scale = tl.load(scale_ptr + rows[:, None] * stride + ((START + d) // 32)[None, :], mask=mask, other=0.0)
        return codes.to(dtype) * scale.to(dtype)


@triton.jit
def load_operand(
    ptr,
    scale_ptr,
    rows,
    visible,
    head,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    CODEC: tl.constexpr,
    FAST: tl.constexpr,
    PRECISE: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Parts [N, width] of one head of the stored rows; finite, and 0 where nothing is visible."""
    SIZE: tl.constexpr = operand_size(DIM, CODEC)
    WIDTH: tl.constexpr = operand_width(DIM, CODEC)
    data = load_part(ptr + head * SIZE, rows, visible, HEADS * SIZE, SIZE, WIDTH, MASKED)
    if CODEC == CAST:
        return (data,)
    elif CODEC == Q8:
        if FAST:
            data = convert(data, Q8_ASM)
        return (scaled(data, scale_ptr, rows, visible, head, HEADS, DIM, 0, SIZE, PRECISE, MASKED),)
    else:
        if FAST:
            low = convert(data, LOWER_ASM)
            high = convert(data, UPPER_ASM)
        else:
            low = (data & 15).to(tl.int8) - 8
            high = (data >> 4).to(tl.int8) - 8
        return (
            scaled(low, scale_ptr, rows, visible, head, HEADS, DIM, 0, SIZE, PRECISE, MASKED),
            scaled(high, scale_ptr, rows, visible, head, HEADS, DIM, SIZE, SIZE, PRECISE, MASKED),
        )


@triton.jit
def load_queries(row_ptrs, real, k_ptr, DIM: tl.constexpr, CODEC: tl.constexpr, HALVES: tl.constexpr):
    """Queries [M, width] of each part in the operands' dtype, then, with two HALVES, what rounding left of them."""
    SIZE: tl.constexpr = operand_size(DIM, CODEC)
    WIDTH: tl.constexpr = operand_width(DIM, CODEC)
    d = tl.arange(0, WIDTH)
    high = ()
    low = ()
    for part in tl.static_range(operand_parts(CODEC)):
        mask = real[:, None] & (d < SIZE)[None, :]
        x = tl.load(row_ptrs[:, None] + part * SIZE + d[None, :], mask=mask, other=0.0).to(tl.float32)
        rounded = x.to(k_ptr.dtype.element_ty if CODEC == CAST else tl.float16)
        high = high + (rounded,)
        if HALVES == 2:
            low = low + ((x - rounded.to(tl.float32)).to(rounded.dtype),)
    return high + low


@triton.jit
def tile_scores(q, k, CODEC: tl.constexpr, HALVES: tl.constexpr, PRECISE: tl.constexpr):
    """q · k [M, N] float32."""
    PARTS: tl.constexpr = operand_parts(CODEC)
    s = tl.zeros([q[0].shape[0], k[0].shape[0]], tl.float32)
    for part in tl.static_range(PARTS):
        high = k[part].to(q[0].dtype)
        s = tl.dot(q[part], tl.trans(high), s)
        if HALVES == 2:
            s = tl.dot(q[PARTS + part], tl.trans(high), s)
            if PRECISE and CODEC != CAST:
                low = (k[part] - high.to(tl.float32)).to(high.dtype)
                s = tl.dot(q[part], tl.trans(low), s)
    return s


@triton.jit
def tile_sums(acc, p, fade, v, CODEC: tl.constexpr, PRECISE: tl.constexpr):
    """Add p [M, N] · v to the accumulators [M, width], after what they hold has faded by fade [M]."""
    out = ()
    for part in tl.static_range(operand_parts(CODEC)):
        high = v[part].to(tl.float16) if CODEC != CAST else v[part]
        weights = p.to(high.dtype)
        sums = tl.dot(weights, high, acc[part] * fade[:, None])
        if PRECISE:
            sums = tl.dot((p - weights.to(tl.float32)).to(high.dtype), high, sums)
            if CODEC != CAST:
                sums = tl.dot(weights, (v[part] - high.to(tl.float32)).to(high.dtype), sums)
        out = out + (sums,)
    return out


@triton.jit
def zero_sums(BLOCK_M: tl.constexpr, DIM: tl.constexpr, CODEC: tl.constexpr):
    acc = ()
    for _ in tl.static_range(operand_parts(CODEC)):
        acc = acc + (tl.zeros([BLOCK_M, operand_width(DIM, CODEC)], tl.float32),)
    return acc


@triton.jit
def store_sums(row_ptrs, acc, share, real, DIM: tl.constexpr, CODEC: tl.constexpr):
    """Store acc [M, DIM] times share [M]."""
    SIZE: tl.constexpr = operand_size(DIM, CODEC)
    d = tl.arange(0, operand_width(DIM, CODEC))
    mask = real[:, None] & (d < SIZE)[None, :]
    for part in tl.static_range(operand_parts(CODEC)):
        values = (acc[part] * share[:, None]).to(row_ptrs.dtype.element_ty)
        tl.store(row_ptrs[:, None] + part * SIZE + d[None, :], values, mask=mask)
