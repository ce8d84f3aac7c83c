"""The launch of `streamed_dot.py`, on Hopper. Allocates the output, waits for nothing."""

from __future__ import annotations

import torch
from torch import Tensor
from triton.experimental.gluon.language import NVMMASharedLayout
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from octavo.kernels.triton.launch import dependent_launch
from octavo.kernels.triton.streamed_dot import streamed_dot
from octavo.kernels.triton.streamed_table import StreamedTile

LAYOUT = NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)


def multiply_streamed(
    x: Tensor, weight: Tensor, tile: StreamedTile, dtype: torch.dtype, *, gelu: bool | None = None
) -> Tensor:
    """x [M, K] · weight [N, K]ᵀ in `dtype`: [M, N], or with splits its parts [splits, M, N], which add up to it.

    If `gelu` is given, the weight [2 N, K] has gate's rows above up's, and SiLU (or tanh-GELU) of x · gateᵀ, times
    x · upᵀ, is returned [M, N]; both are rounded to the weight's dtype before they meet. x and weight are contiguous
    and in one 16-bit dtype, K a multiple of 8; sums are float32.
    """
    assert gelu is None or tile.splits == 1, f"no gate of parts, as in {tile}"
    num_rows, columns = x.shape
    n = len(weight) if gelu is None else len(weight) // 2
    shape = (num_rows, n) if tile.splits == 1 else (tile.splits, num_rows, n)
    out = torch.empty(shape, dtype=dtype, device=weight.device)
    dependent = dependent_launch(x.device)
    streamed_dot[(-(-num_rows // tile.block_m), -(-n // tile.block_n), tile.splits)](
        TensorDescriptor.from_tensor(x, [tile.block_m, tile.block_k], LAYOUT),
        TensorDescriptor.from_tensor(weight, [tile.block_n, tile.block_k], LAYOUT),
        out,
        num_rows,
        n,
        columns,
        tile.block_k * -(-columns // (tile.block_k * tile.splits)),
        BLOCK_M=tile.block_m,
        BLOCK_N=tile.block_n,
        BLOCK_K=tile.block_k,
        STAGES=tile.num_stages,
        GATED=gelu is not None,
        GELU=gelu is True,
        DEPENDENT=dependent,
        num_warps=tile.num_warps,
        **({"launch_pdl": True} if dependent else {}),
    )
    return out
