"""From the q, k and v of a linear to rotated queries and encoded stored rows, head by head, in one kernel.

Encodes K and V with the bits of `storage/codecs`: the same float32 operations in the same order.
"""

from __future__ import annotations

import triton
import triton.language as tl

from octavo.kernels.triton.dequant import CAST, Q8
from octavo.kernels.triton.row_kernels import load_parts


@triton.jit
def rotate_and_store(
    qkv_ptr,
    bias_ptr,
    positions_ptr,
    cos_ptr,
    sin_ptr,
    q_norm_ptr,
    k_norm_ptr,
    rows_ptr,
    q_ptr,
    k_ptr,
    k_scale_ptr,
    v_ptr,
    v_scale_ptr,
    qkv_stride,
    num_positions,
    num_rows,
    eps,
    HQ: tl.constexpr,
    HKV: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    HEADS: tl.constexpr,
    K_CODEC: tl.constexpr,
    V_CODEC: tl.constexpr,
    HAS_NORMS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    DEPENDENT: tl.constexpr,
    PARTS: tl.constexpr = 1,
):
    """Grid (tokens, parts of heads: queries', keys', values'), HEADS heads of DIM elements (WIDTH with padding) each.

    Keys and values of a token go to row `rows[t]` of the stored planes; nowhere if there is no such row.
    """
    t = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    Q_PARTS: tl.constexpr = (HQ + HEADS - 1) // HEADS
    KV_PARTS: tl.constexpr = (HKV + HEADS - 1) // HEADS
    # [HEADS, groups, 32]: the elements of a group share a scale.
    h = tl.arange(0, HEADS)[:, None, None]
    group = tl.arange(0, WIDTH // 32)[None, :, None]
    d = group * 32 + tl.arange(0, 32)[None, None, :]
    # The step's plan wrote positions and rows, long before any layer.
    position = tl.load(positions_ptr + t)
    position = tl.minimum(tl.maximum(position, 0), num_positions - 1)
    cos = tl.load(cos_ptr + position * DIM + d, mask=d < DIM, other=0.0)
    sin = tl.load(sin_ptr + position * DIM + d, mask=d < DIM, other=0.0)
    row = tl.load(rows_ptr + t).to(tl.int64)
    stored = (row >= 0) & (row < num_rows)
    if DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    plane = tl.num_programs(0).to(tl.int64) * qkv_stride
    qkv_ptr += t * qkv_stride
    if part < Q_PARTS:
        head = part * HEADS + h
        x = rotated(
            qkv_ptr,
            bias_ptr,
            head * DIM,
            head < HQ,
            d,
            cos,
            sin,
            q_norm_ptr,
            eps,
            plane,
            DIM,
            HAS_NORMS,
            HAS_BIAS,
            PARTS,
        )
        mask = (head < HQ) & (d < DIM)
        tl.store(q_ptr + (t * HQ + head) * DIM + d, x.to(q_ptr.dtype.element_ty), mask=mask)
    elif part < Q_PARTS + KV_PARTS:
        head = (part - Q_PARTS) * HEADS + h
        start = (HQ + head) * DIM
        x = rotated(
            qkv_ptr, bias_ptr, start, head < HKV, d, cos, sin, k_norm_ptr, eps, plane, DIM, HAS_NORMS, HAS_BIAS, PARTS
        )
        encode(x, k_ptr, k_scale_ptr, row * HKV + head, (head < HKV) & stored, DIM, WIDTH, K_CODEC)
    else:
        head = (part - Q_PARTS - KV_PARTS) * HEADS + h
        x = head_values(
            qkv_ptr, bias_ptr, (HQ + HKV + head) * DIM + d, (head < HKV) & (d < DIM), plane, HAS_BIAS, PARTS
        )
        encode(x, v_ptr, v_scale_ptr, row * HKV + head, (head < HKV) & stored, DIM, WIDTH, V_CODEC)


@triton.jit
def head_values(qkv_ptr, bias_ptr, at, mask, plane, HAS_BIAS: tl.constexpr, PARTS: tl.constexpr):
    x = load_parts(qkv_ptr, at, plane, mask, PARTS)
    if HAS_BIAS:
        x += tl.load(bias_ptr + at, mask=mask, other=0.0)
    return x


@triton.jit
def rotated(
    qkv_ptr,
    bias_ptr,
    start,
    real,
    d,
    cos,
    sin,
    norm_ptr,
    eps,
    plane,
    DIM: tl.constexpr,
    HAS_NORMS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    PARTS: tl.constexpr,
):
    """Heads [HEADS, groups, 32] from `start` on, normalised if there are norms, and rotated; 0 past DIM."""
    mask = real & (d < DIM)
    other = (d + DIM // 2) % DIM
    x = head_values(qkv_ptr, bias_ptr, start + d, mask, plane, HAS_BIAS, PARTS)
    # Its partner of every element: loaded once more, as that is nearer than another lane's register.
    y = head_values(qkv_ptr, bias_ptr, start + other, mask, plane, HAS_BIAS, PARTS)
    if HAS_NORMS:
        root = tl.sqrt(tl.sum(tl.sum(x * x, 2), 1) / DIM + eps)[:, None, None]
        x = x / root * tl.load(norm_ptr + d, mask=d < DIM, other=0.0)
        y = y / root * tl.load(norm_ptr + other, mask=d < DIM, other=0.0)
    return x * cos + y * sin


@triton.jit
def encode(x, ptr, scale_ptr, stored_head, real, DIM: tl.constexpr, WIDTH: tl.constexpr, CODEC: tl.constexpr):
    """Store heads x [HEADS, groups, 32] float32, 0 past DIM, as heads `stored_head` [HEADS, 1, 1] of the planes."""
    group = tl.arange(0, WIDTH // 32)[None, :, None]
    d = group * 32 + tl.arange(0, 32)[None, None, :]
    if CODEC == CAST:
        tl.store(ptr + stored_head * DIM + d, x.to(ptr.dtype.element_ty), mask=real & (d < DIM))
    else:
        GROUPS: tl.constexpr = (DIM + 31) // 32
        if CODEC == Q8:
            extreme = tl.max(tl.abs(x), 2)[:, :, None] * (1 / 127)
        else:
            highest = tl.max(x, 2)[:, :, None]
            lowest = tl.min(x, 2)[:, :, None]
            extreme = tl.where(highest >= -lowest, highest, lowest) * -0.125
        # Maxima pass over NaN; a scale must not.
        lost = tl.max((x != x).to(tl.int32), 2)[:, :, None]
        scale = extreme.to(tl.float16)
        wide = scale.to(tl.float32)
        finite = (lost == 0) & (tl.abs(wide) < float("inf"))
        tl.store(
            scale_ptr + stored_head * GROUPS + group,
            tl.where(finite, scale, float("nan")).to(tl.float16),
            mask=real & (group < GROUPS),
        )
        usable = finite & (wide != 0)
        ratio = tl.math.div_rn(x, tl.broadcast_to(tl.where(usable, wide, 1.0), x.shape))
        if CODEC == Q8:
            code = whole(tl.minimum(tl.maximum(ratio, -127.0), 127.0))
            code = tl.where(usable, code, 0.0)
            tl.store(ptr + stored_head * DIM + d, code.to(tl.int8), mask=real & (d < DIM))
        else:
            code = whole(tl.minimum(tl.maximum(ratio, -8.0), 7.0))
            code = tl.where(usable, code, 0.0).to(tl.int32) + 8
            store_nibbles(code, ptr, stored_head, real, DIM, WIDTH)


@triton.jit
def whole(x):
    """The nearest whole number, of two the even one; |x| below 2²²."""
    return x + 12582912.0 - 12582912.0


@triton.jit
def store_nibbles(code, ptr, stored_head, real, DIM: tl.constexpr, WIDTH: tl.constexpr):
    """Pack codes [HEADS, groups, 32] of 0 to 15: element d below element d + DIM / 2."""
    HALF: tl.constexpr = DIM // 2
    HEADS: tl.constexpr = code.shape[0]
    if DIM == WIDTH:
        low, high = tl.split(tl.permute(tl.reshape(code, [HEADS, 2, HALF]), [0, 2, 1]))
        byte = tl.reshape(tl.arange(0, HALF), [1, HALF])
        packed = (low | (high << 4)).to(tl.uint8)
        base = ptr + tl.reshape(stored_head, [HEADS, 1]) * HALF
        tl.store(base + byte, packed, mask=tl.broadcast_to(tl.reshape(real, [HEADS, 1]), [HEADS, HALF]))
    else:
        flat = tl.reshape(code, [HEADS, WIDTH])
        byte = tl.reshape(tl.arange(0, WIDTH), [1, WIDTH])
        upper = tl.broadcast_to(tl.minimum(byte + HALF, DIM - 1), [HEADS, WIDTH])
        packed = (flat | (tl.gather(flat, upper, 1) << 4)).to(tl.uint8)
        base = ptr + tl.reshape(stored_head, [HEADS, 1]) * HALF
        tl.store(base + byte, packed, mask=tl.reshape(real, [HEADS, 1]) & (byte < HALF))
