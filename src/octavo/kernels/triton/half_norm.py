"""A norm in two halves: who leaves rows multiplies them by its weight, who multiplies them divides by their roots.

So that a program of a product, which has some columns of a row, can leave what a norm needs all columns for.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def leave_half_normed(x, norm, m, n, real, num_rows, N, weighted_ptr, squares_ptr, part, parts):
    """Leave x [M, N'], float32, rows m and columns n of all: times norm [N'], and the squares of part `part`."""
    at = m.to(tl.int64)[:, None] * N + n[None, :]
    tl.store(weighted_ptr + at, (x * norm[None, :]).to(weighted_ptr.dtype.element_ty), mask=real)
    squares = tl.sum(tl.where(real, x * x, 0.0), 1)
    tl.store(squares_ptr + m * parts + part, squares, mask=m < num_rows)


@triton.jit
def load_squares(squares_ptr, row, num_rows, parts, PARTS: tl.constexpr):
    """[PARTS] of a row, parts and zeros. Loaded long before `root` has to have them they cost no time."""
    part = tl.arange(0, PARTS)
    return tl.load(squares_ptr + row * parts + part, mask=(part < parts) & (row < num_rows), other=0.0)


@triton.jit
def root(squares, width, eps):
    """What a row of `width` columns that was multiplied half normed still has to be divided by."""
    return tl.sqrt(tl.sum(squares, 0) / width + eps)
