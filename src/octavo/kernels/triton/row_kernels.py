"""Norms with their residual sum, and gates: one program per row of a step, so that no row depends on another."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def add_norm(
    x_ptr,
    y_ptr,
    inner_ptr,
    weight_ptr,
    out_ptr,
    width,
    eps,
    inner_eps,
    BLOCK: tl.constexpr,
    HAS_Y: tl.constexpr,
    HAS_INNER: tl.constexpr,
    DEPENDENT: tl.constexpr,
    PARTS: tl.constexpr = 1,
):
    """Grid (rows). x [T, N] float32 += y [T, N], or + rms_norm(y) · inner [N]; out [T, N] = rms_norm(x) · weight [N].

    Without y, x is only read. y may be in PARTS [PARTS, T, N], which are added up in order.
    """
    n = tl.arange(0, BLOCK)
    mask = n < width
    weight = tl.load(weight_ptr + n, mask=mask, other=0.0)
    if HAS_INNER:
        inner = tl.load(inner_ptr + n, mask=mask, other=0.0)
    # Weights are older than the step: only what comes now waits for the kernel in front.
    if DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    at = tl.program_id(0).to(tl.int64) * width + n
    x = tl.load(x_ptr + at, mask=mask, other=0.0)
    if HAS_Y:
        y = load_parts(y_ptr, at, tl.num_programs(0).to(tl.int64) * width, mask, PARTS)
        if HAS_INNER:
            y = y / tl.sqrt(tl.sum(y * y, 0) / width + inner_eps) * inner
        x += y
        tl.store(x_ptr + at, x, mask=mask)
    out = x / tl.sqrt(tl.sum(x * x, 0) / width + eps) * weight
    tl.store(out_ptr + at, out.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def load_parts(ptr, at, plane, mask, PARTS: tl.constexpr):
    """The sum of PARTS planes of what is at `at`, in float32 and in order."""
    parts = ()
    for part in tl.static_range(PARTS):
        parts = parts + (tl.load(ptr + part * plane + at, mask=mask, other=0.0).to(tl.float32),)
    total = parts[0]
    for part in tl.static_range(1, PARTS):
        total += parts[part]
    return total


@triton.jit
def gate_rows(x_ptr, out_ptr, width, BLOCK: tl.constexpr, GELU: tl.constexpr, DEPENDENT: tl.constexpr):
    """Grid (rows, parts of N). x [T, 2 N], gates before values -> out [T, N] = activation(gates) · values."""
    if DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = n < width
    gates = tl.load(x_ptr + row * 2 * width + n, mask=mask, other=0.0).to(tl.float32)
    values = tl.load(x_ptr + (row * 2 + 1) * width + n, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * width + n, gated(gates, values, GELU).to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def gated(gates, values, GELU: tl.constexpr):
    """SiLU (or tanh-GELU) of gates, times values, all float32."""
    z = gates
    if GELU:
        # (1 + tanh(y)) / 2 is the sigmoid of 2 y.
        z = 1.5957691216057308 * (gates + 0.044715 * gates * gates * gates)
    small = tl.exp(-tl.abs(z))
    share = tl.where(z >= 0, 1.0, small) / (1.0 + small)
    return gates * share * values


@triton.jit
def look_up_rows(out_ptr, table_ptr, ids_ptr, width, BLOCK: tl.constexpr):
    """Grid (rows, parts of N). Row `ids[t]` of table [V, N] -> out [T, N] float32."""
    row = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = n < width
    values = tl.load(table_ptr + tl.load(ids_ptr + row) * width + n, mask=mask, other=0.0)
    tl.store(out_ptr + row * width + n, values.to(tl.float32), mask=mask)
