"""Launches of the row kernels: norm, residual sum and norm, gate. Allocates outputs, waits for nothing."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from octavo.kernels.triton.launch import dependent_launch
from octavo.kernels.triton.row_kernels import add_norm, gate_rows, look_up_rows

_FEW_ROWS, _SOME_ROWS = 64, 256


def add_rms_norm_(
    x: Tensor,
    y: Tensor | None,
    weight: Tensor,
    eps: float,
    dtype: torch.dtype,
    inner: tuple[Tensor, float] | None = None,
) -> Tensor:
    """x [..., N] float32 += y (of any floating dtype), then x · weight / sqrt(mean(x²) + eps) in `dtype`.

    y may be in parts [S, ..., N], which are added up first. `inner` (weight, eps) normalises y first. All contiguous,
    weights [N] float32. A program holds a whole row.
    """
    width = x.shape[-1]
    out = torch.empty(x.shape, dtype=dtype, device=x.device)
    rows = x.numel() // width
    if not rows:
        return out
    block = triton.next_power_of_2(width)
    dependent = dependent_launch(x.device)
    add_norm[(rows,)](
        x,
        x if y is None else y,
        weight if inner is None else inner[0],
        weight,
        out,
        width,
        eps,
        0.0 if inner is None else inner[1],
        BLOCK=block,
        HAS_Y=y is not None,
        HAS_INNER=inner is not None,
        DEPENDENT=dependent,
        PARTS=1 if y is None or y.dim() == x.dim() else len(y),
        num_warps=norm_warps(block),
        **({"launch_pdl": True} if dependent else {}),
    )
    return out


def norm_warps(block: int) -> int:
    """Of a program that holds `block` elements."""
    return max(1, min(16, block // 512))


def gate(x: Tensor, gelu: bool, dtype: torch.dtype) -> Tensor:
    """x [T, 2 N] contiguous, gates first -> SiLU (or tanh-GELU) of the gates, times the rest: [T, N] in `dtype`."""
    num_tokens, width = x.shape[0], x.shape[1] // 2
    out = torch.empty(num_tokens, width, dtype=dtype, device=x.device)
    if not num_tokens:
        return out
    dependent = dependent_launch(x.device)
    block, warps = (512, 4) if num_tokens <= _FEW_ROWS else (2048, 8) if num_tokens <= _SOME_ROWS else (1024, 4)
    gate_rows[(num_tokens, triton.cdiv(width, block))](
        x,
        out,
        width,
        BLOCK=block,
        GELU=gelu,
        DEPENDENT=dependent,
        num_warps=warps,
        **({"launch_pdl": True} if dependent else {}),
    )
    return out


def look_up(table: Tensor, ids: Tensor) -> Tensor:
    """Rows `ids` [T] int64 of table [V, N], contiguous -> [T, N] float32."""
    num_tokens, width = len(ids), table.shape[1]
    out = torch.empty(num_tokens, width, dtype=torch.float32, device=table.device)
    if num_tokens:
        look_up_rows[(num_tokens, triton.cdiv(width, 1024))](out, table, ids, width, BLOCK=1024)
    return out
