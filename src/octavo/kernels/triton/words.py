"""Codes read as 32-bit words, four or eight at a time, and scaled in float16: the fast form for many visible columns.

A word's byte j (and for `q4_0` its lower and its upper half) goes to a part of its own, so that a part is every fourth
element of a head and no code ever leaves the lane that loaded it.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Two words (in $IN0 and $IN1) give a pair of codes per byte. A code c under 0x64 as upper byte is the float16 1024 + c,
# one of upper half-bytes 1024 + 16 c; whole numbers subtract exactly, and a product with the scale is rounded once.
_Q8_BYTE = """
    prmt.b32 t, $4, $5, SELECT;
    lop3.b32 t, t, 0x00ff00ff, 0x64806480, 0x6A;
    sub.rn.f16x2 t, t, bias;
    mul.rn.f16x2 $LOWER, t, $6;
"""
_Q4_BYTE = """
    prmt.b32 t, $8, $9, SELECT;
    lop3.b32 a, t, 0x000f000f, 0x64006400, 0xEA;
    lop3.b32 b, t, 0x00f000f0, 0x64006400, 0xEA;
    sub.rn.f16x2 a, a, bias;
    fma.rn.f16x2 b, b, sixteenth, offset;
    mul.rn.f16x2 $LOWER, a, $10;
    mul.rn.f16x2 $UPPER, b, $11;
"""


def _assembly(byte: str, bias: str) -> str:
    lines = ["{ .reg .b32 a, b, t, bias, sixteenth, offset;", f"mov.b32 bias, {bias};"]
    lines += ["mov.b32 sixteenth, 0x2C002C00;", "mov.b32 offset, 0xD480D480;"]
    for j in range(4):
        select = f"0x0{4 + j}0{j}"
        lines.append(byte.replace("SELECT", select).replace("LOWER", str(j)).replace("UPPER", str(4 + j)))
    return "\n".join([*lines, "}"])


Q8_ASM = tl.constexpr(_assembly(_Q8_BYTE, "0x64806480"))
Q4_ASM = tl.constexpr(_assembly(_Q4_BYTE, "0x64086408"))
Q8_REGISTERS = tl.constexpr(",".join(["=&r"] * 4 + ["r"] * 3))
Q4_REGISTERS = tl.constexpr(",".join(["=&r"] * 8 + ["r"] * 4))
_FOUR = tl.constexpr((tl.float16,) * 4)
_EIGHT = tl.constexpr((tl.float16,) * 8)


@triton.jit
def load_words(
    ptr, scale_ptr, rows, visible, head, HEADS: tl.constexpr, DIM: tl.constexpr, CODEC: tl.constexpr, FAST: tl.constexpr
):
    """Parts of rows as float16 values: four [N, DIM / 4] of `q8_0`, eight [N, DIM / 8] of `q4_0`. ptr is to int32.

    0 where nothing is visible.
    """
    WIDTH: tl.constexpr = DIM // 4 if CODEC == 3 else DIM // 8
    GROUPS: tl.constexpr = DIM // 32
    mask = visible[:, None]
    words = tl.load(ptr + rows[:, None] * (HEADS * WIDTH) + (head * WIDTH + tl.arange(0, WIDTH))[None, :], mask, 0)
    scale_ptr += head * GROUPS
    parts = ()
    if CODEC == 3:
        scale = _scales(scale_ptr, rows, mask, HEADS * GROUPS, GROUPS, WIDTH)
        if FAST:
            codes = tl.reshape(words, scale.shape)
            values = tl.inline_asm_elementwise(Q8_ASM, Q8_REGISTERS, [codes, scale], _FOUR, True, 2)
            for j in tl.static_range(4):
                parts = parts + (tl.reshape(values[j], words.shape),)
        else:
            for j in tl.static_range(4):
                code = ((words >> (8 * j)) & 255 ^ 128) - 128
                parts = parts + (code.to(tl.float16) * tl.reshape(scale, words.shape),)
    else:
        low = _scales(scale_ptr, rows, mask, HEADS * GROUPS, GROUPS // 2, WIDTH)
        high = _scales(scale_ptr + GROUPS // 2, rows, mask, HEADS * GROUPS, GROUPS // 2, WIDTH)
        if FAST:
            codes = tl.reshape(words, low.shape)
            values = tl.inline_asm_elementwise(Q4_ASM, Q4_REGISTERS, [codes, low, high], _EIGHT, True, 2)
            for j in tl.static_range(8):
                parts = parts + (tl.reshape(values[j], words.shape),)
        else:
            for j in tl.static_range(8):
                code = ((words >> (8 * (j % 4) + j // 4 * 4)) & 15) - 8
                scale = low if j < 4 else high
                parts = parts + (code.to(tl.float16) * tl.reshape(scale, words.shape),)
    return parts


@triton.jit
def _scales(base, rows, mask, stride, COUNT: tl.constexpr, WIDTH: tl.constexpr):
    """Scales as [N, COUNT, WIDTH / COUNT]: one for each word."""
    scale = tl.load(base + rows[:, None] * stride + tl.arange(0, COUNT)[None, :], mask, 0.0)
    return tl.broadcast_to(scale[:, :, None], [rows.shape[0], COUNT, WIDTH // COUNT])
